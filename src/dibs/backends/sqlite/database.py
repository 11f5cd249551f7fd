"""One connection to the file, and the atomic step: everything a verb does happens in one `BEGIN IMMEDIATE`.

An attempt never waits. The mutex, the turn and SQLite's own lock are each taken at once or not at all, so an attempt
may run in an event loop; `persist` repeats it, with short naps, until the caller's patience is over. The turn is an OS
lock that writers take first, as politeness only: SQLite's busy handler sleeps for milliseconds where the others need
fifty microseconds. After 50 ms, or when a stopped process keeps the turn, a verb goes on without it.

Mutex and transaction are context managers made in C: no interrupt can leave either of them open. Every step compares
the open file with its path; removed or replaced means that every claim in it is void.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from dibs.backends.sqlite.presence import Others
from dibs.backends.sqlite.table import APPLICATION, STATEMENTS, VERSION, BlockUsedUp, SqliteTable, damaged
from dibs.core.line import Replaced
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import boottime

T = TypeVar("T")
Inode = tuple[int, int]

POLITE_FOR = 0.05
_SPINS = 40
_NAP, _LONGER_NAP = 0.00005, 0.002
_BUSY = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))
_OLDEST_SQLITE = (3, 37, 0)


class Busy:
    """An attempt found somebody else at work."""


BUSY: Final = Busy()


class Home(Protocol):
    """What the connections of one client have in common: see store.py."""

    path: Path
    directory: Path
    generation: int
    me: bytes
    tombs: dict[bytes, float]
    others: Others

    def now(self) -> float: ...

    def replaced(self, generation: int) -> None: ...

    def settle_in(self) -> Inode | None: ...


class Database:
    """One connection, opened at first use and again after the file was replaced or a fork."""

    def __init__(self, store: Home) -> None:
        self._store = store
        self._path = store.path
        self.mutex = _thread.allocate_lock()
        self._connection: sqlite3.Connection | None = None
        self._table: SqliteTable
        self._durable = False
        self._turn = -1
        self._generation = -1
        self._name = str(store.path)
        self._log_name = f"{store.path}-wal"
        self._inode: Inode | None = None
        self._log: Inode | None = None
        self._log_seen_at = 0.0
        self._forking = False

    def attempt(
        self, work: Callable[[SqliteTable, float], T], *, polite: bool = True, durable: bool = False
    ) -> T | Busy:
        """One try at an atomic step; what ends it early leaves nothing of it behind. Only a durable one waits for the
        disk: what it wrote survives a power cut."""
        try:
            with self.mutex:
                connection = self._ready()
                if connection is None or (polite and not self._take_turn()):
                    return BUSY
                try:
                    if durable is not self._durable:
                        self._sync(connection, durable)
                    with connection:
                        connection.execute("BEGIN IMMEDIATE")
                        done = work(self._table, self._store.now())
                        connection.execute("COMMIT")
                        return done
                finally:
                    fcntl.flock(self._turn, fcntl.LOCK_UN)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if _code(error) in _BUSY:
                return BUSY
            raise self._failed(error) from None

    def persist(self, work: Callable[[SqliteTable, float], T], until: float, *, durable: bool = False) -> T:
        """The step, however long it takes to get through, or StoreUnavailable when patience is over."""
        begun = self._store.now()
        while True:
            done = self.insist(work, begun, until, durable=durable)
            if not isinstance(done, Busy):
                return done
            self.check_patience(until)

    def insist(
        self, work: Callable[[SqliteTable, float], T], begun: float, until: float, *, durable: bool = False
    ) -> T | Busy:
        """Try for a while, at most until `until`; the tasks of a client take turns at this. `begun`: the first try."""
        spins, end = 0, min(self._store.now() + POLITE_FOR, until)
        while True:
            polite = self._store.now() - begun < POLITE_FOR
            try:
                done = self.attempt(work, polite=polite, durable=durable) if self._open() else BUSY
            except BlockUsedUp:
                self.persist(lambda table, now: table.reserve(now), until, durable=True)
                continue
            if not isinstance(done, Busy) or self._store.now() >= end:
                return done
            spins += 1
            _pause(spins, polite)

    def check_patience(self, until: float) -> None:
        if self._store.now() >= until:
            raise StoreUnavailable(
                "the database was busy all the time", step="look for a process that is stopped in a transaction"
            )

    def read(self, work: Callable[[SqliteTable, float], T], until: float) -> T:
        """For onlookers: readers wait for nobody in WAL mode."""

        def look(connection: sqlite3.Connection, table: SqliteTable) -> T:
            with connection:
                connection.execute("BEGIN")
                return work(table, self._store.now())

        return self.look(look, until)

    def look(self, work: Callable[[sqlite3.Connection, SqliteTable], T], until: float) -> T:
        """As `read`, but in no transaction."""
        spins = 0
        while True:
            if self._open():
                try:
                    with self.mutex:
                        connection = self._ready()
                        if connection is not None:
                            return work(connection, self._table)
                except (sqlite3.Error, UnicodeDecodeError) as error:
                    if _code(error) not in _BUSY:
                        raise self._failed(error) from None
            self.check_patience(until)
            spins += 1
            _pause(spins, False)

    def close(self) -> None:
        with self.mutex:
            self._close()

    def before_fork(self) -> None:
        """SQLite's own notes about locks must not reach a child: no connection is open while the process forks."""
        self._forking = self.mutex.acquire(timeout=5)
        if self._forking:
            self._close()

    def after_fork(self) -> None:
        if self._forking:
            self._forking = False
            self.mutex.release()

    def __del__(self) -> None:
        """An interrupt may have struck before anybody had it."""
        if hasattr(self, "_turn"):
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        turn, self._turn = self._turn, -1
        if turn >= 0:
            os.close(turn)

    def _ready(self) -> sqlite3.Connection | None:
        """The connection, if it is open to the file, and the log, that stand at the path now."""
        if self._connection is None or self._generation != self._store.generation:
            return None
        if _inode(self._name) != self._inode or not self._has_its_log():
            self._store.replaced(self._generation)
            raise removed()
        return self._connection

    def _has_its_log(self) -> bool:
        """The file without its log is not the file; that is looked at once a second."""
        now = self._store.now()
        if now < self._log_seen_at + 1:
            return True
        self._log_seen_at = now
        return self._log is None or _inode(self._log_name) == self._log

    def _take_turn(self) -> bool:
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _open(self) -> bool:
        """Make sure that there is a connection to the file of today. False: somebody is in the way, for a moment."""
        if self._connection is not None and self._generation == self._store.generation:
            return True
        inode = self._store.settle_in()
        if inode is None:
            return False
        with self.mutex:
            self._close()
            self._generation, self._inode = self._store.generation, inode
            try:
                self._turn = open_turn(self._store.directory)
                connection = connect(self._path)
                self._log = _inode(self._log_name)
            except OSError as error:
                raise StoreError(f"the turn file cannot be opened: {error.strerror}") from None
            except sqlite3.Error as error:
                self._close()
                if _code(error) in _BUSY:
                    return False
                if _code(error) == sqlite3.SQLITE_CANTOPEN or _inode(self._name) != inode:
                    self._store.replaced(self._generation)
                    raise removed() from None
                raise translated(error) from None
            self._durable = False
            self._table = SqliteTable(connection, self._store.me, self._store.tombs, self._store.others.dead)
            self._connection = connection
            return True

    def _sync(self, connection: sqlite3.Connection, durable: bool) -> None:
        self._durable = False  # until it is true: an interrupt in between must not make it seem so
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._durable = durable

    def _failed(self, error: Exception) -> StoreError:
        """What SQLite said, as an error of ours; the connection is not trusted any more."""
        with self.mutex:
            self._close()
        return translated(error)


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_existing(path), timeout=0, isolation_level=None, check_same_thread=False, uri=True)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT base FROM store")  # makes the log, whose identity counts from now on
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def begin(path: Path, looked_at: Inode, move_in: Callable[[sqlite3.Connection, int], T]) -> T | Busy:
    """The first transaction on a file, alone with it: refuse what is not ours, prepare what is new."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old", step="use a Python with SQLite 3.37 or later")
    try:
        connection = sqlite3.connect(_existing(path), timeout=POLITE_FOR, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise translated(error) from None
    try:
        # From here on only what was opened is asked: what lies at the path may have changed since it was looked at.
        if _inode(str(path)) != looked_at:
            raise removed()
        _mark(connection)
        if _version(connection) == VERSION:  # before the write lock: whoever renews meanwhile need not wait for it
            check_tables(connection)
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            version = _version(connection)
            if version not in (0, VERSION):
                step = "upgrade dibs" if version > VERSION else "stop who uses it, and move the file away"
                raise StoreError(f"the database has format {version}, this dibs knows {VERSION}", step=step)
            if version == 0 and _tables(connection):
                raise damaged("its tables are not those of dibs")
            return move_in(connection, version)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if _code(error) in _BUSY:
            return BUSY
        raise translated(error) from None
    finally:
        connection.close()


def _mark(connection: sqlite3.Connection) -> None:
    """A new file becomes ours, before it becomes a WAL database: so the mark can be read without opening one."""
    if connection.execute("PRAGMA page_count").fetchone() == (0,):
        connection.execute("PRAGMA page_size = 1024")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
    elif connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise foreign()
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise StoreError("the file system cannot share memory (WAL)", step="put the database on a local disk")


def check_tables(connection: sqlite3.Connection) -> None:
    """They do what we think: no trigger, no view, no row out of order that would lead a search astray."""
    if _tables(connection) != set(STATEMENTS):
        raise damaged("its tables are not those of dibs")
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise damaged("SQLite's own check fails")
    if connection.execute("SELECT count(*) FROM store").fetchone() != (1,):
        raise damaged("it has no identity")


def _tables(connection: sqlite3.Connection) -> set[str]:
    """Everything in the schema, but for the statistics that an operator's ANALYZE leaves."""
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' ESCAPE '\\'")
    return {str(text) for (text,) in found}


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def open_turn(directory: Path) -> int:
    return os.open(directory / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def turn(directory: Path) -> Iterator[None]:
    """The turn, waited for, for the first transaction on a file; also this is politeness only."""
    file = open_turn(directory)
    end = boottime() + POLITE_FOR
    try:
        while boottime() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LONGER_NAP)
        yield
    finally:
        os.close(file)


