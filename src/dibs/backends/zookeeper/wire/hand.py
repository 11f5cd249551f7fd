"""A connection that is being made: greeted, logged in on, read by nobody else yet. It waits, so it is the heart's."""

from __future__ import annotations

import socket
from collections.abc import Callable

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.auth import DigestMd5, digest
from dibs.backends.zookeeper.wire.codec import Garbled, Request
from dibs.backends.zookeeper.wire.link import Link
from dibs.backends.zookeeper.wire.session import Call, Connection, Phase, Session
from dibs.errors import StoreError, StoreUnavailable


class Hand:
    """Held out to one server; once it is shaken, `link` and `connection` are there."""

    def __init__(
        self,
        address: Address,
        host: str,
        port: int,
        session: Session,
        now: Callable[[], float],
        patience: float,
        connected: socket.socket | None = None,
    ) -> None:
        """`patience`: for each round trip. `connected`: the connection, if it is made already."""
        self._now = now
        self._until = now() + patience * _round_trips(address)
        self.link = Link(host, port, address.tls, patience, connected)
        try:
            self.connection = Connection(session, now())
            self.link.send(self.connection.greet())
            self._pump(lambda: self.connection.phase is not Phase.GREETING)
            if self.connection.phase is Phase.UP and address.login is not None:
                self._log_in(address.auth, *address.login)
        except BaseException:
            self.link.close()
            raise

    def send(self, call: Call) -> None:
        self.link.send(self.connection.send((call,)))

    def ask(self, request: Request, xid: int = 0) -> Call:
        call = Call(request, xid=xid)
        self.send(call)
        self._pump(lambda: call.ended)
        self.connection.arrived.clear()
        return call

    def _log_in(self, kind: str, user: str, password: str) -> None:
        if kind == "digest":
            self._show(codec.auth("digest", digest(user, password)), codec.AUTH)
            return
        login = DigestMd5(user, password)
        challenge = self._show(codec.sasl(login.first()))
        login.confirm(self._show(codec.sasl(login.answer(challenge))))

    def _show(self, request: Request, xid: int = 0) -> bytes:
        """Part of a login; what the server says to it."""
        call = self.ask(request, xid)
        if call.error != codec.OK:
            raise StoreError(
                "the server refuses the login", step="check user and password, and which logins the server accepts"
            )
        return call.value if isinstance(call.value, bytes) else b""

    def _pump(self, done: Callable[[], bool]) -> None:
        while not done():
            left = self._until - self._now()
            if left <= 0:
                raise StoreUnavailable("no answer in time")
            if self.link.ready(left):
                self.link.flush()
                raw = self.link.read()
                try:
                    self.connection.receive(self.link.take_in(raw) if raw else b"")
                except Garbled as error:
                    raise StoreUnavailable(f"it does not speak ZooKeeper's protocol: {error}") from None


def _round_trips(address: Address) -> int:
    """Until a connection is of use: TLS, greeting, login."""
    return (2 if address.secure else 0) + 1 + (0 if address.login is None else 1 if address.auth == "digest" else 2)
