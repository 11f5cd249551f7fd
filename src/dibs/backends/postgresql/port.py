"""Questions to the server, whatever it takes: seams 2 and 3 speak through this.

Every request ends done, not done or unknown. What the server refused is not done, and is asked again here until the
caller's instant (see answers.py). A connection that breaks leaves the outcome unknown: that is StoreUnavailable, and
whoever asked must know of it. The tables and routines are made when they are found missing.
"""

from __future__ import annotations

from typing import Protocol

from psycopg.pq.abc import PGresult

from dibs.backends.postgresql.answers import MISSING, NOT_COMMITTED_READS, SET_BACK, UNPREPARED, Refusal, final, strange
from dibs.backends.postgresql.ear import Ear
from dibs.backends.postgresql.link import MICROSECONDS, Call, Dialer
from dibs.backends.postgresql.routines import Routines
from dibs.core.deadline import FIRST_PAUSE, LONGEST_PAUSE
from dibs.core.line import Unsent
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_MAKING = 10.0
"""Seconds that the making of the tables may take, whoever else is at it."""
_KNOWN_LINES = 10_000


class Wire(Protocol):
    """pool.py for threads, stream.py for event loops. `until` may be past: what has come by then is still read."""

    is_stated: bool

    async def exchange(self, call: Call, until: float) -> PGresult: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close what is open, and touch nothing else of the parent's."""


class Floors:
    """By name: the lowest ticket that may still stand in its line. Where claims of long ago cannot be cleaned up yet,
    because a transaction that began before stays open elsewhere, nobody need walk over what is left of them."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        return self._known.get(name, 0)

    def learn(self, name: str, said: bytes) -> None:
        floor = int(said) if said.isdigit() else 0
        if floor:
            if len(self._known) >= _KNOWN_LINES:
                self._known.clear()
            self._known[name] = floor

    def forget(self) -> None:
        self._known.clear()


class Port:
    def __init__(self, wire: Wire, dialer: Dialer, runtime: Runtime, routines: Routines, floors: Floors) -> None:
        self._wire = wire
        self._dialer = dialer
        self._runtime = runtime
        self.routines = routines
        self.floors = floors
        self._has_begun = False

    async def ask(self, call: Call, until: float) -> PGresult:
        """Once it may be done, an unknown outcome is raised."""
        try:
            return await self._wire.exchange(call, until)
        except Refusal as refusal:
            return await self._insist(call, refusal, until)

    async def ask_often(self, call: Call, until: float) -> tuple[PGresult, bool]:
        """Asked again if a connection broke: for what may be done twice. And whether an earlier copy may have been done
        already."""
        pause, is_repeated = FIRST_PAUSE, False
        while True:
            try:
                return await self.ask(call, until), is_repeated
            except StoreUnavailable as error:
                if self._runtime.now() + pause >= until:
                    raise
                is_repeated = is_repeated or not isinstance(error, Unsent)
            await self.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def words(self, call: Call, until: float, least: int = 2) -> list[bytes]:
        """What a routine answers, of a question that may be asked twice."""
        return words_of((await self.ask_often(call, until))[0], least)

    async def pause(self, pause: float) -> None:
        await self._runtime.sleep(pause + self._runtime.jitter(pause))

    async def hears(self, ear: Ear | None, until: float, *, touching: bool = True) -> bool:
        """Whether who waits can be told by messages. `touching`: it may also clean up, and make what is missing."""
        if ear is None:
            return False
        if ear.hears() or ear.is_deaf():
            return ear.hears()
        ear.begin()
        if touching and not self._has_begun:  # it connects beside us, while this makes what is missing
            await self.ask_often(Call(self.routines.sweep, ()), until)
            self._has_begun = True

        async def send(channel: str, text: str) -> None:
            await self.ask_often(Call(self.routines.notify, (channel.encode(), text.encode())), until)

        return await ear.ready(send, until)

    def now(self) -> float:
        return self._runtime.now()

    async def follow(
        self, ear: Ear | None, name: str, seen: int, client: bytes, key: bytes, until: float
    ) -> list[bytes]:
        """Note who is to be told, under its key, once the line of that name has another first holder than `seen`; what
        stands there now. It is told nothing where messages do not get through."""
        hears = await self.hears(ear, until)
        patience = max(min(until - self._runtime.now(), 3600.0), 0.0)
        values = (
            name.encode(), b"%d" % self.floors.of(name), b"%d" % seen, key, client if hears else b"",
            b"%d" % (patience * MICROSECONDS),
        )  # fmt: skip
        return await self.words(Call(self.routines.follow, values), until, 3)

    async def identity(self, until: float) -> str:
        result, _ = await self.ask_often(Call(self.routines.identity, ()), until)
        id = result.get_value(0, 1) if result.ntuples == 1 else None
        if id is None:
            raise strange()
        return f"postgresql:{id.decode(errors='replace')}"

    def is_direct(self) -> bool:
        """Whether it was the server itself that answered last."""
        return self._dialer.is_direct

    def close(self) -> None:
        self._wire.close()

    async def _insist(self, call: Call, refusal: Refusal, until: float) -> PGresult:
        pause, made = FIRST_PAUSE, False
        while True:
            code = refusal.code
            if code in MISSING and not made:
                await self.make(refusal)
                made = True
            elif code == NOT_COMMITTED_READS and not self._wire.is_stated:
                self._wire.is_stated = True
            elif code == SET_BACK:
                self.floors.forget()
                raise StoreUnavailable("the store's tickets were set back")
            elif code in UNPREPARED and not self._dialer.is_pooled:
                self._dialer.is_pooled = True
            elif refusal.is_crossed() and self._runtime.now() + pause < until:
                if refusal.is_elsewhere():
                    self._dialer.elsewhere()
                await self.pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                raise final(refusal)
            try:
                return await self._wire.exchange(call, until)
            except Refusal as next_one:
                refusal = next_one

    async def make(self, missing: Refusal) -> None:
        """Under one lock, whoever else does so now. Also by a caller who has less time: the others need it too."""
        until = self._runtime.now() + _MAKING

        def work() -> None:
            link = self._dialer.link(until)
            try:
                link.simple(self.routines.ddl().encode(), until)
            finally:
                link.close()

        try:
            await self._runtime.offload(work)
        except Refusal as refusal:
            if refusal.is_crossed():
                raise final(refusal) from None
            what = f"the tables are missing ({missing.text}), and could not be made: {refusal.text} ({refusal.code})"
            raise StoreError(what, step="have what `dibs doctor --ddl` prints run by somebody who may") from None


def words_of(result: PGresult, least: int = 2) -> list[bytes]:
    """The words of the one value that a routine gives: at least so many, of which the first is the server's time."""
    value = result.get_value(0, 0) if result.ntuples == 1 else None
    words = [] if value is None else value.split(b" ")
    if len(words) < least or not words[0].isdigit():
        raise strange()
    return words
