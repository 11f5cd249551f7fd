"""Seams 2 and 3 over one connection: each verb is one atomic step of the file, then the wake-ups.

In asyncio a step is tried in the loop. It goes on in the client's own thread only if it finds the file busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

from dibs.backends.common import atomic_cells, atomic_queue
from dibs.backends.common.atomic_queue import QUEUES, Wake
from dibs.backends.sqlite import database
from dibs.backends.sqlite.database import Busy, Database, Home
from dibs.backends.sqlite.table import BlockUsedUp, SqliteTable
from dibs.core.cells import DURABLE, CellKey, CellValue, Write
from dibs.core.queue import ClientIdentity, Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError
from dibs.info import Finding, LockInfo

T = TypeVar("T")
POLL_INTERVAL = 1.0
"""How often, in seconds, a watcher looks for itself: a leader can die silently, and a message can get lost."""


class _Steps:
    """Steps, reads and waiting for a change, on one connection."""

    def __init__(self, store: Home, db: Database, runtime: Runtime, me: ClientIdentity) -> None:
        self._store = store
        self._db = db
        self._runtime = runtime
        self._me = me

    async def _step(
        self, work: Callable[[SqliteTable, float], T], until: float, *, durable: bool = False, urgent: bool = False
    ) -> T:
        done: T | Busy
        try:
            if durable:  # it waits for the disk: not in a loop
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

    async def _tell(
        self, verb: Callable[[SqliteTable, float], tuple[T, list[Wake]]], until: float, *, durable: bool = False,
        urgent: bool = False,
    ) -> T:  # fmt: skip
        """A step, and the wake-ups that follow from it once it is committed."""
        answer, wakes = await self._step(verb, until, durable=durable, urgent=urgent)
        if wakes:
            self._store.wake(wakes, self._me)
        return answer

    async def _read(self, work: Callable[[SqliteTable, float], T], until: float) -> T:
        return await self._runtime.offload(lambda: self._db.read(work, until))

    async def _await(
        self, cell_key: CellKey, key: bytes, changed: Callable[[SqliteTable, float], bool], until: float
    ) -> None:
        """Wait until it is changed, or until the process that changed something there says so."""
        over = list(self._store.unwatched)

        def begin(table: SqliteTable, now: float) -> bool:
            for which in over:
                table.unwatch(*which)
            if changed(table, now):
                return True
            table.watch(cell_key, key)
            return False

        try:
            is_changed = await self._step(begin, until)
            for which in over:
                with suppress(ValueError):  # another thread came first
                    self._store.unwatched.remove(which)
            if is_changed:
                return
            while (now := self._store.now()) < until:
                if await self._me.inbox.wait(key, min(until, now + POLL_INTERVAL)) is not None:
                    return
                if await self._read(changed, until):
                    return
        finally:
            self._store.unwatched.append((cell_key, key))  # an interrupt awaits nothing: the next step removes it

    def close(self) -> None:
        self._db.close()


class SqliteQueue(_Steps):
    """See core/queue.py."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | None:
        standing = self._db.at_once(SqliteTable.join, claim, place)
        if standing is None:
            claim.asked = False  # nothing was written
        return standing

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        wakes = self._db.at_once(SqliteTable.leave, claim, None)
        if wakes:
            self._store.wake(wakes, self._me)
        return None if wakes is None else True

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        return await self._tell(lambda table, now: atomic_queue.join(table, claim, place, now), until)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | None]:
        """Most looks of waiters write nothing, and readers wait for nobody. Not in a loop, where a reader goes to a
        thread."""
        if self._runtime.call_soon is None:
            seen = await self._read(lambda table, now: atomic_queue.look(table, claims, now), until)
            if seen is not None:
                return seen
        return await self._tell(lambda table, now: atomic_queue.renew(table, claims, now), until)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._tell(lambda table, now: (None, atomic_queue.amend(table, claim, weight, now)), until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        return await self._tell(lambda table, now: atomic_queue.leave(table, claim, answered, now), until, urgent=True)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        return await self._tell(lambda table, now: atomic_queue.leave_all(table, leaving, now), until, urgent=True)

    async def connect(self, until: float) -> None:
        """The file is opened at first use: that takes a millisecond."""

    def round_trip(self) -> float:
        return 0.0

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        return await self._read(lambda table, now: _seen(table, name, now), until)

    async def page(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await self._read(
            lambda table, now: atomic_queue.page(table, table.queues(prefix, after), now, datetime.now(UTC)), until
        )

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await self._tell(lambda table, now: atomic_queue.revoke(table, name, token, now), until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await self._tell(lambda table, now: atomic_queue.evict(table, name, token, now), until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._await(
            CellKey(QUEUES, name), key, lambda table, now: atomic_queue.foremost(table, name, now)[0] != seen, until
        )

    async def identity(self, until: float) -> str:
        return await self._read(lambda table, _: table.identity(), until)

    async def doctor(self, until: float) -> list[Finding]:
        return await self._runtime.offload(lambda: self._store.doctor(until))


class SqliteCells(_Steps):
    """See core/cells.py. Spaces that must survive a power cut are synced to the disk before the answer."""

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        return await self._read(lambda table, _: table.cell(cell_key), until)

    async def put(self, write: Write, until: float) -> int:
        durable = write.cell_key.space in DURABLE
        return await self._tell(lambda table, now: atomic_cells.put(table, write, now), until, durable=durable)

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        await self._await(cell_key, key, lambda table, _: table.cell(cell_key).version != version, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        return await self._step(lambda table, _: atomic_cells.admit(table, name, token, shared), until, durable=True)


def _seen(table: SqliteTable, name: str, now: float) -> LockInfo:
    table.with_description = True
    try:
        return atomic_queue.view(table, name, now, datetime.now(UTC))
    finally:
        table.with_description = False
