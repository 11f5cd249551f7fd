"""One client's registration in a database file: its row in `clients`, and its liveness file and socket beside the file.

All connections of a client share one registration. A forked child gets a new one. When the file at the path is another
one, `generation` rises: connections of an older generation are not used any more, and the client registers again.
"""

from __future__ import annotations

import _thread
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from dibs.backends.common.atomic_queue import Tombs, Wake
from dibs.backends.sqlite import files
from dibs.backends.sqlite.errors import SQLITE_ERRORS, OtherFormat, damaged, foreign, is_busy, removed, translated
from dibs.backends.sqlite.files import Inode
from dibs.backends.sqlite.presence import MOST_WAKEUPS, Others, Presence, names_of, sweep
from dibs.backends.sqlite.table import APPLICATION, VERSION, Leftovers, SqliteTable, check_tables, tables_in
from dibs.core.cells import CellKey
from dibs.core.queue import ClientIdentity
from dibs.errors import Closed, StoreError
from dibs.runtime.threads import boottime

_OLDEST_SQLITE = (3, 37, 0)
_BUSY_TIMEOUT = 0.05


class Registration:
    now = staticmethod(boottime)
    identity: ClientIdentity
    """Set when the store is opened."""

    def __init__(self, path: Path, *, is_default: bool) -> None:
        self.path = path
        self.directory = path.with_name(path.name + ".d")
        """The private directory beside the database."""
        self.is_default = is_default
        self.generation = 0
        self.registered_in = -1
        """The generation whose file has this client's row."""
        self.tombs = Tombs()
        self.others = Others(self.directory, boottime)
        self.presence: Presence | None = None
        self.unwatched: deque[tuple[CellKey, bytes]] = deque()
        """Rows of `watchers` that are no longer needed; the next step that adds a watcher removes them."""
        self._inode: Inode | None = None
        self._leftovers = Leftovers([], [], set())
        self.mutex = _thread.allocate_lock()
        self._closed = False

    def table(self, connection: sqlite3.Connection) -> SqliteTable:
        return SqliteTable(connection, self.identity.id, self.tombs, self.others, self.now)

    def replaced(self, generation: int) -> None:
        """A connection of that generation found another file at the path, or none."""
        if generation == self.generation:
            self.generation += 1
            self._inode = None

    def prepare(self) -> Inode | None:
        """Create or check the database, and create this client's files beside it: once per file. None: it is busy."""
        with self.mutex:
            if self._closed:
                raise _closed()
            if self._inode is not None and self.presence is not None:
                return self._inode
            try:
                files.prepare(self.path, make_directory=self.is_default)
                if not self.directory.exists():
                    _check_application(self.path)
                files.private_directory(self.directory)
                if self.presence is None:
                    self.presence = Presence(self.directory, self.identity.id)
                found = files.check(self.path)
                inode = (found.st_dev, found.st_ino)
                if not self._prepare_tables(inode):
                    return None
            except StoreError:
                raise
            except OSError as error:
                raise not_created(error) from None
            self._inode = inode
            self.identity.inbox.listen(self.presence)
        return self._inode

    def _prepare_tables(self, checked: Inode) -> bool:
        """Check the content of the file, create the tables of a new one, and look for dead clients. False: busy.

        A file that is in use is only read here: 200 clients that start at once must not take the write lock from those
        that hold and wait.
        """
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            step = "use a Python with SQLite 3.37 or later"
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old", step=step)
        try:
            with closing(
                sqlite3.connect(files.uri(self.path), timeout=_BUSY_TIMEOUT, isolation_level=None, uri=True)
            ) as connection:
                # From here on only the open file counts: another one may be at the path since the check.
                if files.inode_of(str(self.path)) != checked:
                    raise removed()
                _mark(connection)
                if _version(connection) == 0:
                    with connection:
                        self._create_tables(connection)
                _check_version(_version(connection))
                check_tables(connection)
                self._leftovers = self.table(connection).leftovers(
                    self.now(), lambda client: (self.directory / names_of(client)[0]).exists()
                )
        except SQLITE_ERRORS as error:
            if is_busy(error):
                return False
            raise translated(error) from None
        return True

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        if _version(connection) == 0:
            if tables_in(connection):
                raise damaged("its tables are not those of dibs")
            self.table(connection).create(os.urandom(8).hex(), _wall_microseconds())

    def register(self, table: SqliteTable, now: float) -> None:
        """The first step of this client on a file: add its row, remove the rows of dead clients."""
        presence = self.presence
        if presence is None:  # `close` came in between
            raise _closed()
        table.note_boot(_boot_id(), clock_shift(), now, _wall_microseconds())
        table.register(presence.live, presence.dev, presence.ino, presence.address)
        table.sweep(self._leftovers, now)

    def registered(self, generation: int) -> None:
        """`register` was committed: only now may the files be removed that prove who is dead."""
        if self.registered_in != generation:
            self.registered_in = generation
            with suppress(OSError):
                sweep(self.directory, self._leftovers.stay)

    def wake(self, wakes: Sequence[Wake]) -> None:
        messages: dict[bytes, list[bytes]] = {}
        for client, id, signal in wakes:
            if client == self.identity.id:
                self.identity.inbox.deliver(id, signal.value)
            else:
                messages.setdefault(client, []).append(id + signal.value)
        presence = self.presence
        if presence is not None:
            for client, parts in messages.items():
                for first in range(0, len(parts), MOST_WAKEUPS):
                    presence.send(client, b"".join(parts[first : first + MOST_WAKEUPS]))

    def close(self) -> None:
        self._closed = True  # first: a thread that still looks must not register again
        presence, self.presence = self.presence, None
        if presence is not None:
            presence.close()


