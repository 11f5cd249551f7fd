"""Requests to the server, on the general path of queues and cells.

Every request ends done, not done or unknown. A refused request is not done, and is repeated here until the caller's
deadline (see errors.py). A connection that breaks leaves the outcome unknown: StoreUnavailable. Missing tables and
routines are created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from psycopg.pq.abc import PGresult

from dibs.backends.common.executor import Executor, Transport
from dibs.backends.postgresql import errors
from dibs.backends.postgresql.connection import MICROSECONDS, Dialler, Floors, RoutineCall, Value, rows
from dibs.backends.postgresql.errors import Refusal, final, strange
from dibs.backends.postgresql.routines import Routines, Statement
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

NOBODY = b""
"""The client id of a waiter that gets no messages."""
POLL_INTERVAL = 0.75
"""Seconds between two polls, in the end: with the watchdog's renewals less than two statements a second."""
_LONGEST_WATCH = 3600.0
_CREATING = 10.0
"""Seconds that creating the tables may take, also while other clients create them."""


class PostgresqlExecutor(Executor[RoutineCall, PGresult]):
    """`subscriber` is None if waiters are not to be woken by messages."""

    def __init__(
        self,
        transport: Transport[RoutineCall, PGresult],
        dialler: Dialler,
        runtime: Runtime,
        me: ClientIdentity,
        routines: Routines,
        floors: Floors,
        subscriber: PostgresqlSubscriber | None = None,
    ) -> None:
        super().__init__(runtime)
        self.now = runtime.now
        self.me = me
        self._transport = transport
        self.take_now, self.give = transport.take_now, transport.give
        self.connect, self.close = transport.connect, transport.close
        self._dialler = dialler
        self.routines = routines
        self.floors = floors
        self.subscriber = subscriber
        self._has_swept = False

    def begin(self, found: Any, call: RoutineCall, until: float) -> Awaitable[PGresult]:
        """Send a request on an AioConnection from `take_now`, which returns to the pool by itself."""
        trip = self._dialler.round_trip
        reply: Awaitable[PGresult] = found.ask(call, min(max(until - self.now(), trip.least), trip.attempt))
        return reply

    async def ask_once(self, call: RoutineCall, until: float) -> PGresult:
        try:
            result = await self._transport.exchange(call, until)
        except Refusal as refusal:
            result = await self._insist(call, refusal, until)
        if not self.floors.epoch and result.ntuples == 1 and result.nfields == 2 and result.fname(1) == b"epoch":
            self.floors.epoch = result.get_value(0, 1) or b""
        return result

    async def words(self, statement: Statement, values: Sequence[Value], until: float, least: int = 2) -> list[bytes]:
        """Call a routine that may run twice, and split its reply."""
        return words_of((await self.ask_often(RoutineCall.of(statement, *values), until))[0], least)

    async def rows(self, statement: Statement, values: Sequence[Value], until: float) -> list[list[Any]]:
        """Run a query. The first column is the server's time."""
        return rows((await self.ask_often(RoutineCall.of(statement, *values), until))[0])

    async def hears(self, until: float, *, touching: bool = True) -> bool:
        """Whether messages reach this client. `touching`: this may also sweep, and create missing tables."""
        subscriber = self.subscriber
        if subscriber is None:
            return False
        if subscriber.hears() or subscriber.is_deaf():
            return subscriber.hears()
        subscriber.begin()
        if touching and not self._has_swept:  # the subscriber connects at the same time
            await self.ask_often(RoutineCall.of(self.routines.sweep), until)
            self._has_swept = True

        async def send(channel: str, text: str) -> None:
            await self.ask_often(RoutineCall.of(self.routines.notify, channel, text), until)

        return await subscriber.ready(send, until)

    async def watch(
        self, statement: Statement, which: Sequence[Value], seen: int, key: bytes, until: float
    ) -> tuple[list[bytes], bool]:
        """Ask for a message under `key` when a queue or a cell is no longer as `seen`. Gives the routine's reply, and
        whether messages arrive here."""
        hears = await self.hears(until)
        patience = max(min(until - self.now(), _LONGEST_WATCH), 0.0)
        client = self.me.id if hears else NOBODY
        values = (*which, seen, key, client, int(patience * MICROSECONDS), self.floors.epoch)
        return await self.words(statement, values, until), hears

    async def hear(self, key: bytes, hears: bool, until: float) -> None:
        """Wait for that message; without messages, until it is time to poll."""
        if self.subscriber is not None and hears and self.subscriber.hears():  # again: a message may be lost meanwhile
            await self.subscriber.hear(key, until)
        else:
            await self.me.inbox.wait(key, min(until, self.now() + POLL_INTERVAL))

    async def identity(self, until: float) -> str:
        found = await self.rows(self.routines.identity, (), until)
        if len(found) != 1 or found[0][1] is None:
            raise strange()
        return f"postgresql:{found[0][1].decode(errors='replace')}"

    def is_direct(self) -> bool:
        """Whether the last connection reached the server itself."""
        return self._dialler.is_direct

    def round_trip(self) -> float:
        return self._dialler.round_trip.expected

    async def _insist(self, call: RoutineCall, refusal: Refusal, until: float) -> PGresult:
        pause, is_created = FIRST_PAUSE, False
        while True:
            if refusal.code in errors.MISSING and not is_created:
                await self.create(refusal)
                is_created = True
            elif refusal.code == errors.REPLACED:
                self.floors.start_afresh()
                raise errors.replaced()
            elif self._adapt(refusal):
                self._transport.renew()
            elif refusal.is_crossed() and self.now() + pause < until:
                if refusal.is_elsewhere():
                    self._dialler.try_next_host()
                    self._transport.renew()
                await self.pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                raise final(refusal)
            try:
                return await self._transport.exchange(call, until)
            except Refusal as next_one:
                refusal = next_one
            except StoreUnavailable:
                if not refusal.is_crossed() or self.now() < until:
                    raise
                raise final(refusal) from None  # the refusal explains more than a timeout

    def _adapt(self, refusal: Refusal) -> bool:
        """Send requests in another way from now on, if the refusal asks for that."""
        if refusal.code == errors.NOT_COMMITTED_READS and not self._dialler.needs_begin:
            self._dialler.needs_begin = True
        elif refusal.code in errors.UNPREPARED and not self._dialler.is_pooled:
            self._dialler.is_pooled = True
        else:
            return False
        return True

    async def create(self, missing: Refusal) -> None:
        """Create the tables and routines. A caller's shorter deadline does not count: others need them too."""
        until = self.now() + _CREATING

        def work() -> None:
            connection = self._dialler.connect(until)
            try:
                connection.simple(self.routines.ddl().encode(), until)
            finally:
                connection.close()

        try:
            await self._runtime.offload(work)
        except Refusal as refusal:
            if refusal.is_crossed() or refusal.code == errors.OTHER_LAYOUT:
                raise final(refusal) from None
            what = f"the tables are missing ({missing.text}), and could not be created: {refusal.text} ({refusal.code})"
            raise StoreError(
                what, step="let an administrator run the statements that `dibs doctor --ddl` prints"
            ) from None


def words_of(result: PGresult, least: int = 2) -> list[bytes]:
    """Split the one value that a routine returns into at least `least` words; the first is the server's time."""
    value = result.get_value(0, 0) if result.ntuples == 1 else None
    words = [] if value is None else value.split(b" ")
    if len(words) < least or not words[0].isdigit():
        raise strange()
    return words