def recognise(path: Path) -> None:
    """Look at what is there without touching it: no lock, no journal, no write. An empty file is welcome.

    Only for a file that nobody of ours can be at work on: without locks, one that is being made looks damaged.
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
        raise foreign()


def _existing(path: Path) -> str:
    """As SQLite's URI: it opens the file, and never makes one."""
    return f"file:{quote(str(path.absolute()))}?mode=rw"


def _inode(path: str) -> Inode | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (half the time of Path.stat, twice at every step)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _pause(spins: int, polite: bool) -> None:
    """Others need fifty microseconds each: stay close for a while, then look less often."""
    if spins < _SPINS:
        os.sched_yield()
    else:
        time.sleep(_NAP if polite else _LONGER_NAP)


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translated(error: Exception) -> StoreError:
    """What SQLite said, as an error of ours. Its texts quote no values, except those that are no UTF-8."""
    code = _code(error)
    if isinstance(error, UnicodeDecodeError) or (not code and "decode" in str(error)):
        return damaged("a text in it is no UTF-8")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(str(error))
    if code == sqlite3.SQLITE_FULL:
        return StoreError("the disk of the database is full", step="make room")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError("the database can only be read", step="make the file and its directory writable")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, *_BUSY):
        return StoreUnavailable(f"the database does not answer: {error}", step="check the disk and its directory")
    return StoreError(f"the database refused: {error}", step="report this, please")


def foreign() -> StoreError:
    return StoreError("the file is a database of something else", step="give dibs a file of its own")


def removed() -> Replaced:
    return Replaced(
        "the database was removed or replaced: every lock in it is lost", step="find out who does that, and stop it"
    )
