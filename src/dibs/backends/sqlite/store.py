"""The `sqlite:///` store: one file, many processes of one machine, no server.

`sqlite:///relative.db`, `sqlite:////absolute.db`. Promise: at most one valid holder among the processes that use the
file, by lease, and at once where the kernel can tell that a holder's process is dead. The private directory `<file>.d`
beside the file has the turn file, and a liveness file and a socket per client.
"""

from __future__ import annotations

import _thread
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from dibs.backends.sqlite.database import Database
from dibs.backends.sqlite.queue import SqliteCells, SqliteQueue
from dibs.backends.sqlite.registration import Registration
from dibs.core.cells import Cells
from dibs.core.queue import ATOMIC_TRY, CELLS, FAIR, LEASES, PERMITS, RECORDS, RW, ClientIdentity, Queue
from dibs.core.runtime import Runtime
from dibs.errors import StoreError
from dibs.runtime.living import Living
from dibs.url import Url


class SqliteStore:
    """The store of one client: its registration, and its connections."""

    backend: ClassVar[str] = "sqlite"
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, RECORDS})

    def __init__(self, url: Url) -> None:
        if url.host or url.port is not None or url.username is not None:
            raise ValueError("a sqlite URL has three slashes and a path: sqlite:///relative.db, sqlite:////absolute.db")
        is_default = url.query == (("default", "1"),)
        if not url.path.strip("/") or (url.query and not is_default):
            raise ValueError("a sqlite URL is sqlite:/// and the path of a file, without a query")
        self._start(Path(url.path[1:]).absolute(), is_default)
        self.shown = f"sqlite:///{self.registration.path}"

    def _start(self, path: Path, is_default: bool) -> None:
        self.registration = Registration(path, is_default=is_default)
        self._databases: Living[Database] = Living()
        self._locked_for_fork: list[_thread.LockType] = []

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        self.registration.identity = me
        return SqliteQueue(self._new_database, runtime, me)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return SqliteCells(self._new_database, runtime, me)

    def _new_database(self) -> Database:
        made = Database(self.registration)
        self._databases.add(made)
        return made

    def close(self) -> None:
        if self.registration.registered_in == self.registration.generation:
            made = Database(self.registration)
            with suppress(StoreError):
                made.persist(lambda table, _: table.unregister(), self.registration.now() + 0.5)
            made.close()
        self.registration.close()
        for one in self._databases.now():
            one.close()

    def before_fork(self) -> None:
        """Close all connections: a child must not inherit the state of SQLite's locks."""
        self._lock_for_fork(self.registration.mutex)
        for one in self._databases.now():
            if self._lock_for_fork(one.mutex):
                one.disconnect()

    def _lock_for_fork(self, mutex: _thread.LockType) -> bool:
        if locked := mutex.acquire(timeout=5):
            self._locked_for_fork.append(mutex)
        return locked

    def after_fork(self, child: bool) -> None:
        if child:
            if self.registration.presence is not None:
                self.registration.presence.drop()
            self._start(self.registration.path, self.registration.is_default)
        else:
            locked, self._locked_for_fork = self._locked_for_fork, []  # first: another thread may fork, too
            for mutex in locked:
                mutex.release()
