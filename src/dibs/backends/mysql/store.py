"""The `mysql://` store, also for MariaDB, in lease mode and in session mode."""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.common.lifecycle import NetworkStore, make_transport
from dibs.backends.common.session_claims import SessionClaims, SessionPool
from dibs.backends.mysql import schema
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.cells import MysqlCells
from dibs.backends.mysql.connection import Dialler
from dibs.backends.mysql.executor import MysqlExecutor
from dibs.backends.mysql.queue import MysqlQueue
from dibs.backends.mysql.session.connection import Claims, SessionDialler
from dibs.backends.mysql.session.queue import SessionQueue
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.backends.mysql.within import Enclosure
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


class MysqlStore(NetworkStore[MysqlSubscriber]):
    backend: ClassVar[str] = "mysql"
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, DDL, RECORDS, WITHIN}
    )
    server: ClassVar[str] = "mysql"

    def __init__(self, address: Address) -> None:
        self._address = address
        super().__init__(address.shown)

    def open(self, runtime: Runtime, me: ClientIdentity) -> MysqlQueue:
        return MysqlQueue(self._executor(runtime), self._subscriber(runtime, me), runtime, me, self._address)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return MysqlCells(self._executor(runtime), self._subscriber(runtime, me), self._address.prefix)

    def open_within(self, runtime: Runtime, me: ClientIdentity) -> Encloses:
        return Enclosure(self._executor(runtime), runtime, self._address.database, self._address.prefix)

    def ddl(self) -> str:
        """The statements that create the tables and routines, for an administrator."""
        return schema.ddl(self._address.database)

    def dialler(self, runtime: Runtime) -> Dialler:
        return Dialler(self._address, runtime.now, self._resources.round_trip())

    def _executor(self, runtime: Runtime) -> MysqlExecutor:
        dialler = self.dialler(runtime)
        transport = make_transport(dialler.ready, runtime, dialler.round_trip, self.shown, self._address.connections)
        self._resources.wires.append(transport)
        return MysqlExecutor(transport, dialler, runtime)

    def _subscriber(self, runtime: Runtime, me: ClientIdentity) -> MysqlSubscriber:
        resources = self._resources
        if resources.subscriber is None:
            resources.subscriber = MysqlSubscriber(self.dialler(runtime), runtime, me)
        return resources.subscriber


class SessionStore:
    """Session mode: each claim lives by a connection of its own. The caller's queue and the watchdog's share these
    connections, and everything else uses those of the lease mode."""

    backend: ClassVar[str] = "mysql"
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, ATOMIC_TRY, CELLS, DDL, WITHIN})
    server: ClassVar[str] = "mysql"

    def __init__(self, address: Address) -> None:
        self.shown = address.shown
        self._address = address
        self._leased = leased = MysqlStore(address)
        self._shared: tuple[SessionDialler, Claims] | None = None
        self.open_cells, self.open_within, self.ddl = leased.open_cells, leased.open_within, leased.ddl
        self.before_fork = leased.before_fork

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        dialler = self._leased.dialler(runtime)
        if self._shared is None:
            sessions, now = SessionDialler(dialler, me.lease), runtime.now
            keep = self._address.connections
            pool = SessionPool(sessions.connect, runtime, me, dialler.round_trip, self.shown, keep)
            self._shared = sessions, SessionClaims(pool, lambda one, connection: one.hear(connection, now()), now)
        return SessionQueue(self._leased.open(runtime, me), *self._shared, dialler, runtime, me)

    def close(self) -> None:
        if self._shared is not None:
            self._shared[1].close()
        self._leased.close()

    def after_fork(self, child: bool) -> None:
        self._leased.after_fork(child)
        if child and self._shared is not None:
            self._shared[1].abandon()
            self._shared = None


def of_url(url: Url, **options: Any) -> Store:
    return _store(Address.of(url, **options))


def of_engine(engine: object, **options: Any) -> Store:
    """A store with the settings of an SQLAlchemy engine, sync or async."""
    return _store(Address.of_engine(engine, **options))


def _store(address: Address) -> Store:
    return MysqlStore(address) if address.mode == "lease" else SessionStore(address)
