"""Requests to the server, on the general path of queues and cells.

Every request ends done, not done or unknown. A refused request is not done, and is asked again here until the caller's
deadline (see errors.py). A connection that breaks leaves the outcome unknown: StoreUnavailable. Missing tables and
routines are created.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.common.executor import Executor, Transport
from dibs.backends.mysql import schema
from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.connection import Dialler
from dibs.backends.mysql.errors import CONTENDED, LATER, MISSING, final, strange
from dibs.backends.mysql.wire import Refusal, Row, Sets
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.queue import Unsent
from dibs.core.runtime import Runtime
from dibs.errors import StoreUnavailable

_CREATING = 3
"""How often tables are created for one request: they may be dropped meanwhile, but not for ever."""


class MysqlExecutor(Executor[Request, Sets]):
    def __init__(self, transport: Transport[Request, Sets], dialler: Dialler, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.transport = transport
        self._dialler = dialler

    async def ask(self, request: Request, until: float) -> Sets:
        """For requests that may be done twice: asked again also if the connection broke."""
        return (await self.ask_often(request, until))[0]

    async def ask_once(self, request: Request, until: float) -> Sets:
        pause, created = FIRST_PAUSE, 0
        refused: Refusal | None = None
        while True:
            try:
                return await self.transport.exchange(request, until)
            except StoreUnavailable as error:
                if refused is None or not (isinstance(error, Unsent) or self._runtime.now() >= until):
                    raise
                raise final(refused) from None  # it says more than that the time was too short
            except Refusal as refusal:
                if refusal.code in MISSING and created < _CREATING:
                    created += 1
                    again = 0.0
                elif refusal.code in LATER and self._runtime.now() + pause < until:
                    refused = refusal
                    again = FIRST_PAUSE if refusal.code in CONTENDED else pause
                else:
                    raise final(refusal) from None
            if again:
                await self.pause(again)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                await self._runtime.offload(lambda: schema.create(self._dialler, until))

    def patience(self, until: float) -> float:
        """Seconds to wait for one reply."""
        trip = self._dialler.round_trip
        return min(max(until - self._runtime.now(), trip.least), trip.attempt)

    def round_trip(self) -> float:
        return self._dialler.round_trip.expected


def row(sets: Sequence[Sequence[Row]], least: int) -> Row:
    """The one row of the last result set, with at least `least` columns."""
    if not sets or len(sets[-1]) != 1 or len(sets[-1][0]) < least:
        raise strange()
    return sets[-1][0]


def words(sets: Sequence[Sequence[Row]], least: int) -> list[bytes]:
    """The words of a routine that gives all values in one column, which is faster: at least `least`."""
    return split(row(sets, 1)[0], least)


def split(column: bytes | None, least: int) -> list[bytes]:
    found = (column or b"").split(b" ")
    if len(found) < least:
        raise strange()
    return found


def number(value: bytes | None) -> int:
    """A number that a routine gave; anything else is not the reply of our routine."""
    try:
        return int(value or b"")
    except ValueError:
        raise strange() from None


def ticket_of(said: list[bytes]) -> int:
    """The ticket in the words of take.sql and within.sql."""
    if len(said) < 3:
        raise strange()
    return number(said[2])
