"""The `sqlite:///` store: one file, many processes of one machine, no server.

`sqlite:///relative.db`, `sqlite:////absolute.db`. Promise: at most one valid holder among the processes that use the
file, by lease, and at once where the kernel can tell that a holder's process is dead. Beside the file lies a private
directory `<file>.d` with the turn, and a liveness file and a socket per client.
"""

from __future__ import annotations

import _thread
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, TypeVar
from weakref import WeakSet

from dibs.backends import ledger
from dibs.backends.ledger import Wake
from dibs.backends.sqlite import database, files
from dibs.backends.sqlite.database import Busy, Database
from dibs.backends.sqlite.presence import Others, Presence, sweep
from dibs.backends.sqlite.table import BlockUsedUp, Client, SqliteTable
from dibs.core.line import ATOMIC_TRY, FAIR, PERMITS, RW, Line, Me, Place, Signal, read_signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError
from dibs.info import LockInfo
from dibs.runtime.threads import boottime
from dibs.url import Url

T = TypeVar("T")


class SqliteStore:
    """One client's share in a file: its presence, and what its connections have in common."""

    now = staticmethod(boottime)
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY})

    def __init__(self, url: Url) -> None:
        if url.host or url.port is not None or url.username is not None:
            raise ValueError("a sqlite URL has three slashes and a path: sqlite:///relative.db, sqlite:////absolute.db")
        self._default = url.query == (("default", "1"),)
        if not url.path.strip("/") or (url.query and not self._default):
            raise ValueError("a sqlite URL is sqlite:/// and the path of a file, without a query")
        self.path = Path(url.path[1:]).absolute()
        self.directory = self.path.with_name(self.path.name + ".d")
        self.shown = f"sqlite:///{url.path[1:]}"
        self.generation = 0
        """Raised whenever the file is found removed or replaced: connections of an older one are not used."""
        self._fresh()

    def _fresh(self) -> None:
        self.me = b""
        self.tombs: dict[bytes, float] = {}
        self.others = Others(self.directory, boottime)
        self.presence: Presence | None = None
        self._inode: tuple[int, int] | None = None
        self._settling = _thread.allocate_lock()
        self._forking = False
        self._databases: WeakSet[Database] = WeakSet()
        self._client: Me | None = None

    def open(self, runtime: Runtime, me: Me) -> Line:
        self.me = me.id
        self._client = me
        made = Database(self)
        self._databases.add(made)
        return SqliteLine(self, made, runtime, me)

    def close(self) -> None:
        presence = self.presence
        if presence is not None:
            made = Database(self)
            if self._inode is not None:
                with suppress(StoreError):
                    made.persist(lambda table, _: table.unregister(), self.now() + 0.5)
            made.close()
            for one in list(self._databases):
                one.close()
            self.presence = None
            presence.close()

    def replaced(self, generation: int) -> None:
        """A connection of that generation found another file at the path, or none."""
        if generation == self.generation:
            self.generation += 1
            self._inode = None

    def settle_in(self) -> database.Inode | None:
        """Make or recognise the file, and be present in it: once per file. None: busy, for a moment."""
        if self._inode is not None and self.presence is not None:
            return self._inode
        known: set[str] | Busy
        with self._settling:
            if self._inode is not None and self.presence is not None:
                return self._inode
            try:
                files.prepare(self.path, make_directory=self._default)
                if not self.directory.exists():
                    database.recognise(self.path)
                files.private_directory(self.directory)
                if self.presence is None:
                    self.presence = Presence(self.directory, self.me)
                with database.turn(self.directory):
                    found = files.check(self.path)
                    known = database.begin(self.path, (found.st_dev, found.st_ino), self._move_in)
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                raise StoreError(
                    f"cannot settle beside the database: {error.strerror}", step="make its directory writable"
                ) from None
            if isinstance(known, Busy):
                return None
            self._inode = (found.st_dev, found.st_ino)
            if self._client is not None:
                self._client.inbox.listen(self.presence)
        with suppress(OSError):
            sweep(self.directory, known)
        return self._inode

    def _move_in(self, connection: sqlite3.Connection, version: int) -> set[str]:
        """Inside the first transaction on a file: make its tables if it is new, be known, sweep what the dead left."""
        presence = self.presence
        assert presence is not None
        table = SqliteTable(connection, self.me, self.tombs, self.others.dead)
        wall = time.time_ns() // 1000
        if version == 0:
            table.create(os.urandom(8).hex(), wall)
        table.note_boot(_boot(), _clock(), self.now(), wall)
        table.register(Client(presence.live, presence.dev, presence.ino, presence.address))
        return table.sweep(self.now(), lambda live: (self.directory / live).exists())

    def wake(self, wakes: Sequence[tuple[Wake, str | None]], me: Me) -> None:
        for wake, address in wakes:
            if wake.client == me.id:
                me.inbox.deliver(wake.id, wake.signal.value)
            elif address is not None and self.presence is not None:
                self.presence.send(address, wake.id + wake.signal.value)

    def before_fork(self) -> None:
        self._forking = self._settling.acquire(timeout=5)
        for one in list(self._databases):
            one.before_fork()

    def after_fork(self, child: bool) -> None:
        if child:
            if self.presence is not None:
                self.presence.drop()
            self._fresh()
            return
        for one in list(self._databases):
            one.after_fork()
        if self._forking:
            self._forking = False
            self._settling.release()


