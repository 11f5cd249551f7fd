"""The `mysql://` store, which is MariaDB's too.

Making it does no I/O; the first question connects. A client has one session in which it listens, once something of it
waits, and each way to the store (the face's, the keeper's) connections of its own: what one of them suffers the other
does not.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from dibs.backends.kept import Kept
from dibs.backends.mysql import schema
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.cells import MysqlCells
from dibs.backends.mysql.ear import Ear
from dibs.backends.mysql.line import MysqlLine
from dibs.backends.mysql.link import Dialer
from dibs.backends.mysql.pool import Pool
from dibs.backends.mysql.port import Port, Wire
from dibs.backends.mysql.watching import Watching
from dibs.backends.mysql.within import Enclosure
from dibs.core.cells import Cells
from dibs.core.line import ATOMIC_TRY, CELLS, DDL, FAIR, LEASES, PERMITS, RECORDS, RW, WITHIN, Encloses, Me
from dibs.core.runtime import Runtime


class MysqlStore:
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, DDL, RECORDS, WITHIN}
    )
    server: ClassVar[str] = "mysql"

    def __init__(self, address: Address) -> None:
        self._address = address
        self.shown = address.shown
        self._begin()

    def _begin(self) -> None:
        self._kept: Kept[Ear] = Kept()
        self._over: deque[bytes] = deque()

    def open(self, runtime: Runtime, me: Me) -> MysqlLine:
        port, ear = self._port(runtime), self._listening(runtime, me)
        watching = Watching(port, ear, runtime, me, self._over)
        return MysqlLine(port, ear, watching, runtime, me, self._address)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        port = self._port(runtime)
        watching = Watching(port, self._listening(runtime, me), runtime, me, self._over)
        return MysqlCells(port, watching, self._address.prefix)

    def open_within(self, runtime: Runtime, me: Me) -> Encloses:
        return Enclosure(self._port(runtime), runtime, self._address.database, self._address.prefix)

    def ddl(self) -> str:
        """The statements that make the tables and routines, for whoever may run them."""
        return schema.ddl(self._address.database)

    def close(self) -> None:
        self._kept.close()

    def before_fork(self) -> None:
        """The child closes what it inherits, without a word to the server."""

    def after_fork(self, child: bool) -> None:
        if child:
            self._kept.abandon()
            self._begin()

    def _port(self, runtime: Runtime) -> Port:
        dialer = Dialer(self._address, runtime.now)
        wire = self._wire(dialer, runtime)
        self._kept.wires.append(wire)
        return Port(wire, dialer, runtime)

    def _wire(self, dialer: Dialer, runtime: Runtime) -> Wire:
        if runtime.soon is None:
            return Pool(dialer, self._address.connections)
        from dibs.backends.mysql.stream import Streams  # noqa: PLC0415  (threads have no use for asyncio)

        return Streams(dialer, runtime, self._address.connections)

    def _listening(self, runtime: Runtime, me: Me) -> Ear:
        if self._kept.ear is None:
            self._kept.ear = Ear(Dialer(self._address, runtime.now), runtime, me)
        return self._kept.ear
