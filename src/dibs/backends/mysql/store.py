"""The `mysql://` store, which is MariaDB's too. A client has one subscriber, once something of it waits."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from dibs.backends.common.lifecycle import NetworkStore, make_wire
from dibs.backends.mysql import schema
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.cells import MysqlCells
from dibs.backends.mysql.connection import Dialler
from dibs.backends.mysql.executor import MysqlExecutor
from dibs.backends.mysql.line import MysqlLine
from dibs.backends.mysql.subscriber import MysqlSubscriber
from dibs.backends.mysql.watching import Watching
from dibs.backends.mysql.within import Enclosure
from dibs.core.cells import Cells
from dibs.core.line import ATOMIC_TRY, CELLS, DDL, FAIR, LEASES, PERMITS, RECORDS, RW, WITHIN, Encloses, Me
from dibs.core.runtime import Runtime


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

    def open(self, runtime: Runtime, me: Me) -> MysqlLine:
        port, subscriber = self._executor(runtime), self._subscriber(runtime, me)
        watching = Watching(port, subscriber, runtime, me, self._over)
        return MysqlLine(port, subscriber, watching, runtime, me, self._address)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        port = self._executor(runtime)
        watching = Watching(port, self._subscriber(runtime, me), runtime, me, self._over)
        return MysqlCells(port, watching, self._address.prefix)

    def open_within(self, runtime: Runtime, me: Me) -> Encloses:
        return Enclosure(self._executor(runtime), runtime, self._address.database, self._address.prefix)

    def ddl(self) -> str:
        """The statements that make the tables and routines, for whoever may run them."""
        return schema.ddl(self._address.database)

    def dialler(self, runtime: Runtime) -> Dialler:
        return Dialler(self._address, runtime.now, self._resources.round_trip())

    def _executor(self, runtime: Runtime) -> MysqlExecutor:
        dialler = self.dialler(runtime)
        wire = make_wire(dialler.ready, runtime, dialler.round_trip, self.shown, self._address.connections)
        self._resources.wires.append(wire)
        return MysqlExecutor(wire, dialler, runtime)

    def _subscriber(self, runtime: Runtime, me: Me) -> MysqlSubscriber:
        resources = self._resources
        if resources.subscriber is None:
            resources.subscriber = MysqlSubscriber(self.dialler(runtime), runtime, me)
        return resources.subscriber
