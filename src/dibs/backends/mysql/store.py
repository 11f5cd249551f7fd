"""The `mysql://` store, for MariaDB too: in tables with leases, or in session mode. A client has one subscriber, once
something of it waits."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from dibs.backends.common.lifecycle import NetworkStore, make_transport
from dibs.backends.mysql import schema
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.cells import MysqlCells, Watching
from dibs.backends.mysql.connection import Dialler
from dibs.backends.mysql.executor import MysqlExecutor
from dibs.backends.mysql.queue import MysqlQueue
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

if TYPE_CHECKING:
    from dibs.backends.mysql.session.claims import Claims
    from dibs.backends.mysql.session.connection import SessionDialler


class MysqlStore(NetworkStore[MysqlSubscriber]):
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, DDL, RECORDS, WITHIN}
    )
    server: ClassVar[str] = "mysql"

    def __init__(self, address: Address) -> None:
        self._address = address
        super().__init__(address.shown)

    def _begin(self) -> None:
        super()._begin()
        self._over: deque[bytes] = deque()

    def open(self, runtime: Runtime, me: ClientIdentity) -> MysqlQueue:
        executor, subscriber = self._executor(runtime), self._subscriber(runtime, me)
        watching = Watching(executor, subscriber, runtime, me, self._over)
        return MysqlQueue(executor, subscriber, watching, runtime, me, self._address)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        executor = self._executor(runtime)
        watching = Watching(executor, self._subscriber(runtime, me), runtime, me, self._over)
        return MysqlCells(executor, watching, self._address.prefix)

    def open_within(self, runtime: Runtime, me: ClientIdentity) -> Encloses:
        return Enclosure(self._executor(runtime), runtime, self._address.database, self._address.prefix)

    def ddl(self) -> str:
        """The statements that make the tables and routines, for whoever may run them."""
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
    """Session mode: see session/line.py. The caller's line and the watchdog's share the sessions: claims live by
    them; everything else uses the connections of each queue. Shared primitives are those of the store in tables."""

    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, ATOMIC_TRY, CELLS, DDL, WITHIN})
    server: ClassVar[str] = "mysql"

    def __init__(self, address: Address) -> None:
        self._address = address
        self._leased = MysqlStore(address)
        self.shown = address.shown
        self._shared: tuple[SessionDialler, Claims] | None = None

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        from dibs.backends.common.session_claims import SessionClaims, SessionPool  # noqa: PLC0415  (few programs use it)
        from dibs.backends.mysql.session.connection import SessionDialler  # noqa: PLC0415
        from dibs.backends.mysql.session.queue import SessionQueue  # noqa: PLC0415

        dialler = self._leased.dialler(runtime)
        if self._shared is None:
            sessions, now = SessionDialler(dialler, me.lease), runtime.now
            keep = self._address.connections
            pool = SessionPool(sessions.connect, runtime, me, dialler.round_trip, self.shown, keep)
            self._shared = sessions, SessionClaims(pool, lambda one, session: one.hear(session, now()), now)
        return SessionQueue(self._leased.open(runtime, me), *self._shared, dialler, runtime, me)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return self._leased.open_cells(runtime, me)

    def open_within(self, runtime: Runtime, me: ClientIdentity) -> Encloses:
        return self._leased.open_within(runtime, me)

    def ddl(self) -> str:
        return self._leased.ddl()

    def close(self) -> None:
        if self._shared is not None:
            self._shared[1].close()
        self._leased.close()

    def before_fork(self) -> None:
        """The child closes what it inherits, without a word to the server."""

    def after_fork(self, child: bool) -> None:
        self._leased.after_fork(child)
        if child and self._shared is not None:
            self._shared[1].abandon()
            self._shared = None


def of_url(url: Url, **options: Any) -> Store:
    return _store(Address.of(url, **options))


def of_engine(engine: object, **options: Any) -> Store:
    """With the settings of an engine of SQLAlchemy's, of either API."""
    return _store(Address.of_engine(engine, **options))


def _store(address: Address) -> Store:
    return MysqlStore(address) if address.mode == "lease" else SessionStore(address)
