"""A connection for session mode, requests on it, and the claim that it holds (see common/session_claims.py).

It must reach the primary itself: a pooler or a standby is refused. From PostgreSQL 14 on, the server ends a session
that is idle for the client's lease after its last statement. The holder's own deadline counts from before that
statement was sent, so it has passed by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from dibs.backends.common.connections import Begun
from dibs.backends.common.session_claims import GONE, HOLDS, SessionClaim, readable_in
from dibs.backends.postgresql.connection import Dialler, PostgresqlConnection, RoutineCall
from dibs.backends.postgresql.errors import Refusal, broken, final
from dibs.backends.postgresql.executor import words_of
from dibs.core.deadline import FOREVER, left_for, valid_until
from dibs.core.queue import LOOK, YOURS, Signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_LATE = 0.25
"""Part of a lease: an older grant counts only once the server has replied again."""
_LONGEST = 2**31 - 1
_HAS_IDLE_TIMEOUT = 140_000
_HAS_USER_TIMEOUT = 120_000
_PROBES, _LONGEST_PROBE = 3, 32_767
_SETTINGS = (
    "SET search_path = pg_catalog, pg_temp; "  # nobody can replace the server's functions and operators
    "SET default_transaction_isolation = 'read committed'; SET statement_timeout = 0; SET lock_timeout = 0; "
    "SET idle_in_transaction_session_timeout = 0; "
    "SET tcp_keepalives_idle = {probe}; SET tcp_keepalives_interval = {probe}; SET tcp_keepalives_count = {probes}; "
)
_IDLE = "SET idle_session_timeout = {lease}; "
_USER_TIMEOUT = "SET tcp_user_timeout = {lease}; "
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
            text += _USER_TIMEOUT
        if version >= _HAS_IDLE_TIMEOUT:
            text += _IDLE
        probe = max(round(self._lease / _PROBES), 1)
        lease = min(round(self._lease * 1000), _LONGEST)
        return text.format(lease=lease, probe=min(probe, _LONGEST_PROBE), probes=_PROBES) + _ASKED


class SessionIo:
    """Requests on a connection that only the caller uses. Any exception but a refusal closes the connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._readable = readable_in(runtime)

    async def exchange(self, connection: PostgresqlConnection, call: RoutineCall, until: float) -> list[bytes]:
        """Send a request, and give the words of its reply."""
        self.begin(connection, call)
        return await self.words(connection, until)

    def begin(self, connection: PostgresqlConnection, call: RoutineCall) -> None:
        with connection.guarded():
            connection.begin(call)

    async def words(self, connection: PostgresqlConnection, until: float) -> list[bytes]:
        """The words of the reply to the request that was begun."""
        now, trip = connection.sent_at, connection.round_trip
        result = await self.arrived(connection, min(max(until, now + trip.least), now + trip.attempt))
        if result is None:
            connection.close()
            raise StoreUnavailable("the server did not answer in time")
        connection.note(result)
        return words_of(result)

    async def arrived(self, connection: PostgresqlConnection, until: float) -> PGresult | None:
        """The reply to the request that was begun. None: it has not arrived, and a later call may wait for it."""
        with connection.guarded():
            while (result := connection.received()) is None:
                if not await self._readable(connection, until):
                    return None
            return result


class Requests(NamedTuple):
    """The requests for the claims of one lock object."""

    key: int
    take: RoutineCall
    """Take the key if it is free."""
    wait: RoutineCall
    """Wait for the key."""
    leave: RoutineCall
    """Release the key."""


class PostgresqlClaim(SessionClaim[PostgresqlConnection]):
    __slots__ = ("anchor", "leave", "pinged", "requests", "shared")

    def __init__(self, claim: Claim, requests: Requests) -> None:
        super().__init__(claim)
        self.requests = requests
        self.leave = requests.leave
        self.shared = claim.weight < claim.capacity
        self.anchor = -inf
        """When the last statement with a reply was sent: the claim holds for a lease from then."""
        self.pinged: float | None = None
        """When the ping was sent whose reply has not arrived."""

    def read_take(self, words: Sequence[bytes], sent_at: float) -> bool:
        """Read the reply of `take`. Gives whether the claim holds."""
        if words[1] != b"s" or len(words) != 3 or not words[2].isdigit():
            return False
        self.claim.ticket = int(words[2])
        self.anchor = sent_at
        self.state = HOLDS
        return True

    def hear(self, connection: PostgresqlConnection, lease: float) -> Signal | None:
        """Read the reply of `wait`: see `SessionClaims`."""
        try:
            result = connection.received()
        except psycopg.Error as error:
            raise broken(error) from None
        if result is None:
            return None
        if not self.read_take(words_of(result), -inf):
            self.state = GONE
            return LOOK
        return YOURS if connection.age_of(result) <= lease * _LATE else LOOK

    def standing(self, lease: float, now: float) -> Standing | None:
        """None: the claim is gone. A waiter's lease begins when the server grants it, maybe long before the reply. So
        half a lease counts from any moment at which it was not granted, and `hear` distrusts a reply that took longer
        than a quarter."""
        if self.state is GONE:
            return None
        if self.state is not HOLDS:
            return Standing(0, False, min(self.claim.waiting, lease / 2), FOREVER, False)
        left = lease if now == self.anchor else left_for(valid_until(self.anchor, lease), now)
        return Standing(self.claim.ticket or 0, True, left, FOREVER, self.revoked)
