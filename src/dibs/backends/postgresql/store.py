"""The `postgresql://` store: a server, or the one of several that can be written to, also behind a pooler.

Making it does no I/O; the first question connects, and makes the tables if they are missing. A client has one
connection to listen on, and each way to the store (the face's, the keeper's) connections of its own: what one of them
suffers the other does not, and those who wait take none from those who hold.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.kept import Kept
from dibs.backends.postgresql.address import Address
from dibs.backends.postgresql.cells import PostgresqlCells
from dibs.backends.postgresql.ear import Ear
from dibs.backends.postgresql.line import PostgresqlLine
from dibs.backends.postgresql.link import Dialer
from dibs.backends.postgresql.looks import Looks
from dibs.backends.postgresql.pool import Pool
from dibs.backends.postgresql.port import Floors, Port, Wire
from dibs.backends.postgresql.routines import Routines
from dibs.core.cells import Cells
from dibs.core.line import ATOMIC_TRY, CELLS, DDL, FAIR, LEASES, PERMITS, RW, Line, Me
from dibs.core.runtime import Runtime
from dibs.url import Url


class PostgresqlStore:
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, DDL})

    def __init__(self, address: Address) -> None:
        self._address = address
        self.shown = address.shown
        self._routines = Routines(address.schema)
        self._begin()

    def _begin(self) -> None:
        self._floors = Floors()
        self._looks = Looks()
        self._kept: Kept[Ear] = Kept()

    def open(self, runtime: Runtime, me: Me) -> Line:
        return PostgresqlLine(self._port(runtime), self._listening(runtime, me), self._looks, runtime, me)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        return PostgresqlCells(self._port(runtime), self._listening(runtime, me), runtime, me)

    def ddl(self) -> str:
        """The statements that make the tables and routines, for whoever may run them."""
        return f"{self._routines.ddl()}\n{self._routines.grants()}\n"

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
        return Port(wire, dialer, runtime, self._routines, self._floors)

    def _wire(self, dialer: Dialer, runtime: Runtime) -> Wire:
        if runtime.soon is None:
            return Pool(dialer, self._address.connections)
        from dibs.backends.postgresql.stream import Streams  # noqa: PLC0415  (threads have no use for asyncio)

        return Streams(dialer, runtime, self._address.connections)

    def _listening(self, runtime: Runtime, me: Me) -> Ear | None:
        if self._kept.ear is None and self._address.wake == "messages":
            self._kept.ear = Ear(Dialer(self._address, runtime.now), runtime, me)
        return self._kept.ear


def of_url(url: Url, **options: Any) -> PostgresqlStore:
    return PostgresqlStore(Address.of(url, **options))


def of_driver(driver: object, **options: Any) -> PostgresqlStore:
    """With the settings of a pool of psycopg's, or of an engine of SQLAlchemy's."""
    return PostgresqlStore(Address.of_driver(driver, **options))
