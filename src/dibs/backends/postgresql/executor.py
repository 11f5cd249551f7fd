"""Requests to the server, on the general path of queues and cells.

Every request ends done, not done or unknown. A refused request is not done, and is asked again here until the caller's
deadline (see errors.py). A connection that breaks leaves the outcome unknown: StoreUnavailable. Missing tables and
routines are created.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from psycopg.pq.abc import PGresult

from dibs.backends.common.executor import Executor, Transport
from dibs.backends.postgresql.connection import MICROSECONDS, Dialler, RoutineCall
from dibs.backends.postgresql.errors import (
    MISSING,
    NOT_COMMITTED_READS,
    OTHER_LAYOUT,
    REPLACED,
    UNPREPARED,
    Refusal,
    final,
    replaced,
    strange,
)
from dibs.backends.postgresql.routines import Routines
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_MAKING = 10.0
"""Seconds that creating the tables may take, also beside others that do."""
_KNOWN_QUEUES = 10_000


class Floors:
    """Which store this is, and by name the lowest ticket that may still stand in its queue: old claims that cannot be
    vacuumed yet, because a transaction stays open elsewhere, are not walked over."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.epoch = b""
        """The id of the store; empty: not known yet."""
        self.highest = 0
        """The highest ticket that this client was given."""

    def of(self, name: str) -> int:
        return self.known.get(name, 0)

    def learn(self, name: str, said: bytes) -> None:
        floor = int(said) if said.isdigit() else 0
        if floor:
            if len(self.known) >= _KNOWN_QUEUES:
                self.known.clear()
            self.known[name] = floor

    def meet(self, result: PGresult) -> None:
        if result.ntuples == 1 and result.nfields == 2 and result.fname(1) == b"epoch":
            self.epoch = result.get_value(0, 1) or b""

    def forget(self) -> None:
        self.known.clear()

    def begin_anew(self) -> None:
        self.epoch = b""
        self.forget()


