"""One connection to the file, and the atomic step: everything a verb does happens in one `BEGIN IMMEDIATE`.

An attempt never waits. The mutex, the turn and SQLite's own lock are each taken at once or not at all, so an attempt
may run in an event loop; `persist` retries it until the caller's patience is over, with naps that grow up to 50 ms. The
turn is an OS lock that writers take first, as politeness only: SQLite's busy handler sleeps for milliseconds where the
others need a hundred microseconds. After 50 ms, or when a stopped process keeps the turn, a verb goes on without it.

Mutex and transaction are context managers made in C: no interrupt can leave either of them open. Every step compares
the open file with its path; removed or replaced means that every claim in it is void.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from dibs.backends.common.atomic_queue import Tombs, Wake
from dibs.backends.sqlite.presence import Others
from dibs.backends.sqlite.table import CAN_CALL_BACK, BlockUsedUp, SqliteTable, damaged
from dibs.core.cells import CellKey
from dibs.core.queue import ClientIdentity, Replaced
from dibs.core.rule import Claim
from dibs.errors import StoreError, StoreUnavailable
from dibs.info import Finding
from dibs.runtime.threads import boottime

T = TypeVar("T")
P = TypeVar("P")
Inode = tuple[int, int]


_POLITE_FOR = 0.05
_SLICE = 0.05
_SPINS, _CLOSE = 40, 0.001
"""How often, and for how long, a step that found the file busy retries without a nap: others need 0.1 ms each."""
_NAP, _URGENT_NAP, _LONGEST_NAP = 0.00005, 0.002, 0.05
BUSY_CODES = frozenset((sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED))


class Busy:
    """An attempt found somebody else at work."""


BUSY: Final = Busy()


class Home(Protocol):
    """The client's store, as its connections see it: see store.py."""

    path: Path
    directory: Path
    generation: int
    me: bytes
    tombs: Tombs
    others: Others
    unwatched: deque[tuple[CellKey, bytes]]
    """Watchers that need not be told of a change any more; the next step that watches something removes them."""

    def now(self) -> float: ...

    def wake(self, wakes: list[Wake], me: ClientIdentity) -> None: ...

    def doctor(self, until: float) -> list[Finding]: ...

    def replaced(self, generation: int) -> None: ...

    def claim_files(self) -> Inode | None: ...

    def is_known(self, generation: int) -> bool: ...

    def move_in(self, table: SqliteTable, now: float) -> None: ...

    def moved_in(self, generation: int) -> None: ...


