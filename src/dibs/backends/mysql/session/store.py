"""The `mysql://` store in session mode: see line.py. Latches, cells and fences are those of the store in tables.

The face and the watchdog share the sessions, as claims live by them; what is not about a claim goes by the connections
that each of them has.
"""

from __future__ import annotations

from typing import ClassVar

from dibs.backends.common.session_claims import SessionClaims, SessionPool
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.session.claim import Claims
from dibs.backends.mysql.session.connection import SessionDialler
from dibs.backends.mysql.session.line import SessionLine
from dibs.backends.mysql.store import MysqlStore
from dibs.core.cells import Cells
from dibs.core.line import ATOMIC_TRY, CELLS, DDL, FAIR, WITHIN, Encloses, Line, Me
from dibs.core.runtime import Runtime


class SessionStore:
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, ATOMIC_TRY, CELLS, DDL, WITHIN})
    server: ClassVar[str] = "mysql"

    def __init__(self, address: Address) -> None:
        self._address = address
        self._leased = MysqlStore(address)
        self.shown = address.shown
        self._shared: tuple[SessionDialler, Claims] | None = None

    def open(self, runtime: Runtime, me: Me) -> Line:
        dialler = self._leased.dialler(runtime)
        if self._shared is None:
            sessions, now = SessionDialler(dialler, me.lease), runtime.now
            keep = self._address.connections
            pool = SessionPool(sessions.connect, runtime, me, dialler.round_trip, self.shown, keep)
            self._shared = sessions, SessionClaims(pool, lambda one, session: one.hear(session, now()), now)
        return SessionLine(self._leased.open(runtime, me), *self._shared, dialler, runtime, me)

    def open_cells(self, runtime: Runtime, me: Me) -> Cells:
        return self._leased.open_cells(runtime, me)

    def open_within(self, runtime: Runtime, me: Me) -> Encloses:
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
