"""The `postgresql://` store: a server, or the one of several that can be written to, also behind a pooler.

Making it does no I/O; the first question connects, and makes the tables if they are missing. A client has one
connection to listen on, and each way to the store (the face's, the keeper's) connections of its own: what one of them
suffers the other does not, and those who wait take none from those who hold.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.kept import Kept
from dibs.backends.postgresql.address import SESSION, Address
from dibs.backends.postgresql.cells import PostgresqlCells
from dibs.backends.postgresql.ear import Ear
from dibs.backends.postgresql.line import PostgresqlLine
from dibs.backends.postgresql.link import Dialer
from dibs.backends.postgresql.looks import Looks
from dibs.backends.postgresql.pool import Pool
from dibs.backends.postgresql.port import Floors, Port, Wire
from dibs.backends.postgresql.routines import Routines
from dibs.backends.postgresql.session import SessionLine
from dibs.backends.postgresql.stands import Stands
from dibs.backends.postgresql.talk import Talk, ThreadTalk
from dibs.backends.postgresql.within import Enclosure
from dibs.core.cells import Cells
from dibs.core.line import ATOMIC_TRY, CELLS, DDL, FAIR, LEASES, PERMITS, RECORDS, RW, WITHIN, Encloses, Line, Me, Store
from dibs.core.runtime import Runtime
from dibs.url import Url


class PostgresqlStore:
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, RECORDS, DDL, WITHIN}
    )
    server: ClassVar[str] = "postgresql"

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
        return PostgresqlLine(self.port(runtime), self.listening(runtime, me), self._looks, runtime, me)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        return PostgresqlCells(self.port(runtime), self.listening(runtime, me), runtime, me)

    def open_within(self, runtime: Runtime, me: Me) -> Encloses:
        return Enclosure(self.port(runtime))

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

    def port(self, runtime: Runtime) -> Port:
        dialer = Dialer(self._address, runtime.now)
        wire = self._wire(dialer, runtime)
        self._kept.wires.append(wire)
        return Port(wire, dialer, runtime, self._routines, self._floors)

    def _wire(self, dialer: Dialer, runtime: Runtime) -> Wire:
        if runtime.soon is None:
            return Pool(dialer, self._address.connections)
        from dibs.backends.postgresql.stream import Streams  # noqa: PLC0415  (threads have no use for asyncio)

        return Streams(dialer, runtime, self._address.connections)

    def listening(self, runtime: Runtime, me: Me) -> Ear | None:
        if self._kept.ear is None and self._address.wake == "messages":
            self._kept.ear = ear = Ear(Dialer(self._address, runtime.now), runtime, me)
            me.inbox.listen(ear)
        return self._kept.ear


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
        self._stands: Stands | None = None
        self.open_cells, self.open_within, self.ddl = self._place.open_cells, self._place.open_within, self._place.ddl

    def open(self, runtime: Runtime, me: Me) -> Line:
        stands = self._stands
        if stands is None:
            dialer = Dialer(self._address, runtime.now)
            ear = self._place.listening(runtime, me)
            stands = self._stands = Stands(dialer, runtime, me, ear, self._address.connections)
            me.inbox.listen(stands)
        return SessionLine(self._place.port(runtime), self._talk(runtime), stands, runtime, me)

    def close(self) -> None:
        stands, self._stands = self._stands, None
        if stands is not None:
            stands.close()
        self._place.close()

    def before_fork(self) -> None:
        """As the other."""

    def after_fork(self, child: bool) -> None:
        if child:
            if self._stands is not None:
                self._stands.abandon()
                self._stands = None
            self._place.after_fork(child)

    @staticmethod
    def _talk(runtime: Runtime) -> Talk:
        if runtime.soon is None:
            return ThreadTalk(runtime.now)
        from dibs.backends.postgresql.looptalk import LoopTalk  # noqa: PLC0415  (threads have no use for asyncio)

        return LoopTalk(runtime)
