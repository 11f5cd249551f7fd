"""Requests to the server, asked again as long as that may help: seams 2 and 3 go through this.

Every request ends done, not done or unknown. What the server refused is not done, and is asked again here until the
caller's instant (see errors.py); tables and routines that are not there are made. A connection that breaks leaves the
outcome unknown: that is StoreUnavailable, and whoever asked must know of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dibs.backends.common.executor import Executor, Transport
from dibs.backends.mysql import schema
from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.connection import Dialler
from dibs.backends.mysql.errors import CONTENDED, MISSING, final, is_later, strange
from dibs.backends.mysql.wire import Refusal, Row, Sets
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.queue import Unsent
from dibs.core.runtime import Runtime
from dibs.errors import StoreUnavailable

_CREATING = 3
"""How often tables are made for one question: they may be dropped meanwhile, but not for ever."""


class MysqlExecutor(Executor[Request, Sets]):
    def __init__(self, transport: Transport[Request, Sets], dialler: Dialler, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.transport = transport
        self._dialler = dialler

    async def ask(self, request: Request, until: float) -> Sets:
        """Asked again if a connection broke: for what may be done twice."""
        return (await self.ask_often(request, until))[0]

    async def ask_once(self, request: Request, until: float) -> Sets:
        """What the server gives; refusals that may pass are asked again."""
        pause, created = FIRST_PAUSE, 0
        refused: Refusal | None = None
        while True:
            try:
                return await self.transport.exchange(request, until)
            except StoreUnavailable as error:
                if refused is None or not (isinstance(error, Unsent) or self._runtime.now() >= until):
                    raise
                raise final(refused) from None  # it says more than that the time was too short for this answer
            except Refusal as refusal:
                if refusal.code in MISSING and created < _CREATING:
                    created += 1
                    again = 0.0
                elif is_later(refusal) and self._runtime.now() + pause < until:
                    refused = refusal
                    again = FIRST_PAUSE if refusal.code in CONTENDED else pause
                else:
                    raise final(refusal) from None
            if again:
                await self.pause(again)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                await self._runtime.offload(lambda: schema.create(self._dialler, until))

    async def peek(self, request: Request, until: float) -> Sets:
        """Asked once, of what may not be there: a refusal is raised as it is."""
        return await self.transport.exchange(request, until)

    async def connect(self, until: float) -> None:
        await self.transport.connect(until)

    def patience(self, until: float) -> float:
        """Seconds to wait for one reply."""
        trip = self._dialler.round_trip
        return min(max(until - self._runtime.now(), trip.least), trip.attempt)

    def round_trip(self) -> float:
        return self._dialler.round_trip.expected

    def close(self) -> None:
        self.transport.close()


def row(sets: Sequence[Sequence[Row]], least: int) -> Row:
    """The one row that a routine gives at its end, with so many columns or more."""
    if not sets or len(sets[-1]) != 1 or len(sets[-1][0]) < least:
        raise strange()
    return sets[-1][0]


def words(sets: Sequence[Sequence[Row]], least: int) -> list[bytes]:
    """The same of a routine that gives them in one column, which is quicker: so many words or more."""
    return split(row(sets, 1)[0], least)


def split(column: bytes | None, least: int) -> list[bytes]:
    found = (column or b"").split(b" ")
    if len(found) < least:
        raise strange()
    return found


def number(value: bytes | None) -> int:
    """Of what is a number if the routine is ours."""
    try:
        return int(value or b"")
    except ValueError:
        raise strange() from None
