"""The `sqlite:///` store: one file, many processes of one machine, no server.

`sqlite:///relative.db`, `sqlite:////absolute.db`. Promise: at most one valid holder among the processes that use the
file, by lease, and at once where the kernel can tell that a holder's process is dead. Beside the file lies a private
directory `<file>.d` with the turn, and a liveness file and a socket per client.
"""

from __future__ import annotations

import _thread
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from dibs.backends.ledger import Tombs, Wake
from dibs.backends.sqlite import files, opening
from dibs.backends.sqlite.database import Database, Inode
from dibs.backends.sqlite.line import SqliteCells, SqliteLine
from dibs.backends.sqlite.presence import MOST, Others, Presence, sweep
from dibs.backends.sqlite.table import Client, Leftovers, SqliteTable
from dibs.core.cells import Cells, Spot
from dibs.core.line import ATOMIC_TRY, CELLS, FAIR, LEASES, PERMITS, RECORDS, RW, Line, Me
from dibs.core.runtime import Runtime
from dibs.errors import Closed, StoreError
from dibs.info import Finding
from dibs.runtime.living import Living
from dibs.runtime.threads import boottime
from dibs.url import Url


class SqliteStore:
    """One client's share in a file: its presence, and what its connections have in common."""

    now = staticmethod(boottime)
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, RECORDS})

    def __init__(self, url: Url) -> None:
        if url.host or url.port is not None or url.username is not None:
            raise ValueError("a sqlite URL has three slashes and a path: sqlite:///relative.db, sqlite:////absolute.db")
        self._default = url.query == (("default", "1"),)
        if not url.path.strip("/") or (url.query and not self._default):
            raise ValueError("a sqlite URL is sqlite:/// and the path of a file, without a query")
        self.path = Path(url.path[1:]).absolute()
        self.directory = self.path.with_name(self.path.name + ".d")
        self.shown = f"sqlite:///{self.path}"
        self.generation = 0
        """Raised whenever the file is found removed or replaced: connections of an older one are not used."""
        self._fresh()

    def _fresh(self) -> None:
        self.me = b""
        self.tombs = Tombs()
        self.unwatched: deque[tuple[Spot, bytes]] = deque()
        self.others = Others(self.directory, boottime)
        self.presence: Presence | None = None
        self._inode: Inode | None = None
        self._leftovers = Leftovers([], [], set())
        self._known_in = -1
        self._settling = _thread.allocate_lock()
        self._forking = False
        self._databases: Living[Database] = Living()
        self._client: Me | None = None
        self._closed = False

    def open(self, runtime: Runtime, me: Me) -> Line:
        self.me = me.id
        self._client = me
        return SqliteLine(self, self._database(), runtime, me)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        return SqliteCells(self, self._database(), runtime, me)

    def _database(self) -> Database:
        made = Database(self)
        self._databases.add(made)
        return made

    def doctor(self, until: float) -> list[Finding]:
        """On a connection of its own: what takes a while must be in nobody's way."""
        from dibs.backends.sqlite.doctor import Patient, examine  # noqa: PLC0415  (few programs ask)

        patient = Patient(self.path, self.directory, self._default, _clock())
        made = self._database()
        try:
            return made.look(lambda connection, table: examine(patient, connection, table), until)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise _unsettled(error) from None
        finally:
            made.close()

    def close(self) -> None:
        if self._inode is not None and self.is_known(self.generation):
            made = Database(self)
            with suppress(StoreError):
                made.persist(lambda table, _: table.unregister(), self.now() + 0.5)
            made.close()
        self._closed = True  # a thread that still looks must not move in again
        for one in self._databases.now():
            one.close()
        presence, self.presence = self.presence, None
        if presence is not None:
            presence.close()

    def replaced(self, generation: int) -> None:
        """A connection of that generation found another file at the path, or none."""
        if generation == self.generation:
            self.generation += 1
            self._inode = None

    def settle_in(self) -> Inode | None:
        """Make or recognise the file, and be present in it: once per file. None: busy, for a moment."""
        if self._inode is not None and self.presence is not None:
            return self._inode
        with self._settling:
            if self._closed:
                raise Closed("this client was closed", step="connect again")
            if self._inode is not None and self.presence is not None:
                return self._inode
            try:
                files.prepare(self.path, make_directory=self._default)
                if not self.directory.exists():
                    opening.recognise(self.path)
                files.private_directory(self.directory)
                if self.presence is None:
                    self.presence = Presence(self.directory, self.me)
                found = files.check(self.path)
                inode = (found.st_dev, found.st_ino)
                if not opening.begin(self.path, inode, self.directory, self._create, self._look):
                    return None
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                raise _unsettled(error) from None
            self._inode = inode
            if self._client is not None:
                self._client.inbox.listen(self.presence)
        return self._inode

    def _create(self, connection: sqlite3.Connection) -> None:
        self._table(connection).create(os.urandom(8).hex(), _wall())

    def _look(self, connection: sqlite3.Connection) -> None:
        """What the dead left is looked for before the write lock is taken: that takes longer, the more clients there
        are."""
        self._leftovers = self._table(connection).leftovers(self.now(), lambda live: (self.directory / live).exists())

    def _table(self, connection: sqlite3.Connection) -> SqliteTable:
        return SqliteTable(connection, self.me, self.tombs, self.others, self.now)

    def is_known(self, generation: int) -> bool:
        """Whether the file of that generation knows this client."""
        return generation == self._known_in

    def move_in(self, table: SqliteTable, now: float) -> None:
        """This client's first step on a file: be known, sweep what the dead left."""
        presence = self.presence
        assert presence is not None
        table.note_boot(_boot(), _clock(), now, _wall())
        table.register(Client(presence.live, presence.dev, presence.ino, presence.address))
        table.sweep(self._leftovers, now)

    def moved_in(self, generation: int) -> None:
        """It is committed: only now may files go that say who is dead."""
        if self._known_in != generation:
            self._known_in = generation
            with suppress(OSError):
                sweep(self.directory, self._leftovers.stay)

    def wake(self, wakes: Sequence[Wake], me: Me) -> None:
        letters: dict[bytes, list[bytes]] = {}
        for client, id, signal in wakes:
            if client == me.id:
                me.inbox.deliver(id, signal.value)
            else:
                letters.setdefault(client, []).append(id + signal.value)
        presence = self.presence
        if presence is not None:
            for client, words in letters.items():
                for first in range(0, len(words), MOST):
                    presence.send(client, b"".join(words[first : first + MOST]))

    def before_fork(self) -> None:
        self._forking = self._settling.acquire(timeout=5)
        for one in self._databases.now():
            one.before_fork()

    def after_fork(self, child: bool) -> None:
        if child:
            if self.presence is not None:
                self.presence.drop()
            self._fresh()
            return
        for one in self._databases.now():
            one.after_fork()
        if self._forking:
            self._forking = False
            self._settling.release()


def _wall() -> int:
    return time.time_ns() // 1000


def _unsettled(error: OSError) -> StoreError:
    step = files.remedy(error, "make its directory writable, or set DIBS_URL to a path of your own")
    return StoreError(f"the database or a file beside it cannot be created: {error.strerror}", step=step)


def _boot() -> str:
    """Which boot of the machine this is. Never guessed by the wall clock: whoever set it, or guessed otherwise than the
    others, would take everybody's claims for those of before a restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        if sys.platform == "darwin":
            return _boot_of_macos()
        raise StoreError("the kernel does not report the boot id", step="mount /proc") from None


def _boot_of_macos() -> str:
    import subprocess  # noqa: PLC0415  (not needed elsewhere)

    asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603  (fixed words)


def _clock() -> str:
    """How far the clock that counts since boot is shifted in this process's time namespace."""
    try:
        offsets = Path("/proc/self/timens_offsets").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "".join("+".join(line.split()[1:]) for line in offsets.splitlines() if line.startswith("boottime"))
