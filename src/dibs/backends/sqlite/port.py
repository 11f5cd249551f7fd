"""One connection as seams 2 and 3 use it: steps, reads, waiting for a change, and telling others of one.

In asyncio a step is tried in the loop, and goes on in the client's own thread only if it finds the file busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from dibs.backends.ledger import Wake
from dibs.backends.sqlite import database
from dibs.backends.sqlite.database import Busy, Database
from dibs.backends.sqlite.table import BlockUsedUp, SqliteTable
from dibs.core.cells import Spot
from dibs.core.line import Me
from dibs.core.runtime import Runtime
from dibs.info import Finding

T = TypeVar("T")
Told = tuple[T, list[tuple[Wake, str | None]]]
"""An answer, and who is to be woken, with the address."""
GLANCE = 1.0
"""How often who watches looks for itself: a leader can die without a word, and a message can get lost."""


class Home(Protocol):
    """What the ports of one client have in common: see store.py."""

    unwatched: deque[tuple[Spot, bytes]]
    """Whom a change need not be told any more; the next who watches something strikes them out."""

    def now(self) -> float: ...

    def wake(self, wakes: list[tuple[Wake, str | None]], me: Me) -> None: ...

    def doctor(self, until: float) -> list[Finding]: ...


class Port:
    def __init__(self, store: Home, db: Database, runtime: Runtime, me: Me) -> None:
        self._store = store
        self._db = db
        self._runtime = runtime
        self.me = me
        self.is_blocking = runtime.soon is None

    async def step(
        self, work: Callable[[SqliteTable, float], T], until: float, *, durable: bool = False, urgent: bool = False
    ) -> T:
        done: T | Busy
        try:
            if durable:  # that one waits for the disk: not in a loop
                done = await self._runtime.offload(lambda: self._db.attempt(work, durable=True))
            else:
                done = self._db.attempt(work)
        except BlockUsedUp:
            done = database.BUSY
        begun = self._store.now()
        while isinstance(done, Busy):
            # In slices: in asyncio all tasks share one thread for this, and a patient one must not delay a hasty one.
            done = await self._runtime.offload(
                lambda: self._db.insist(work, begun, until, durable=durable, urgent=urgent)
            )
            if isinstance(done, Busy):
                self._db.check_patience(until)
        return done

    async def tell(
        self, work: Callable[[SqliteTable, float], Told[T]], until: float, *, durable: bool = False,
        urgent: bool = False,
    ) -> T:  # fmt: skip
        """A step that others are to hear of, once it is committed."""
        answer, wakes = await self.step(work, until, durable=durable, urgent=urgent)
        if wakes:
            self._store.wake(wakes, self.me)
        return answer

    async def read(self, work: Callable[[SqliteTable, float], T], until: float) -> T:
        return await self._runtime.offload(lambda: self._db.read(work, until))

    async def doctor(self, until: float) -> list[Finding]:
        return await self._runtime.offload(lambda: self._store.doctor(until))

    async def watch(self, spot: Spot, key: bytes, changed: Callable[[SqliteTable, float], bool], until: float) -> None:
        """Until it is changed, or whoever changed something there tells us."""
        over = list(self._store.unwatched)

        def begin(table: SqliteTable, now: float) -> bool:
            for which in over:
                table.unwatch(*which)
            if changed(table, now):
                return True
            table.watch(spot, key)
            return False

        try:
            is_changed = await self.step(begin, until)
            for which in over:
                with suppress(ValueError):  # another thread came first
                    self._store.unwatched.remove(which)
            if is_changed:
                return
            while (now := self._store.now()) < until:
                if await self.me.inbox.wait(key, min(until, now + GLANCE)) is not None:
                    return
                if await self.read(changed, until):
                    return
        finally:
            self._store.unwatched.append((spot, key))  # an interrupt awaits nothing: the next step removes it

    def close(self) -> None:
        self._db.close()


def addressed(table: SqliteTable, answer: T, wakes: list[Wake]) -> Told[T]:
    """Only the step that wakes somebody can look up where."""
    if not wakes:
        return answer, []
    known = [(wake, table.client(wake.client)) for wake in wakes]
    return answer, [(wake, None if client is None else client.address) for wake, client in known]
