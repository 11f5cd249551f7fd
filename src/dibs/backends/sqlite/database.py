"""One connection to the file, and the atomic step: everything that a verb does happens in one `BEGIN IMMEDIATE`.

An attempt never waits: it takes the mutex, the turn and SQLite's write lock at once or not at all, so it may run in an
event loop. `retry` repeats it with pauses that grow up to 50 ms. The turn is a file lock that writers take first. It is
advisory: SQLite's busy handler sleeps for milliseconds where a transaction takes 0.1 ms. After 50 ms, for example if a
stopped process has the turn, a step goes on without it.

Mutex and transaction are context managers written in C, so no interrupt can leave them open. Every step compares the
open file with its path: if the file was removed or replaced, all claims in it are void.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from typing import Final, TypeVar, cast

from dibs.backends.sqlite import files
from dibs.backends.sqlite.errors import SQLITE_ERRORS, code_of, is_busy, removed, translated
from dibs.backends.sqlite.files import Inode
from dibs.backends.sqlite.registration import Registration
from dibs.backends.sqlite.table import BlockUsedUp, SqliteTable
from dibs.errors import StoreError, StoreUnavailable

T = TypeVar("T")

_POLITE_FOR = 0.05
_SLICE = 0.05
_SPINS, _SPIN_TIME = 40, 0.001
"""How often, and for how long, a busy file is tried again without a pause: a transaction takes 0.1 ms."""
_SHORTEST_PAUSE, _LONGEST_URGENT_PAUSE, _LONGEST_PAUSE = 0.00005, 0.002, 0.05


class Busy:
    """The result of an attempt that found the file in use."""


BUSY: Final = Busy()


class Database:
    """A connection that is opened at first use, and again after a fork or after the file was replaced.

    The free path in queue.py uses the public attributes, under the mutex.
    """

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self.mutex = _thread.allocate_lock()
        self.connection: sqlite3.Connection | None = None
        self.table: SqliteTable
        self.waits_for_disk = False
        self.turn = -1
        self.generation = -1
        """The generation of the registration in which the connection can be used."""
        self._connected_in = -1
        self.path = str(registration.path)
        self.inode: Inode | None = None
        self._log_path = f"{self.path}-wal"
        self._log_inode: Inode | None = None
        self.log_check_due = 0.0

    def attempt(
        self, work: Callable[[SqliteTable, float], T], *, polite: bool = True, durable: bool = False,
        registers: bool = False,
    ) -> T | Busy:  # fmt: skip
        """Try an atomic step once; any exception rolls it back. Only a durable step waits for the disk, and survives a
        power cut. `registers`: this is the step that registers the client."""
        try:
            with self.mutex:
                connection = self.connection if registers else self._usable_connection()
                if connection is None:
                    return BUSY
                try:
                    fcntl.flock(self.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if polite:
                        return BUSY
                try:
                    if durable is not self.waits_for_disk:
                        self._sync(connection, durable)
                    with connection:
                        connection.execute("BEGIN IMMEDIATE")
                        done = work(self.table, self.registration.now())
                        connection.execute("COMMIT")
                        return done
                finally:
                    fcntl.flock(self.turn, fcntl.LOCK_UN)
        except SQLITE_ERRORS as error:
            return self.busy_or_raise(error)

    def retry(
        self, work: Callable[[SqliteTable, float], T], begun: float, until: float, *, durable: bool = False,
        urgent: bool = False,
    ) -> T | Busy:  # fmt: skip
        """Repeat an atomic step for a slice of time: the tasks of a client take turns at this. After `until`, raise
        StoreUnavailable. `begun`: when the first attempt was made. `urgent`: others wait for this step, so pauses are
        short."""

        def once(polite: bool) -> T | Busy:
            try:
                return self.attempt(work, polite=polite, durable=durable) if self._open(polite) else BUSY
            except BlockUsedUp:
                self.persist(lambda table, now: table.reserve(now), until, durable=True)
                return BUSY

        return self._retry(once, begun, until, _LONGEST_URGENT_PAUSE if urgent else _LONGEST_PAUSE)

    def persist(self, work: Callable[[SqliteTable, float], T], until: float, *, durable: bool = False) -> T:
        """Repeat an atomic step until it succeeds, or raise StoreUnavailable."""
        begun, done = self.registration.now(), cast("T | Busy", BUSY)
        while isinstance(done, Busy):
            done = self.retry(work, begun, until, durable=durable)
        return done

    def read(self, work: Callable[[SqliteTable, float], T], until: float) -> T:
        """Read in one transaction: in WAL mode readers wait for no writer."""

        def look(connection: sqlite3.Connection, table: SqliteTable) -> T:
            with connection:
                connection.execute("BEGIN")
                return work(table, self.registration.now())

        return self.look(look, until)

    def look(self, work: Callable[[sqlite3.Connection, SqliteTable], T], until: float) -> T:
        """Read without a transaction."""

        def once(polite: bool) -> T | Busy:
            try:
                if self._open(polite):
                    with self.mutex:
                        connection = self._usable_connection()
                        if connection is not None:
                            return work(connection, self.table)
            except SQLITE_ERRORS as error:
                return self.busy_or_raise(error)
            return BUSY

        begun, done = self.registration.now(), cast("T | Busy", BUSY)
        while isinstance(done, Busy):
            done = self._retry(once, begun, until, _LONGEST_PAUSE)
        return done

    def _retry(self, once: Callable[[bool], T | Busy], begun: float, until: float, longest_pause: float) -> T | Busy:
        """Call `once` for one slice. Pauses grow with the time since `begun`: 200 spinning processes would take the
        processor from the one that they wait for."""
        tries, now = 0, self.registration.now()
        end = min(now + _SLICE, until)
        while True:
            waited = now - begun
            done = once(waited < _POLITE_FOR)
            if not isinstance(done, Busy):
                return done
            if now >= until:
                raise StoreUnavailable(
                    "the database stayed busy until the timeout",
                    step="find a process that is stopped inside a transaction",
                )
            if now >= end:
                return BUSY
            tries += 1
            if tries < _SPINS and waited < _SPIN_TIME:
                os.sched_yield()
            else:
                time.sleep(max(min(waited / 4, longest_pause, until - now), _SHORTEST_PAUSE))
            now = self.registration.now()

    def busy_or_raise(self, error: Exception) -> Busy:
        """BUSY if another connection had the file locked. Otherwise raise; the connection is no longer trusted."""
        if is_busy(error):
            return BUSY
        self.close()
        raise translated(error) from None

    def close(self) -> None:
        with self.mutex:
            self.disconnect()

    def __del__(self) -> None:
        """An interrupt may have hit before a caller got this object."""
        if hasattr(self, "turn"):
            self.disconnect()

    def disconnect(self) -> None:
        """Called with the mutex."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        turn, self.turn = self.turn, -1
        if turn >= 0:
            os.close(turn)

    def _usable_connection(self) -> sqlite3.Connection | None:
        """The connection, if it is open to the file and the log that are at their paths now."""
        if self.connection is None or self.generation != self.registration.generation:
            return None
        if not self._is_in_place():
            self.registration.replaced(self.generation)
            raise removed()
        return self.connection

    def _is_in_place(self) -> bool:
        """Whether the open file is the one at the path; once a second, check the log, too."""
        if files.inode_of(self.path) != self.inode:
            return False
        if (now := self.registration.now()) >= self.log_check_due:
            if self._log_inode is not None and files.inode_of(self._log_path) != self._log_inode:
                return False
            self.log_check_due = now + 1
        return True

    def _open(self, polite: bool) -> bool:
        """Connect to the current file, and register this client there. False: busy."""
        registration = self.registration
        if self.connection is not None and self.generation == registration.generation:
            return True
        inode = registration.prepare()
        if inode is None:
            return False
        generation = registration.generation
        with self.mutex:
            if (self.connection is None or self._connected_in != generation) and not self._connect(generation, inode):
                return False
        if registration.registered_in != generation:
            if files.inode_of(self.path) != inode:
                registration.replaced(generation)
                raise removed()
            if isinstance(self.attempt(registration.register, polite=polite, registers=True), Busy):
                return False
            registration.registered(generation)
        self.generation = generation
        return True

    def _connect(self, generation: int, inode: Inode) -> bool:
        self.disconnect()
        self._connected_in, self.inode = generation, inode
        try:
            self.turn = files.open_turn(self.registration.directory)
            connection = _connect(files.uri(self.registration.path))
            self._log_inode = files.inode_of(self._log_path)
        except OSError as error:
            raise StoreError(f"the turn file cannot be opened: {error.strerror}") from None
        except sqlite3.Error as error:
            self.disconnect()
            if is_busy(error):
                return False
            if code_of(error) == sqlite3.SQLITE_CANTOPEN or files.inode_of(self.path) != inode:
                self.registration.replaced(generation)
                raise removed() from None
            raise translated(error) from None
        self.waits_for_disk = False
        self.table = self.registration.table(connection)
        self.connection = connection
        return True

    def _sync(self, connection: sqlite3.Connection, durable: bool) -> None:
        self.waits_for_disk = False  # an interrupt must not leave True where the connection does not wait
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self.waits_for_disk = durable


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT base FROM store")  # creates the log, whose inode is compared from now on
    except sqlite3.Error:
        connection.close()
        raise
    return connection
