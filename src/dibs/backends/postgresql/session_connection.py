"""A connection for session mode, and conversations on it.

It is the server's own: a pooler or a standby is refused. The server ends one that is silent for the client's lease
(PostgreSQL 14 and later), counted from the end of the last statement. The holder's own deadline counts from before that
was sent, and so has passed by then.
"""

from __future__ import annotations

import psycopg
from psycopg.pq.abc import PGresult

from dibs.backends.common.connections import Begun
from dibs.backends.common.session_claims import readable_in
from dibs.backends.postgresql.answers import Refusal, final
from dibs.backends.postgresql.connection import Call, Dialler, PostgresqlConnection, broken
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_LONGEST = 2**31 - 1
_HAS_IDLE_TIMEOUT = 140_000
_HAS_USER_TIMEOUT = 120_000
_PROBES, _LONGEST_PROBE = 3, 32_767
_SETTINGS = (
    "SET search_path = pg_catalog, pg_temp; "  # names mean the server's own functions and operators
    "SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; SET lock_timeout = 0; "
    "SET idle_in_transaction_session_timeout = 0; "
    "SET tcp_keepalives_idle = {probe}; SET tcp_keepalives_interval = {probe}; SET tcp_keepalives_count = {probes}; "
)
_IDLE = "SET idle_session_timeout = {lease}; "
_UNHEARD = "SET tcp_user_timeout = {lease}; "
_ASKED = "SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint, pg_is_in_recovery()"


class SessionDialler:
    def __init__(self, dialler: Dialler, lease: float) -> None:
        self._dialler = dialler
        self._lease = lease

    def connect(self, until: float, begun: Begun) -> PostgresqlConnection:
        connection = self._dialler.connect(until, begun)
        try:
            if not connection.is_direct:
                raise StoreError(
                    'a pooler answers, which shares one session among clients: it would share a mode="session" lock',
                    step='use a URL that reaches the server directly, or use mode="lease"',
                )
            reply = connection.simple(self._settings(connection).encode(), until)
            if reply.get_value(0, 1) != b"f":
                raise StoreError(
                    "this server is a standby: its locks do not count on the primary",
                    step="give the primary, or several hosts: postgresql://h1,h2/db uses the one that accepts writes",
                )
            connection.note(reply)
        except Refusal as refusal:
            connection.close()
            raise final(refusal) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _settings(self, connection: PostgresqlConnection) -> str:
        version = connection.conn.server_version if connection.conn is not None else 0
        text = _SETTINGS
        if version >= _HAS_USER_TIMEOUT:
            text += _UNHEARD
        if version >= _HAS_IDLE_TIMEOUT:
            text += _IDLE
        probe = max(round(self._lease / _PROBES), 1)
        lease = min(round(self._lease * 1000), _LONGEST)
        return text.format(lease=lease, probe=min(probe, _LONGEST_PROBE), probes=_PROBES) + _ASKED


class SessionIo:
    """Requests on a connection that the caller alone uses. Whatever ends one early closes the connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._blocks = runtime.soon is None
        self._readable = readable_in(runtime)

    async def exchange(self, connection: PostgresqlConnection, call: Call, until: float) -> PGresult:
        """Ask, and wait for the reply; a refusal leaves the connection usable."""
        if self._blocks:
            return connection.exchange(call, until)
        now, trip = self._now(), connection.round_trip
        try:
            connection.begin(call)
        except psycopg.Error as error:
            connection.close()
            raise broken(error) from None
        result = await self.arrived(connection, min(max(until, now + trip.least), now + trip.attempt))
        if result is None:
            connection.close()
            raise StoreUnavailable("the server did not answer in time")
        connection.note(result)
        return result

    async def arrived(self, connection: PostgresqlConnection, until: float) -> PGresult | None:
        """The reply to what was begun; None: it has not come by then, and may be waited for again."""
        try:
            while (result := connection.received()) is None:
                if not await self._readable(connection, until):
                    return None
            return result
        except psycopg.Error as error:
            connection.close()
            raise broken(error) from None
        except Refusal:
            raise
        except BaseException:
            connection.close()
            raise