class PostgresqlExecutor(Executor[RoutineCall, PGresult]):
    def __init__(
        self,
        transport: Transport[RoutineCall, PGresult],
        dialler: Dialler,
        runtime: Runtime,
        routines: Routines,
        floors: Floors,
    ) -> None:
        super().__init__(runtime)
        self._transport = transport
        self.take_now, self.give = transport.take_now, transport.give
        self._dialler = dialler
        self.routines = routines
        self.floors = floors
        self._has_begun = False

    def begin(self, found: Any, call: RoutineCall, until: float) -> Awaitable[PGresult]:
        """Ask an AioConnection that `take_now` gave; it goes back by itself."""
        trip = self._dialler.round_trip
        reply: Awaitable[PGresult] = found.ask(call, min(max(until - self._runtime.now(), trip.least), trip.attempt))
        return reply

    async def ask_once(self, call: RoutineCall, until: float) -> PGresult:
        try:
            result = await self._transport.exchange(call, until)
        except Refusal as refusal:
            result = await self._insist(call, refusal, until)
        if not self.floors.epoch:
            self.floors.meet(result)
        return result

    ask = ask_once

    async def words(self, call: RoutineCall, until: float, least: int = 2) -> list[bytes]:
        """What a routine answers, of a question that may be asked twice."""
        return words_of((await self.ask_often(call, until))[0], least)

    async def hears(self, subscriber: PostgresqlSubscriber | None, until: float, *, touching: bool = True) -> bool:
        """Whether messages reach waiters. `touching`: this may also clean up, and create missing tables."""
        if subscriber is None:
            return False
        if subscriber.hears() or subscriber.is_deaf():
            return subscriber.hears()
        subscriber.begin()
        if touching and not self._has_begun:  # it connects beside us, while this makes what is missing
            await self.ask_often(RoutineCall(self.routines.sweep, ()), until)
            self._has_begun = True

        async def send(channel: str, text: str) -> None:
            await self.ask_often(RoutineCall(self.routines.notify, (channel.encode(), text.encode())), until)

        return await subscriber.ready(send, until)

    def now(self) -> float:
        return self._runtime.now()

    async def follow(
        self, subscriber: PostgresqlSubscriber | None, name: str, seen: int, client: bytes, key: bytes, until: float
    ) -> list[bytes]:
        """Note who is to be told, under its key, once the queue of that name has another first holder than `seen`; what
        stands there now. It is told nothing where notifications do not arrive."""
        hears = await self.hears(subscriber, until)
        patience = max(min(until - self._runtime.now(), 3600.0), 0.0)
        values = (
            name.encode(), b"%d" % self.floors.of(name), b"%d" % seen, key, client if hears else b"",
            b"%d" % (patience * MICROSECONDS), self.floors.epoch,
        )  # fmt: skip
        return await self.words(RoutineCall(self.routines.follow, values), until, 3)

    async def identity(self, until: float) -> str:
        result, _ = await self.ask_often(RoutineCall(self.routines.identity, ()), until)
        id = result.get_value(0, 1) if result.ntuples == 1 else None
        if id is None:
            raise strange()
        return f"postgresql:{id.decode(errors='replace')}"

    def is_direct(self) -> bool:
        """Whether it was the server itself that answered last."""
        return self._dialler.is_direct

    async def connect(self, until: float) -> None:
        await self._transport.connect(until)

    def round_trip(self) -> float:
        return self._dialler.round_trip.expected

    def close(self) -> None:
        self._transport.close()

    async def _insist(self, call: RoutineCall, refusal: Refusal, until: float) -> PGresult:
        pause, made = FIRST_PAUSE, False
        while True:
            code = refusal.code
            if code in MISSING and not made:
                await self.make(refusal)
                made = True
            elif code == NOT_COMMITTED_READS and not self._dialler.is_stated:
                self._dialler.is_stated = True
                self._transport.renew()
            elif code == REPLACED:
                self.floors.begin_anew()
                raise replaced()
            elif code in UNPREPARED and not self._dialler.is_pooled:
                self._dialler.is_pooled = True
                self._transport.renew()
            elif refusal.is_crossed() and self._runtime.now() + pause < until:
                if refusal.is_elsewhere():
                    self._dialler.elsewhere()
                    self._transport.renew()
                await self.pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                raise final(refusal)
            try:
                return await self._ask_again(call, refusal, until)
            except Refusal as next_one:
                refusal = next_one

    async def _ask_again(self, call: RoutineCall, refused: Refusal, until: float) -> PGresult:
        try:
            return await self._transport.exchange(call, until)
        except StoreUnavailable:
            if not refused.is_crossed() or self._runtime.now() < until:
                raise
            raise final(refused) from None  # it says more than that the time was too short for this answer

    async def make(self, missing: Refusal) -> None:
        """Create the tables, under one lock. Also for a caller that has less time: others need them too."""
        until = self._runtime.now() + _MAKING

        def work() -> None:
            connection = self._dialler.connect(until)
            try:
                connection.simple(self.routines.ddl().encode(), until)
            finally:
                connection.close()

        try:
            await self._runtime.offload(work)
        except Refusal as refusal:
            if refusal.is_crossed() or refusal.code == OTHER_LAYOUT:
                raise final(refusal) from None
            what = f"the tables are missing ({missing.text}), and could not be created: {refusal.text} ({refusal.code})"
            raise StoreError(
                what, step="let an administrator run the statements that `dibs doctor --ddl` prints"
            ) from None


def words_of(result: PGresult, least: int = 2) -> list[bytes]:
    """The words of the one value that a routine gives: at least `least`; the first is the server's time."""
    value = result.get_value(0, 0) if result.ntuples == 1 else None
    words = [] if value is None else value.split(b" ")
    if len(words) < least or not words[0].isdigit():
        raise strange()
    return words
