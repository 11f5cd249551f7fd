"""The `postgresql://` store: one server, or the one of several hosts that accepts writes, also behind a pooler.

The first request creates the tables if they are missing. A client has one subscriber, and waiters use no connection.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.common.lifecycle import NetworkStore, make_transport
from dibs.backends.common.session_claims import SessionClaims, SessionPool
from dibs.backends.postgresql.address import SESSION, Address
from dibs.backends.postgresql.cells import PostgresqlCells
from dibs.backends.postgresql.connection import Dialler, Floors
from dibs.backends.postgresql.executor import PostgresqlExecutor
from dibs.backends.postgresql.queue import Polling, PostgresqlQueue
from dibs.backends.postgresql.routines import Routines
from dibs.backends.postgresql.session import Claims, SessionQueue
from dibs.backends.postgresql.session_connection import SessionDialler
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.backends.postgresql.within import Enclosure
from dibs.core import queue as core_queue
from dibs.core.cells import Cells
from dibs.core.queue import ClientIdentity, Encloses, Queue, Store
from dibs.core.runtime import Runtime
from dibs.url import Url

_SESSION_MODE = frozenset(
    {core_queue.FAIR, core_queue.RW, core_queue.ATOMIC_TRY, core_queue.CELLS, core_queue.DDL, core_queue.WITHIN}
)


class PostgresqlStore(NetworkStore[PostgresqlSubscriber]):
    backend: ClassVar[str] = "postgresql"
    capabilities: ClassVar[frozenset[str]] = _SESSION_MODE | {core_queue.PERMITS, core_queue.LEASES, core_queue.RECORDS}
    server: ClassVar[str] = "postgresql"

    def __init__(self, address: Address) -> None:
        self._address = address
        self._routines = Routines(address.schema)
        super().__init__(address.shown)

    def _begin(self) -> None:
        super()._begin()
        self._floors = Floors()
        self._polling = Polling()

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        executor = self.executor(runtime, me, self.subscriber(runtime, me))
        return PostgresqlQueue(executor, self._polling, runtime)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return PostgresqlCells(self.executor(runtime, me, self.subscriber(runtime, me)))

    def open_within(self, runtime: Runtime, me: ClientIdentity) -> Encloses:
        return Enclosure(self.executor(runtime, me, None))

    def ddl(self) -> str:
        """The statements that create the tables and routines, for a role that may run them."""
        return f"{self._routines.ddl()}\n{self._routines.grants()}\n"

    def dialler(self, runtime: Runtime) -> Dialler:
        return Dialler(self._address, runtime.now, self._resources.round_trip())

    def executor(
        self, runtime: Runtime, me: ClientIdentity, subscriber: PostgresqlSubscriber | None
    ) -> PostgresqlExecutor:
        dialler = self.dialler(runtime)
        transport = make_transport(dialler.connect, runtime, dialler.round_trip, self.shown, self._address.connections)
        self._resources.wires.append(transport)
        return PostgresqlExecutor(transport, dialler, runtime, me, self._routines, self._floors, subscriber)

    def subscriber(self, runtime: Runtime, me: ClientIdentity) -> PostgresqlSubscriber | None:
        resources = self._resources
        if resources.subscriber is None and self._address.wake == "messages":
            resources.subscriber = PostgresqlSubscriber(self.dialler(runtime), runtime, me)
        return resources.subscriber


def of_url(url: Url, **options: Any) -> Store:
    return _of(Address.of(url, **options))


def of_driver(driver: object, **options: Any) -> Store:
    """A store with the settings of a psycopg pool or an SQLAlchemy engine."""
    return _of(Address.of_driver(driver, **options))


def _of(address: Address) -> Store:
    return SessionStore(address) if address.mode == SESSION else PostgresqlStore(address)


class SessionStore:
    """The store in session mode: each lock is held by a connection of its own. Cells and `within` use the tables."""

    backend: ClassVar[str] = "postgresql"
    capabilities: ClassVar[frozenset[str]] = _SESSION_MODE
    server: ClassVar[str] = "postgresql"

    def __init__(self, address: Address) -> None:
        self.shown = address.shown
        self._address = address
        self._tables = tables = PostgresqlStore(address)
        self._claims: Claims | None = None
        self.open_cells, self.open_within, self.ddl = tables.open_cells, tables.open_within, tables.ddl

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        subscriber, lease = self._tables.subscriber(runtime, me), me.lease
        if self._claims is None:
            dialler = self._tables.dialler(runtime)
            connect, keep = SessionDialler(dialler, lease).connect, self._address.connections
            pool = SessionPool(connect, runtime, me, dialler.round_trip, self.shown, keep)
            source = None if subscriber is None else subscriber.source
            self._claims = SessionClaims(pool, lambda one, by: one.hear(by, lease), runtime.now, source)
            me.inbox.listen(self._claims)
        return SessionQueue(self._tables.executor(runtime, me, subscriber), self._claims, runtime)

    def close(self) -> None:
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.close()
        self._tables.close()

    def before_fork(self) -> None:
        """The child closes inherited sockets without a message to the server."""

    def after_fork(self, child: bool) -> None:
        if child and self._claims is not None:
            self._claims.abandon()
            self._claims = None
        self._tables.after_fork(child)
