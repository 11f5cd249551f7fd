"""The sessions of one client: each claim has one of its own, and some are kept for the next.

The server ends a session that says nothing for as long as the client's lease and a little more: so a holder whose
machine is gone loses what it holds, after its own deadline. Whatever stands between us and the server, and shares its
connections, would give our session to somebody else: that is refused.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from contextlib import suppress
from weakref import WeakSet

from dibs.backends.common.connections import SESSION_DIALS, TRUSTED, Begun, Pool, closed, expired
from dibs.backends.common.disconnects import Disconnects
from dibs.backends.mysql.answers import unsent
from dibs.backends.mysql.connection import Dialler, MysqlConnection
from dibs.backends.mysql.executor import number
from dibs.backends.mysql.session.session import Session
from dibs.backends.mysql.wire import Refusal, statement
from dibs.core.line import Me
from dibs.core.runtime import Runtime
from dibs.errors import StoreError

_WHO = statement(
    "SELECT CONNECTION_ID(), @@version_comment, @@version, IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE())"
)
_ISOLATION = statement("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
"""What a statement reads by the way it does not lock then, and has not read before it began."""
_LONGEST = 31_536_000
"""Seconds; the server counts no further."""
_PROXIES = ("maxscale", "proxysql")
_ALIVE = (("TCP_KEEPIDLE", 3), ("TCP_KEEPINTVL", 9))
"""Parts of a lease after which the system asks whether the other end is there, and asks again."""


class Sessions:
    def __init__(self, dialler: Dialler, runtime: Runtime, me: Me, most: int) -> None:
        """`most`: so many are kept that nobody uses."""
        self._dialler = dialler
        self._now = dialler.now
        self._me = me
        self._most = most
        self._idle: deque[Session] = deque()
        self._dialled = Pool(
            self._connect, dialler.now, dialler.round_trip, dialler.shown, keep=most, dials=SESSION_DIALS
        )
        self._open: WeakSet[Session] = WeakSet()
        """Weakly: one that an interrupt has dropped is closed by that."""
        self._hangups = Disconnects(runtime, self._ended, self._tidied)
        self._closed = False
        self.database = b""
        """Its name, as the server has it; known once there was a session."""

    async def take(self, runtime: Runtime, until: float) -> Session:
        """One that nobody else has."""
        while self._idle:
            try:
                session = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if not session.cut and (self._now() - session.used_at < TRUSTED or not session.wait(0.0)):
                return session
            self.discard(session)
        return await runtime.offload(lambda: self._made(until))

    def give(self, session: Session) -> None:
        """It holds nothing, and nothing is on its way."""
        session.claim_id = None
        session.used_at = self._now()
        if session.cut or len(self._idle) >= self._most:
            self.discard(session, farewell=True)
            return
        self._idle.append(session)
        if self._closed:  # not before: close() may just have looked
            self.discard(session, farewell=True)

    def discard(self, session: Session, *, farewell: bool = False) -> None:
        """What it held is free as soon as the server has seen that."""
        self._hangups.ignore(session.fd, session)
        self._open.discard(session)
        if farewell:
            session.link.end()
        else:
            session.link.close()

    def close(self) -> None:
        self._closed = True
        self._dialled.close()
        self._hangups.close()
        for session in list(self._open):
            self.discard(session, farewell=not session.asked)
        self._idle.clear()

    def abandon(self) -> None:
        """In a forked child."""
        self._closed = True
        self._dialled.abandon()
        self._hangups.abandon()
        for session in list(self._open):
            session.link.close()

    def _connect(self, until: float, begun: Begun) -> MysqlConnection:
        link = self._dialler.connect(until, begun)
        try:
            (who,) = link.ask(_WHO, until)[0]
            if refusal := unfit(link.greeted_as, *who[:3]):
                raise refusal
            # Longer than what our own deadlines are counted from, as it is counted from a little later.
            link.ask(_ISOLATION, until)
            link.ask(statement(f"SET SESSION wait_timeout = {min(math.ceil(self._me.lease) + 1, _LONGEST)}"), until)
        except Refusal as refused:
            raise unsent(refused) from None
        except BaseException:
            link.close()
            raise
        keep_alive(link.sock, self._me.lease)
        self.database = who[3] or b""
        link.number = number(who[0])
        return link

    def _made(self, until: float) -> Session:
        """Blocks. One that is not there in time is left to the next caller."""
        link = self._dialled.take(until)
        session = Session(link, link.number)
        self._open.add(session)
        if self._closed:
            self.discard(session)
            raise closed()
        self._hangups.attend(session.fd, session)
        return session

    def _tidied(self) -> None:
        """End those that nobody will use any more, before the server does and writes it into its log."""
        before = self._now() - self._me.lease / 2
        for session in expired(self._idle, lambda one: one.used_at <= before):
            self.discard(session, farewell=True)
        for link in expired(self._dialled.idle, lambda one: one.used_at <= before):
            link.end()

    def _ended(self, session: Session) -> None:
        session.cut = True
        if session.claim_id is not None:
            self._me.news(session.claim_id)


def keep_alive(sock: socket.socket, lease: float) -> None:
    """So that a waiter, who says nothing, learns that the way to the server is gone."""
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
        f"{what} answers there: the server's session is not ours alone, and with it the lock would be another's",
        step='name the server itself, or use leases: leave mode="session" away',
    )
