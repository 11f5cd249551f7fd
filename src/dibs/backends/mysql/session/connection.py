"""A connection that at most one claim lives by, and how it is made.

Nothing in `Session` waits: its user asks, and reads what has come. At most one statement is on its way at a time. If
anything is raised here, the user closes the connection, and the server frees what it held.

The server ends a session that is silent for the client's lease and a little more: so a holder whose machine is gone
loses what it holds, after its own deadline. A proxy that shares its connections would give our session to others: that
is refused.
"""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from dibs.backends.common.connections import Begun
from dibs.backends.common.session_claims import SessionConnection
from dibs.backends.common.wakeup import Readiness
from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.connection import Dialler, MysqlConnection, broken
from dibs.backends.mysql.errors import unsent
from dibs.backends.mysql.executor import number, words
from dibs.backends.mysql.wire import Refusal, Reply, statement
from dibs.errors import StoreError, StoreUnavailable

_CHUNK = 65_536
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_WHO = statement(
    "SELECT CONNECTION_ID(), @@version_comment, @@version, IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"
)
TAKE = (
    "UPDATE dibs_sessions SET session = CONNECTION_ID(), ticket = LAST_INSERT_ID(IF(NEXTVAL(dibs_tickets) >="
    " TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 200000, LASTVAL(dibs_tickets), 0)),"
    " kind = ?, revoked = 0, since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), lease = ?,"
    " about = ? WHERE lock_name = ? AND plain AND GET_LOCK(?, 0)"
)
"""Take a user lock that is free, and was held in this mode lately: see apart.sql and ticket.sql. Where the counter is
behind the clock, it makes no ticket. MySQL has no sequence, and no such statement."""
GIVE = "DO RELEASE_LOCK(?)"
"""Only the session that has it can do so: if it answers, it had it until then."""
_LONGEST = 31_536_000
"""Seconds; the server counts no further."""
_PROXIES = ("maxscale", "proxysql")
_ALIVE = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 9))
"""Parts of a lease after which the system asks whether the other end is there, and asks again."""


class Session(SessionConnection):
    def __init__(self, connection: MysqlConnection, number: int, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.connection = connection
        self.number = number
        """The server's, of this session."""
        self._sock = connection.sock
        self._fd = self._sock.fileno()
        self._sock.settimeout(0)
        self._answer: Reply | None = None
        self.readiness = Readiness(self._fd)

    def fileno(self) -> int:
        return self._fd

    def is_reusable(self) -> bool:
        return not self.asked

    def is_stale(self) -> bool:
        return self.readiness.wait(0.0)

    def close(self) -> None:
        self.seat = None
        self.connection.close()

    def end(self) -> None:
        """The server does not listen to a goodbye in the middle of a statement."""
        if self.asked:
            self.close()
        else:
            self.seat = None
            self.connection.end()

    @property
    def asked(self) -> bool:
        """Something is still to be answered."""
        return self._answer is not None

    def ask(self, request: Request, now: float) -> None:
        self._answer, self.sent_at = Reply(), now
        try:
            self._sock.sendall(request.packed(0.0))
        except OSError as error:
            raise broken(error) from None

    def read(self) -> bool:
        """Take in what has come. True: the answer is whole."""
        answer = self._answer
        if answer is None:
            raise StoreUnavailable("the server sent an unexpected message")
        try:
            while True:
                received = self._sock.recv(_CHUNK)
                if answer.feed(received):
                    return True
                if len(received) < _CHUNK and not isinstance(self._sock, ssl.SSLSocket):
                    return False
        except _NOT_NOW:
            return False
        except StoreUnavailable:
            raise
        except OSError as error:
            raise broken(error) from None

    def begun(self) -> list[bytes] | None:
        """The words that an answer begins with which is not whole yet."""
        sets = None if self._answer is None else self._answer.so_far()
        return words(sets[:1], 2) if sets else None

    def told(self) -> list[bytes] | None:
        """The words that end the answer to a wait. Its end itself comes a little later, in a message of its own: who
        waits need not wait for that, too."""
        sets = None if self._answer is None else self._answer.so_far()
        return words(sets, 2) if sets and len(sets) > 1 else None

    def answer(self) -> Reply:
        """A whole one; a refusal is raised. From now on it can be asked again."""
        answer, self._answer = self._answer, None
        if answer is None:
            raise StoreUnavailable("nothing was asked")
        answer.result()
        return answer

    def result(self) -> list[bytes]:
        """The words of a whole answer."""
        return words(self.answer().result(), 2)


class SessionDialler:
    def __init__(self, dialler: Dialler, lease: float) -> None:
        self._dialler = dialler
        self._lease = lease
        self.database = b""
        """Its name, as the server has it; known once there was a session."""

    def connect(self, until: float, begun: Begun) -> Session:
        connection = self._dialler.connect(until, begun)
        try:
            (who,) = connection.ask(_WHO, until)[0]
            if refusal := unfit(connection.greeted_as, *who[:3]):
                raise refusal
            # Longer than what our own deadlines are counted from, as it is counted from a little later.
            connection.ask(statement(f"SET SESSION wait_timeout = {min(math.ceil(self._lease) + 1, _LONGEST)}"), until)
            if b"mariadb" in (who[2] or b"").lower() and connection.is_plain:
                connection.take_code = connection.prepare(TAKE, until)
                connection.leave_code = connection.prepare(GIVE, until) if connection.take_code else b""
        except Refusal as refused:
            raise unsent(refused) from None
        except BaseException:
            connection.close()
            raise
        keep_alive(connection.sock, self._lease)
        self.database = who[3] or b""
        return Session(connection, number(who[0]), self._dialler.now)


def keep_alive(sock: socket.socket, lease: float) -> None:
    """So that a waiter, which is silent, learns that the way to the server is gone."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, part in _ALIVE:
            with suppress(AttributeError, OSError):  # not every system has them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), max(int(lease / part), 1))


def unfit(greeted_as: int, is_session: bytes | None, comment: bytes | None, version: bytes | None) -> StoreError | None:
    """Why a session there would not be ours alone. A proxy greets with a number of its own."""
    said = ((comment or b"") + b" " + (version or b"")).decode(errors="replace").lower()
    known = next((name for name in _PROXIES if name in said), None)
    if known is None and number(is_session) % 2**32 == greeted_as:  # four bytes of it
        return None
    what = f"a proxy ({known})" if known else "a proxy"
    return StoreError(
        f"{what} answers there: it shares one server session among clients, and would share the lock too",
        step='connect to the server directly, or use mode="lease"',
    )
