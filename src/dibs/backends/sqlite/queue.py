"""`Queue` and `Cells` on one connection: each verb is one atomic step, then the wake-ups that follow from it.

In asyncio a step is tried in the event loop. It continues in the client's own thread only if the file is busy.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from dibs.backends.common import atomic_cells, atomic_queue
from dibs.backends.common.atomic_queue import QUEUES, Wake
from dibs.backends.sqlite.database import BUSY, Busy, Database
from dibs.backends.sqlite.registration import not_created
from dibs.backends.sqlite.table import HAS_FUNCTIONS, LEAVE, TAKE, WAIT, BlockUsedUp, SqliteTable
from dibs.core.cells import DURABLE, CellKey, CellValue, Write
from dibs.core.deadline import FOREVER
from dibs.core.queue import ELECTION, QUEUE, YOURS, ClientIdentity, Leave, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError
from dibs.info import Finding, LockInfo

T = TypeVar("T")
POLL_INTERVAL = 1.0
"""Seconds between the looks of a watcher: a leader can die without notice, and a message can get lost."""


class _Steps:
    """Atomic steps, reads and waits for a change, on one connection."""

    def __init__(self, new_database: Callable[[], Database], runtime: Runtime, me: ClientIdentity) -> None:
        self._new_database = new_database
        self._db = new_database()
        self._registration = self._db.registration
        self._runtime = runtime
        self._inbox = me.inbox

    async def _step(
        self, work: Callable[[SqliteTable, float], T], until: float, *, durable: bool = False, urgent: bool = False
    ) -> T:
        done: T | Busy
        try:
            if durable:  # it waits for the disk, so not in the event loop
                done = await self._runtime.offload(lambda: self._db.attempt(work, durable=True))
            else:
                done = self._db.attempt(work)
        except BlockUsedUp:
            done = BUSY
        begun = self._registration.now()
        while isinstance(done, Busy):
            # In slices: in asyncio all tasks share one thread, and a patient one must not delay the others.
            done = await self._runtime.offload(
                lambda: self._db.retry(work, begun, until, durable=durable, urgent=urgent)
            )
        return done

    async def _tell(
        self, verb: Callable[[SqliteTable, float], tuple[T, list[Wake]]], until: float, *, durable: bool = False,
        urgent: bool = False,
    ) -> T:  # fmt: skip
        """Run a step, and send its wake-ups after the commit."""
        reply, wakes = await self._step(verb, until, durable=durable, urgent=urgent)
        if wakes:
            self._registration.wake(wakes)
        return reply

    async def _read(self, work: Callable[[SqliteTable, float], T], until: float) -> T:
        return await self._runtime.offload(lambda: self._db.read(work, until))

    async def _await(
        self, cell_key: CellKey, key: bytes, changed: Callable[[SqliteTable, float], bool], until: float
    ) -> None:
        """Wait until `changed` is true, or until another client reports a change."""
        unwatched = self._registration.unwatched
        old = list(unwatched)

        def begin(table: SqliteTable, now: float) -> bool:
            for watcher in old:
                table.unwatch(*watcher)
            if changed(table, now):
                return True
            table.watch(cell_key, key)
            return False

        try:
            is_changed = await self._step(begin, until)
            for watcher in old:
                with suppress(ValueError):  # another thread removed it
                    unwatched.remove(watcher)
            if is_changed:
                return
            while (now := self._registration.now()) < until:
                if await self._inbox.wait(key, min(until, now + POLL_INTERVAL)) is not None:
                    return
                if await self._read(changed, until):
                    return
        finally:
            unwatched.append((cell_key, key))  # after an interrupt nothing may be awaited: the next step removes it

    def close(self) -> None:
        self._db.close()


class SqliteQueue(_Steps):
    """See core/queue.py."""

    _crowded: str | None = None
    """The name on which a claim had to wait last: the next one probably has to wait there, too."""

    def take_now(self, claim: Claim, place: Place, until: float) -> Standing | None:
        if claim.kind == ELECTION or claim.weight > claim.capacity:
            return None
        claim.asked = True
        standing = self._at_once(self._take, claim, place)
        if standing is None:
            claim.asked = False  # nothing was written
        return standing

    def leave_now(self, claim: Claim, until: float) -> bool | None:
        if claim.kind == ELECTION or claim.ticket is None:
            return None
        wakes = self._at_once(_leave, claim)
        if wakes:
            self._registration.wake(wakes)
        return None if wakes is None else True

    def _at_once(self, verb: Callable[..., T | None], *arguments: Any) -> T | None:
        """Run a verb whose statements commit by themselves. None: nothing was changed; take the general path."""
        db = self._db
        try:
            with db.mutex:
                if db.connection is None or db.generation != self._registration.generation or db.waits_for_disk:
                    return None
                found = os.stat(db.path)  # noqa: PTH116  (half the time of Path.stat)
                moved = (found.st_dev, found.st_ino) != db.inode
                if moved or self._registration.now() >= db.log_check_due or not HAS_FUNCTIONS:
                    return None
                fcntl.flock(db.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    return verb(db.table, *arguments)
                finally:
                    fcntl.flock(db.turn, fcntl.LOCK_UN)
        except OSError:  # the file was removed, or another process has the turn
            return None
        except sqlite3.Error as error:
            db.busy_or_raise(error)
            return None

    def _take(self, table: SqliteTable, claim: Claim, place: Place) -> Standing | None:
        """Hold an empty queue, or wait behind its holder. The likelier of the two statements runs first."""
        base, clock = table.base, table.clock
        is_free = claim.name != self._crowded
        for holds in (is_free, not is_free):
            if holds or place is QUEUE:
                length = claim.lease if holds else claim.waiting
                clock.clear()
                if table.execute(TAKE if holds else WAIT, (
                    claim.name, claim.by, claim.id, table.last - base + 1, table.reserved - base - 1, base,
                    claim.client, claim.kind, claim.capacity, claim.weight, length, claim.description,
                )).rowcount:  # fmt: skip
                    table.last = claim.ticket = base + int(clock[0] * 1e6)
                    self._crowded = None if holds else claim.name
                    return Standing(claim.ticket, holds, length, FOREVER if holds else table.poll_interval, False)
        return None

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        return await self._tell(lambda table, now: atomic_queue.join(table, claim, place, now), until)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Standing | None]:
        """Read first: most looks of waiters need no write, and readers wait for no writer. In asyncio a read would go
        to a thread, so there it is left out."""
        if self._runtime.call_soon is None:
            seen = await self._read(lambda table, now: atomic_queue.look(table, claims, now), until)
            if seen is not None:
                return seen
        return await self._tell(lambda table, now: atomic_queue.renew(table, claims, now), until)

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        await self._tell(lambda table, now: atomic_queue.amend(table, claim, weight, now), until)

    async def leave(self, claim: Claim, answered: bool, until: float) -> bool:
        return await self._tell(lambda table, now: atomic_queue.leave(table, claim, answered, now), until, urgent=True)

    async def leave_all(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        return await self._tell(lambda table, now: atomic_queue.leave_all(table, leaving, now), until, urgent=True)

    async def connect(self, until: float) -> None:
        """Does nothing: the file is opened at first use, which takes a millisecond."""

    def round_trip(self) -> float:
        return 0.0

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._inbox.wait(claim.id, until))

    async def inspect(self, name: str, until: float) -> LockInfo:
        return await self._read(lambda table, now: _view(table, name, now), until)

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
        return await self._runtime.offload(lambda: self._examine(until))

    def _examine(self, until: float) -> list[Finding]:
        """Use a separate connection, because this may take a while."""
        from dibs.backends.sqlite.doctor import examine  # noqa: PLC0415  (few programs ask)

        db = self._new_database()
        try:
            return db.look(lambda connection, table: examine(self._registration, connection, table), until)
        except StoreError:
            raise
        except OSError as error:
            raise not_created(error) from None
        finally:
            db.close()


class SqliteCells(_Steps):
    """See core/cells.py. A write to a durable space is on the disk before the reply."""

    async def get(self, cell_key: CellKey, until: float) -> CellValue:
        return await self._read(lambda table, _: table.cell(cell_key), until)

    async def put(self, write: Write, until: float) -> int:
        durable = write.cell_key.space in DURABLE
        return await self._tell(lambda table, now: atomic_cells.put(table, write, now), until, durable=durable)

    async def watch(self, cell_key: CellKey, version: int, key: bytes, until: float) -> None:
        await self._await(cell_key, key, lambda table, _: table.cell(cell_key).version != version, until)

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        return await self._step(lambda table, _: atomic_cells.admit(table, name, token, shared), until, durable=True)


def _leave(table: SqliteTable, claim: Claim) -> list[Wake] | None:
    """Leave, and give the lock to at most the next claim. None: nothing was changed."""
    freed = table.freed
    freed.clear()
    table.clock.clear()
    is_exclusive = claim.weight == claim.capacity
    if not table.execute(LEAVE, (claim.name, claim.ticket, claim.id, is_exclusive)).rowcount:
        return None
    return [Wake(freed[0], freed[1], YOURS)] if freed else []


def _view(table: SqliteTable, name: str, now: float) -> LockInfo:
    table.with_description = True
    try:
        return atomic_queue.view(table, name, now, datetime.now(UTC))
    finally:
        table.with_description = False
