"""The `postgresql://` store: a server, or the one of several that can be written to, also behind a pooler.

The first request makes the tables if they are missing. A client has one subscriber; waiters take no connection.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.common.lifecycle import NetworkStore, make_transport
from dibs.backends.common.session_claims import SessionClaims, SessionPool
from dibs.backends.postgresql.address import SESSION, Address
from dibs.backends.postgresql.cells import PostgresqlCells
from dibs.backends.postgresql.connection import Dialler
from dibs.backends.postgresql.executor import Floors, PostgresqlExecutor
from dibs.backends.postgresql.polling import Polling
from dibs.backends.postgresql.queue import PostgresqlQueue
from dibs.backends.postgresql.routines import Routines
from dibs.backends.postgresql.session import Claims, SessionQueue
from dibs.backends.postgresql.session_connection import SessionDialler
from dibs.backends.postgresql.subscriber import PostgresqlSubscriber
from dibs.backends.postgresql.within import Enclosure
from dibs.core.cells import Cells
from dibs.core.queue import (
    ATOMIC_TRY,
    CELLS,
    DDL,
    FAIR,
    LEASES,
    PERMITS,
    RECORDS,
    RW,
    WITHIN,
    ClientIdentity,
    Encloses,
    Queue,
    Store,
)
from dibs.core.runtime import Runtime
from dibs.url import Url


class PostgresqlStore(NetworkStore[PostgresqlSubscriber]):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, RECORDS, DDL, WITHIN}
    )
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
        return PostgresqlQueue(self.executor(runtime), self.subscriber(runtime, me), self._polling, runtime, me)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return PostgresqlCells(self.executor(runtime), self.subscriber(runtime, me), runtime, me)

    def open_within(self, runtime: Runtime, me: ClientIdentity) -> Encloses:
        return Enclosure(self.executor(runtime))

    def ddl(self) -> str:
        """The statements that create the tables and routines, for a role that may run them."""
        return f"{self._routines.ddl()}\n{self._routines.grants()}\n"

    def dialler(self, runtime: Runtime) -> Dialler:
        return Dialler(self._address, runtime.now, self._resources.round_trip())

    def executor(self, runtime: Runtime) -> PostgresqlExecutor:
        dialler = self.dialler(runtime)
        transport = make_transport(dialler.connect, runtime, dialler.round_trip, self.shown, self._address.connections)
        self._resources.wires.append(transport)
        return PostgresqlExecutor(transport, dialler, runtime, self._routines, self._floors)

    def subscriber(self, runtime: Runtime, me: ClientIdentity) -> PostgresqlSubscriber | None:
        resources = self._resources
        if resources.subscriber is None and self._address.wake == "messages":
            resources.subscriber = PostgresqlSubscriber(self.dialler(runtime), runtime, me)
        return resources.subscriber


def of_url(url: Url, **options: Any) -> Store:
    return _of(Address.of(url, **options))


def of_driver(driver: object, **options: Any) -> Store:
    """With the settings of a pool of psycopg's, or of an engine of SQLAlchemy's."""
    return _of(Address.of_driver(driver, **options))


def _of(address: Address) -> Store:
    return SessionStore(address) if address.mode == SESSION else PostgresqlStore(address)


class SessionStore:
    """The same place in session mode: a lock is held by a connection of its own, and by no row."""

    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, ATOMIC_TRY, CELLS, DDL, WITHIN})
    server: ClassVar[str] = "postgresql"

    def __init__(self, address: Address) -> None:
        self.shown = address.shown
        self._address = address
        self._place = PostgresqlStore(address)
        self._claims: Claims | None = None
        self.open_cells, self.open_within, self.ddl = self._place.open_cells, self._place.open_within, self._place.ddl

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        subscriber, lease = self._place.subscriber(runtime, me), me.lease
        if self._claims is None:
            dialler = self._place.dialler(runtime)
            connect, keep = SessionDialler(dialler, lease).connect, self._address.connections
            pool = SessionPool(connect, runtime, me, dialler.round_trip, self.shown, keep)
            source = None if subscriber is None else subscriber.source
            self._claims = SessionClaims(pool, lambda one, by: one.hear(by, lease), runtime.now, source)
            me.inbox.listen(self._claims)
        return SessionQueue(self._place.executor(runtime), self._claims, subscriber, runtime, me)

    def close(self) -> None:
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.close()
        self._place.close()

    def before_fork(self) -> None:
        """As the other."""

    def after_fork(self, child: bool) -> None:
        if child:
            if self._claims is not None:
                self._claims.abandon()
                self._claims = None
            self._place.after_fork(child)