def _closed() -> Closed:
    return Closed("this client was closed", step="connect again")


def not_created(error: OSError) -> StoreError:
    step = files.remedy(error, "make its directory writable, or set DIBS_URL to a path of your own")
    return StoreError(f"the database or a file beside it cannot be created: {error.strerror}", step=step)


def _wall_microseconds() -> int:
    return time.time_ns() // 1000


def _boot_id() -> str:
    """The id of this boot of the machine. It is never derived from the wall clock: a client that computed another id
    than the others would remove all claims as left over from before a restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        if sys.platform == "darwin":
            return _boot_id_of_macos()
        raise StoreError("the kernel does not report the boot id", step="mount /proc") from None


def _boot_id_of_macos() -> str:
    import subprocess  # noqa: PLC0415  (not needed elsewhere)

    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603  (constant)


def clock_shift() -> str:
    """The offset of the boot clock in this process's time namespace, as the database records it."""
    try:
        offsets = Path("/proc/self/timens_offsets").read_text(encoding="utf-8")
    except OSError:
        return ""
    return "".join("+".join(line.split()[1:]) for line in offsets.splitlines() if line.startswith("boottime"))


def _mark(connection: sqlite3.Connection) -> None:
    """Write our application id into a new file, before WAL mode, so that it can be read without opening the log."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute("PRAGMA page_size = 1024")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise foreign()
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError("the file system cannot share memory (WAL)", step="put the database on a local disk")


def _check_version(version: int) -> None:
    if version != VERSION:
        step = "upgrade dibs" if version > VERSION else "stop the programs that use it, and move the file away"
        raise OtherFormat(f"the database has format {version}, this dibs knows {VERSION}", step=step)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check_application(path: Path) -> None:
    """Refuse the database of another program without touching it: no lock, no journal, no write.

    Only for a file that no client of dibs can have open: without locks, a file that is being created looks damaged.
    """
    if not path.stat().st_size:
        return
    try:
        with closing(sqlite3.connect(files.uri(path, "mode=ro&immutable=1"), uri=True)) as connection:
            found = connection.execute("PRAGMA application_id").fetchone()[0]
    except SQLITE_ERRORS as error:
        raise translated(error) from None
    if found != APPLICATION:
        raise foreign()