class SqliteLine:
    """Seam 2 over one connection. In asyncio what finds the file busy goes on in the client's own thread."""

    def __init__(self, store: SqliteStore, db: Database, runtime: Runtime, me: Me) -> None:
        self._store = store
        self._db = db
        self._runtime = runtime
        self._me = me

    async def join(self, claim: Claim, place: Place, until: float) -> Standing | None:
        standing, wakes = await self._step(
            lambda table, now: _told(table, *ledger.join(table, claim, place, now)), until
        )
        if wakes:
            self._store.wake(wakes, self._me)
        return standing

    async def renew(self, claims: Sequence[Claim], until: float) -> list[Standing | None]:
        standings, wakes = await self._step(lambda table, now: _told(table, *ledger.renew(table, claims, now)), until)
        self._store.wake(wakes, self._me)
        return standings

    async def amend(self, claim: Claim, weight: int, until: float) -> None:
        _, wakes = await self._step(
            lambda table, now: _told(table, None, ledger.amend(table, claim, weight, now)), until
        )
        self._store.wake(wakes, self._me)

    async def leave(self, claim: Claim, answered: bool, until: float) -> None:
        _, wakes = await self._step(
            lambda table, now: _told(table, None, ledger.leave(table, claim, answered, now)), until
        )
        if wakes:
            self._store.wake(wakes, self._me)

    async def watch(self, claim: Claim, until: float) -> Signal | None:
        return read_signal(await self._me.inbox.wait(claim.id, until))

    async def line(self, name: str, until: float) -> LockInfo:
        return await self._runtime.offload(lambda: self._db.read(lambda table, now: _seen(table, name, now), until))

    async def names(self, prefix: str, after: str, until: float) -> list[str]:
        return await self._runtime.offload(lambda: self._db.read(lambda table, _: table.names(prefix, after), until))

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await self._step(lambda table, now: ledger.revoke(table, name, token, now), until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        found, wakes = await self._step(lambda table, now: _told(table, *ledger.evict(table, name, token, now)), until)
        self._store.wake(wakes, self._me)
        return found

    async def identity(self, until: float) -> str:
        return await self._runtime.offload(lambda: self._db.read(lambda table, _: table.identity(), until))

    def close(self) -> None:
        self._db.close()

    async def _step(self, work: Callable[[SqliteTable, float], T], until: float) -> T:
        try:
            done = self._db.attempt(work)
        except BlockUsedUp:
            done = database.BUSY
        begun = self._store.now()
        while isinstance(done, Busy):
            # In slices: in asyncio all tasks share one thread for this, and a patient one must not delay a hasty one.
            done = await self._runtime.offload(lambda: self._db.insist(work, begun, until))
            if isinstance(done, Busy):
                self._db.check_patience(until)
        return done


def _told(table: SqliteTable, answer: T, wakes: list[Wake]) -> tuple[T, list[tuple[Wake, str | None]]]:
    """Who is to be woken, with the address, which only this step can look up."""
    if not wakes:
        return answer, []
    known = [(wake, table.client(wake.client)) for wake in wakes]
    return answer, [(wake, None if client is None else client.address) for wake, client in known]


def _seen(table: SqliteTable, name: str, now: float) -> LockInfo:
    table.with_about = True
    try:
        return ledger.view(table, name, now, datetime.now(UTC))
    finally:
        table.with_about = False


def _boot() -> str:
    """Which boot of the machine this is; where nobody tells, its time."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return str(round((time.time() - boottime()) / 60))


def _clock() -> str:
    """How far the clock that counts since boot is shifted in this process's time namespace."""
    try:
        offsets = Path("/proc/self/timens_offsets").read_text(encoding="ascii")
    except OSError:
        return ""
    return "".join("+".join(line.split()[1:]) for line in offsets.splitlines() if line.startswith("boottime"))
