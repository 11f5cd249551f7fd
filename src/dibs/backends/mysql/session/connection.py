"""A connection for session mode, and the claim that lives by it (see common/session_claims.py).

The server ends a session that is silent for the client's lease and a little more. So a holder whose machine is gone
loses its locks, after its own deadline. A proxy that shares its server connections would give our session to other
clients, and is refused.
"""

from __future__ import annotations

import math
import socket
from contextlib import suppress

from dibs.backends.common.connections import Begun
from dibs.backends.common.session_claims import GONE, HOLDS, SessionClaim, SessionClaims
from dibs.backends.mysql.calls import query, size_of
from dibs.backends.mysql.connection import Dialler, MysqlConnection
from dibs.backends.mysql.errors import unsent
from dibs.backends.mysql.executor import number, ticket_of, words
from dibs.backends.mysql.wire import Refusal, execution
from dibs.core.deadline import FOREVER
from dibs.core.queue import LOOK, YOURS, Signal
from dibs.core.rule import Claim, Standing
from dibs.errors import StoreError

_WHO = query(
    "SELECT CONNECTION_ID(), @@version_comment, @@version, IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"
)
TAKE = (
    "UPDATE dibs_sessions SET session = CONNECTION_ID(), ticket = LAST_INSERT_ID(IF(NEXTVAL(dibs_tickets) >="
    " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 200000, LASTVAL(dibs_tickets), 0)),"
    " kind = ?, revoked = 0, since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), lease = ?,"
    " about = ? WHERE lock_name = ? AND plain AND GET_LOCK(?, 0)"
)
"""Take a free user lock that was held in this mode lately: see apart.sql and ticket.sql. If the counter is behind the
clock, the ticket is 0. MySQL has no sequences, and so no such statement."""
GIVE = "DO RELEASE_LOCK(?)"
"""Only the holder's session can release a user lock. A reply proves that the session held it until then."""
_LONGEST = 31_536_000
"""Seconds; the server accepts no longer timeout."""
_PROXIES = ("maxscale", "proxysql")
_ALIVE = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 9))
"""TCP options, and the part of a lease after which the kernel probes the peer."""


class Requests:
    """The requests for the claims of one lock object."""

    __slots__ = (
        "description", "give", "give_size", "is_busy", "key", "kind", "lease", "name", "release", "take", "take_size"
    )  # fmt: skip

    def __init__(self, key: str, name: bytes, kind: str, lease: int, description: bytes) -> None:
        self.key = key
        """The name of the user lock."""
        self.name = name
        self.kind = kind
        self.lease = lease
        self.description = description
        self.release = query("DO RELEASE_LOCK({})", key)
        self.take, self.give = execution((kind, lease, description, key, key)), execution((key,))
        self.take_size, self.give_size = size_of(self.take), size_of(self.give)
        self.is_busy = False
        """The lock was not free at the last attempt: `join` needs fewer round trips."""


class MysqlClaim(SessionClaim[MysqlConnection]):
    """A waiting claim's connection is in the middle of a statement (take.sql), whose reply is the grant."""

    __slots__ = ("requests", "seen_at", "ticket")

    def __init__(self, claim: Claim, requests: Requests) -> None:
        super().__init__(claim)
        self.requests = requests
        self.ticket = 0
        self.seen_at = 0.0
        """The lease counts from here: the server had not yet seen the session silent."""

    def standing(self, lease: float, now: float) -> Standing | None:
        left = self.seen_at + lease - now
        if self.state is GONE or left <= 0:
            return None
        holds = self.state is HOLDS
        return Standing(self.ticket, holds, left if holds else min(left, self.claim.waiting), FOREVER, self.revoked)

    def hold(self, said: list[bytes]) -> None:
        self.ticket = self.claim.ticket = ticket_of(said)
        self.state = HOLDS

    def hear(self, connection: MysqlConnection, now: float) -> Signal | None:
        """Read the reply to the wait: see `SessionClaims`. The grant counts before the last packet of the reply."""
        found = connection.received()
        if found is None:
            found = connection.so_far()
            if len(found) < 2:
                self.seen_at = now
                return None
        said = words(found, 2)
        if said[1] == b"held":
            self.hold(said)
            return YOURS
        self.state = GONE
        return LOOK  # `join` asks again, and learns why


Claims = SessionClaims[MysqlClaim, MysqlConnection]


class SessionDialler:
    def __init__(self, dialler: Dialler, lease: float) -> None:
        self._dialler = dialler
        self._lease = lease
        self.database = b""
        """The name of the database, as the server writes it; known after the first connection."""

    def connect(self, until: float, begun: Begun) -> MysqlConnection:
        connection = self._dialler.connect(until, begun)
        try:
            (who,) = connection.exchange(_WHO, until)[0]
            if refusal := unfit(connection.greeted_as, *who[:3]):
                raise refusal
            # Longer than the lease: the server counts from a little later than our own deadlines do.
            connection.exchange(query(f"SET SESSION wait_timeout = {min(math.ceil(self._lease) + 1, _LONGEST)}"), until)
            if b"mariadb" in (who[2] or b"").lower():
                connection.take_code = connection.prepare(TAKE, until)
                connection.leave_code = connection.prepare(GIVE, until) if connection.take_code else b""
            connection.number = number(who[0])
        except Refusal as refused:
            raise unsent(refused) from None
        except BaseException:
            connection.close()
            raise
        keep_alive(connection.sock, self._lease)
        self.database = who[3] or b""
        return connection


def keep_alive(sock: socket.socket, lease: float) -> None:
    """Have the kernel probe the server: a waiter sends nothing, and would not notice a broken network."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, part in _ALIVE:
            with suppress(AttributeError, OSError):  # not on every system
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), max(int(lease / part), 1))


def unfit(greeted_as: int, is_session: bytes | None, comment: bytes | None, version: bytes | None) -> StoreError | None:
    """The error if a proxy answers: its greeting has another session number than the server."""
    said = ((comment or b"") + b" " + (version or b"")).decode(errors="replace").lower()
    known = next((name for name in _PROXIES if name in said), None)
    if known is None and number(is_session) % 2**32 == greeted_as:  # the greeting has four bytes of it
        return None
    what = f"a proxy ({known})" if known else "a proxy"
    return StoreError(
        f"{what} answers there: it shares one server session among clients, and would share the lock too",
        step='connect to the server directly, or use mode="lease"',
    )
