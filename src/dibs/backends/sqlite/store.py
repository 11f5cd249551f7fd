"""The `sqlite:///` store: one file, many processes of one machine, no server.

`sqlite:///relative.db`, `sqlite:////absolute.db`. Promise: at most one valid holder among the processes that use the
file, by lease, and at once where the kernel can tell that a holder's process is dead. Beside the file lies a private
directory `<file>.d` with the turn, and a liveness file and a socket per client.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from dibs.backends.common.atomic_queue import Tombs, Wake
from dibs.backends.sqlite import files
from dibs.backends.sqlite.database import (
    BUSY_CODES,
    Database,
    Inode,
    code_of,
    existing,
    inode_of,
    open_turn,
    removed,
    translated,
)
from dibs.backends.sqlite.presence import MOST, Others, Presence, names_of, sweep
from dibs.backends.sqlite.queue import SqliteCells, SqliteQueue
from dibs.backends.sqlite.table import APPLICATION, VERSION, Leftovers, SqliteTable, check_tables, damaged, tables_in
from dibs.core.cells import CellKey, Cells
from dibs.core.queue import ATOMIC_TRY, CELLS, FAIR, LEASES, PERMITS, RECORDS, RW, ClientIdentity, Queue
from dibs.core.runtime import Runtime
from dibs.errors import Closed, Mismatch, StoreError
from dibs.info import Finding
from dibs.runtime.living import Living
from dibs.runtime.threads import boottime
from dibs.url import Url

_OLDEST_SQLITE = (3, 37, 0)
_BUSY_TIMEOUT = 0.05
_NAP = 0.002


class OtherFormat(Mismatch, StoreError):
    """Another version of dibs made the file. Also a StoreError: the watchdog meets it where a file was replaced."""


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
        self.unwatched: deque[tuple[CellKey, bytes]] = deque()
        self.others = Others(self.directory, boottime)
        self.presence: Presence | None = None
        self._inode: Inode | None = None
        self._leftovers = Leftovers([], [], set())
        self._known_in = -1
        self._settling = _thread.allocate_lock()
        self._forking = False
        self._databases: Living[Database] = Living()
        self._client: ClientIdentity | None = None
        self._closed = False

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        self.me = me.id
        self._client = me
        return SqliteQueue(self, self._database(), runtime, me)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
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
            raise _not_claimed(error) from None
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

    def claim_files(self) -> Inode | None:
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
                    _recognise(self.path)
                files.private_directory(self.directory)
                if self.presence is None:
                    self.presence = Presence(self.directory, self.me)
                found = files.check(self.path)
                inode = (found.st_dev, found.st_ino)
                if not self._begin(inode):
                    return None
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                raise _not_claimed(error) from None
            self._inode = inode
            if self._client is not None:
                self._client.inbox.listen(self.presence)
        return self._inode

    def _begin(self, looked_at: Inode) -> bool:
        """Check the file, make its tables if it is new, and look for what the dead left. False: busy.

        A file that is in use is only read here. The write lock belongs to those who hold and wait: two hundred clients
        that start at once must not keep it from them.
        """
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            step = "use a Python with SQLite 3.37 or later"
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old", step=step)
        try:
            connection = sqlite3.connect(existing(self.path), timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)
        except sqlite3.Error as error:
            raise translated(error) from None
        try:
            # From here on only the open file is asked: the path may have been given to another one since the check.
            if inode_of(str(self.path)) != looked_at:
                raise removed()
            _mark(connection)
            if _version(connection) == 0:
                with _turn(self.directory), connection:
                    self._make_tables(connection)
            _check_version(_version(connection))
            check_tables(connection)
            table = self._table(connection)
            self._leftovers = table.leftovers(self.now(), lambda one: (self.directory / names_of(one)[0]).exists())
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if code_of(error) in BUSY_CODES:
                return False
            raise translated(error) from None
        else:
            return True
        finally:
            connection.close()

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:
            if tables_in(connection):
                raise damaged("its tables are not those of dibs")
            self._table(connection).create(os.urandom(8).hex(), _wall())

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
        table.register(presence.live, presence.dev, presence.ino, presence.address)
        table.sweep(self._leftovers, now)

    def moved_in(self, generation: int) -> None:
        """It is committed: only now may files go that say who is dead."""
        if self._known_in != generation:
            self._known_in = generation
            with suppress(OSError):
                sweep(self.directory, self._leftovers.stay)

    def wake(self, wakes: Sequence[Wake], me: ClientIdentity) -> None:
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


def _not_claimed(error: OSError) -> StoreError:
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


def _mark(connection: sqlite3.Connection) -> None:
    """A new file becomes ours, before it becomes a WAL database: so the mark can be read without opening one."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute("PRAGMA page_size = 1024")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise _foreign()
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError("the file system cannot share memory (WAL)", step="put the database on a local disk")


def _check_version(version: int) -> None:
    if version != VERSION:
        step = "upgrade dibs" if version > VERSION else "stop the programs that use it, and move the file away"
        raise OtherFormat(f"the database has format {version}, this dibs knows {VERSION}", step=step)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """Wait for the turn while a file is made. This is politeness only."""
    file = open_turn(directory)
    end = boottime() + _BUSY_TIMEOUT
    try:
        while boottime() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_NAP)
        yield
    finally:
        os.close(file)


def _recognise(path: Path) -> None:
    """Refuse the database of another program without touching it: no lock, no journal, no write.

    Only for a file that no client of ours can have open: without locks, one that is being made looks damaged.
    """
    if not path.stat().st_size:
        return
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            found = connection.execute("PRAGMA application_id").fetchone()[0]
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise translated(error) from None
    if found != APPLICATION:
        raise _foreign()


def _foreign() -> StoreError:
    return StoreError("the file is the database of another program", step="use another path")