class Database:
    """One connection, opened at first use and again after the file was replaced or a fork."""

    def __init__(self, store: Home) -> None:
        self._store = store
        self._now = store.now
        self._path = store.path
        self.mutex = _thread.allocate_lock()
        self._connection: sqlite3.Connection | None = None
        self._table: SqliteTable
        self._durable = False
        self._turn = -1
        self._made_for = self._generation = -1
        """The generation that the connection was made for, and that in which it can be used."""
        self._name = str(store.path)
        self._log_name = f"{store.path}-wal"
        self._inode: Inode | None = None
        self._log: Inode | None = None
        self._log_due_at = 0.0
        self._forking = False

    def attempt(
        self, work: Callable[[SqliteTable, float], T], *, polite: bool = True, durable: bool = False,
        registers: bool = False,
    ) -> T | Busy:  # fmt: skip
        """One try at an atomic step; what ends it early leaves nothing of it behind. Only a durable one waits for the
        disk: what it wrote survives a power cut. The first one on a connection `registers` this client."""
        try:
            with self.mutex:
                connection = self._connection if registers else self._ready()
                if connection is None or (not self._take_turn() and polite):
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
            if code_of(error) in BUSY_CODES:
                return BUSY
            raise self._failed(error) from None

    def at_once(self, verb: Callable[[SqliteTable, Claim, P], T | None], claim: Claim, place: P) -> T | None:
        """Run one statement that commits by itself. None: nothing was changed; an atomic step finds out why."""
        try:
            with self.mutex:
                if self._connection is None or self._generation != self._store.generation or self._durable:
                    return None
                if not CAN_CALL_BACK:
                    return None
                found = os.stat(self._name)  # noqa: PTH116  (see _is_in_place)
                if (found.st_dev, found.st_ino) != self._inode or self._now() >= self._log_due_at:
                    return None
                fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                try:
                    return verb(self._table, claim, place)
                finally:
                    fcntl.flock(self._turn, fcntl.LOCK_UN)
        except OSError:  # there is no file, or another process has the turn
            return None
        except sqlite3.Error as error:
            if code_of(error) in BUSY_CODES:
                return None
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
        self, work: Callable[[SqliteTable, float], T], begun: float, until: float, *, durable: bool = False,
        urgent: bool = False,
    ) -> T | Busy:  # fmt: skip
        """Try for a while, at most until `until`; the tasks of a client take turns at this. `begun`: the first try.
        `urgent`: others wait for this step, so it looks more often."""

        def once(polite: bool) -> T | Busy:
            try:
                return self.attempt(work, polite=polite, durable=durable) if self._open(polite) else BUSY
            except BlockUsedUp:
                self.persist(lambda table, now: table.reserve(now), until, durable=True)
                return BUSY

        return _insist(once, begun, until, _URGENT_NAP if urgent else _LONGEST_NAP)

    def check_patience(self, until: float) -> None:
        if self._store.now() >= until:
            raise StoreUnavailable(
                "the database stayed busy until the timeout", step="find a process that is stopped inside a transaction"
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
        begun = self._store.now()

        def once(polite: bool) -> T | Busy:
            try:
                if self._open(polite):
                    with self.mutex:
                        connection = self._ready()
                        if connection is not None:
                            return work(connection, self._table)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if code_of(error) not in BUSY_CODES:
                    raise self._failed(error) from None
            return BUSY

        while isinstance(done := _insist(once, begun, until), Busy):
            self.check_patience(until)
        return done

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
        if not self._is_in_place():
            self._store.replaced(self._generation)
            raise removed()
        return self._connection

    def _is_in_place(self) -> bool:
        """Whether the open file is the one at the path; once a second, also whether its log is."""
        try:
            found = os.stat(self._name)  # noqa: PTH116  (half the time of Path.stat, at every step)
        except OSError:
            return False
        if (found.st_dev, found.st_ino) != self._inode:
            return False
        if (now := self._now()) >= self._log_due_at:
            if self._log is not None and inode_of(self._log_name) != self._log:
                return False
            self._log_due_at = now + 1
        return True

    def _take_turn(self) -> bool:
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _open(self, polite: bool) -> bool:
        """Connect to the current file and register this client there. False: busy, try again."""
        if self._connection is not None and self._generation == self._store.generation:
            return True
        inode = self._store.claim_files()
        if inode is None:
            return False
        generation = self._store.generation
        with self.mutex:
            if (self._connection is None or self._made_for != generation) and not self._connect(generation, inode):
                return False
        if not self._store.is_known(generation):
            if inode_of(self._name) != inode:
                self._store.replaced(generation)
                raise removed()
            if isinstance(self.attempt(self._store.move_in, polite=polite, registers=True), Busy):
                return False
            self._store.moved_in(generation)
        self._generation = generation
        return True

    def _connect(self, generation: int, inode: Inode) -> bool:
        self._close()
        self._made_for, self._inode = generation, inode
        try:
            self._turn = open_turn(self._store.directory)
            connection = connect(self._path)
            self._log = inode_of(self._log_name)
        except OSError as error:
            raise StoreError(f"the turn file cannot be opened: {error.strerror}") from None
        except sqlite3.Error as error:
            self._close()
            if code_of(error) in BUSY_CODES:
                return False
            if code_of(error) == sqlite3.SQLITE_CANTOPEN or inode_of(self._name) != inode:
                self._store.replaced(generation)
                raise removed() from None
            raise translated(error) from None
        self._durable = False
        store = self._store
        self._table = SqliteTable(connection, store.me, store.tombs, store.others, store.now)
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
    connection = sqlite3.connect(existing(path), timeout=0, isolation_level=None, check_same_thread=False, uri=True)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT base FROM store")  # makes the log, whose identity counts from now on
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _insist(
    once: Callable[[bool], T | Busy], begun: float, until: float, longest_nap: float = _LONGEST_NAP
) -> T | Busy:
    """Retry for one slice, at most until `until`, with naps that grow with the time since `begun`, the first try. Two
    hundred processes that stay close take the processor from the one that they wait for."""
    tries, now = 0, boottime()
    end = min(now + _SLICE, until)
    while True:
        waited = now - begun
        done = once(waited < _POLITE_FOR)
        if now >= end or not isinstance(done, Busy):
            return done
        tries += 1
        if tries < _SPINS and waited < _CLOSE:
            os.sched_yield()
        else:
            time.sleep(max(min(waited / 4, longest_nap, until - now), _NAP))
        now = boottime()


def open_turn(directory: Path) -> int:
    return os.open(directory / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def existing(path: Path) -> str:
    """As SQLite's URI: it opens the file, and never makes one."""
    return f"file:{quote(str(path.absolute()))}?mode=rw"


def inode_of(path: str) -> Inode | None:
    try:
        found = os.stat(path)  # noqa: PTH116  (see _is_in_place)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def code_of(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translated(error: Exception) -> StoreError:
    """What SQLite said, as an error of ours. Its texts quote no values, except those that are no UTF-8."""
    code = code_of(error)
    if isinstance(error, UnicodeDecodeError) or (not code and "decode" in str(error)):
        return damaged("a text in it is no UTF-8")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(str(error))
    if code == sqlite3.SQLITE_FULL:
        return StoreError("the disk of the database is full", step="make room")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError("the database is read-only", step="make the file and its directory writable")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, *BUSY_CODES):
        return StoreUnavailable(f"the database does not answer: {error}", step="check the disk and its directory")
    return StoreError(f"the database refused: {error}", step="please report this")


def removed() -> Replaced:
    return Replaced(
        "the database was removed or replaced: all locks are lost", step="find the program that did that, and stop it"
    )
