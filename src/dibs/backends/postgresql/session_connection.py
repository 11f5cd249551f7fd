"""A connection for session mode, requests on it, and the claim that lives by it (see common/session_claims.py).

It is the server's own: a pooler or a standby is refused. The server ends one that is silent for the client's lease
(PostgreSQL 14 and later), counted from the end of the last statement. The holder's own deadline counts from before that
was sent, and so has passed by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import psycopg
from psycopg.pq.abc import PGresult

from dibs.backends.common.connections import Begun
from dibs.backends.common.session_claims import GONE, HOLDS, SessionClaim, readable_in
from dibs.backends.postgresql.connection import Dialler, PostgresqlConnection, RoutineCall, broken
from dibs.backends.postgresql.errors import Refusal, final
from dibs.backends.postgresql.executor import words_of
from dibs.core.deadline import FOREVER, left_for, valid_until
from dibs.core.queue import LOOK, YOURS, Signal
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

_LATE = 0.25
"""Part of a lease: a grant that the server made longer ago counts once the server has replied again."""
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
    """Requests on a connection that the caller alone uses. Anything that ends one early closes the connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._blocks = runtime.call_soon is None
        self._readable = readable_in(runtime)

    async def exchange(self, connection: PostgresqlConnection, call: RoutineCall, until: float) -> list[bytes]:
        """The words of the reply; a refusal leaves the connection usable."""
        if self._blocks:
            return words_of(connection.exchange(call, until))
        self.begin(connection, call)
        return await self.words(connection, until)

    def begin(self, connection: PostgresqlConnection, call: RoutineCall) -> None:
        with connection.guarded():
            connection.begin(call)

    async def words(self, connection: PostgresqlConnection, until: float) -> list[bytes]:
        """The words of the reply to what was begun."""
        now, trip = connection.sent_at, connection.round_trip
        result = await self.arrived(connection, min(max(until, now + trip.least), now + trip.attempt))
        if result is None:
            connection.close()
            raise StoreUnavailable("the server did not answer in time")
        connection.note(result)
        return words_of(result)

    async def arrived(self, connection: PostgresqlConnection, until: float) -> PGresult | None:
        """The reply to what was begun; None: it has not come by then, and may be waited for again."""
        with connection.guarded():
            while (result := connection.received()) is None:
                if not await self._readable(connection, until):
                    return None
            return result


class PostgresqlClaim(SessionClaim[PostgresqlConnection]):
    __slots__ = ("anchor", "key", "leave", "pinged", "shared")

    def __init__(self, claim: Claim, key: int, leave: RoutineCall) -> None:
        super().__init__(claim)
        self.key = key
        self.leave = leave
        """The request that gives the key back."""
        self.shared = claim.weight < claim.capacity
        self.anchor = -inf
        """When the last statement was sent that the server has replied to: it holds for a lease longer than that."""
        self.pinged: float | None = None
        """When the request was sent that the server still owes a reply to."""

    def settle(self, words: Sequence[bytes], sent_at: float) -> bool:
        """Read the reply of `take`: whether it holds."""
        if words[1] != b"s" or len(words) != 3 or not words[2].isdigit():
            return False
        self.claim.ticket = int(words[2])
        self.anchor = sent_at
        self.state = HOLDS
        return True

    def hear(self, connection: PostgresqlConnection, lease: float) -> Signal | None:
        """Read the reply to its wait: see `SessionClaims`."""
        try:
            result = connection.received()
        except psycopg.Error as error:
            raise broken(error) from None
        if result is None:
            return None
        if not self.settle(words_of(result), -inf):
            self.state = GONE
            return LOOK
        return YOURS if connection.age_of(result) <= lease * _LATE else LOOK

    def standing(self, lease: float, now: float) -> Standing | None:
        """None: gone. The lease of a waiter begins when it is granted. So half of one may count from any moment at
        which it was not, if the reply that says so comes in less than the other half; `hear` sees to that."""
        if self.state is GONE:
            return None
        if self.state is not HOLDS:
            return Standing(0, False, min(self.claim.waiting, lease / 2), FOREVER, False)
        left = lease if now == self.anchor else left_for(valid_until(self.anchor, lease), now)
        return Standing(self.claim.ticket or 0, True, left, FOREVER, self.revoked)
