"""Making a connection: dial, greet, log in. All of it blocks, so only the heart does it.

`Dial` connects to several servers. It begins with the next address while earlier ones do not answer, so a dead server
costs a moment and not its whole timeout. `Handshake` then greets one server.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.auth import DigestMd5, digest
from dibs.backends.zookeeper.wire.codec import Garbled, Request
from dibs.backends.zookeeper.wire.session import Connection, PendingRequest, Phase, Session
from dibs.backends.zookeeper.wire.transport import Transport, said
from dibs.errors import StoreError, StoreUnavailable

STAGGER = 0.25
"""Seconds before the next address is tried in parallel."""


class Dialled(NamedTuple):
    host: str
    port: int
    socket: socket.socket
    began: float


class Dial:
    def __init__(self, servers: Sequence[tuple[str, int]], now: Callable[[], float], patience: float) -> None:
        """`patience`: seconds for each address."""
        self._servers = deque(servers)
        self._addresses: deque[tuple[str, int, int, Any]] = deque()
        """Host, port, address family, and the address for `connect`."""
        self._under_way: list[Dialled] = []
        self._now = now
        self._patience = patience
        self._next_at = now()
        self.trouble = ""
        """The last failure."""

    @property
    def alternatives(self) -> bool:
        """Whether other addresses may answer."""
        return bool(self._servers or self._addresses or self._under_way)

    def connected(self) -> Dialled | None:
        """The next open connection; None: no address is left."""
        while self.alternatives:
            if not self._under_way or self._now() >= self._next_at:
                self._begin()
            if (found := self._await_one()) is not None:
                return found
        return None

    def close(self) -> None:
        while self._under_way:
            self._under_way.pop().socket.close()

    def _begin(self) -> None:
        """Begin with the next address, if there is one."""
        self._next_at = self._now() + STAGGER
        while self._servers and not self._addresses:
            host, port = self._servers.popleft()
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                self._failed(host, port, error)
            else:
                self._addresses += [(host, port, family, where) for family, _, _, _, where in found]
        if not self._addresses:
            return
        host, port, family, where = self._addresses.popleft()
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._failed(host, port, error)
            return
        made.setblocking(False)
        began = self._now()
        outcome = made.connect_ex(where)
        if outcome in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._under_way.append(Dialled(host, port, made, began))
        else:
            made.close()
            self._failed(host, port, OSError(outcome, os.strerror(outcome)))

    def _await_one(self) -> Dialled | None:
        """Wait for an open connection. None: it is time to begin with another address, or one has failed."""
        if not self._under_way:
            return None
        ends_at = min(one.began for one in self._under_way) + self._patience
        until = min(ends_at, self._next_at) if self._servers or self._addresses else ends_at
        with selectors.DefaultSelector() as selector:
            for one in self._under_way:
                selector.register(one.socket, selectors.EVENT_WRITE, one)
            ready: list[Dialled] = [key.data for key, _ in selector.select(max(until - self._now(), 0.0))]
        for one in ready:
            self._under_way.remove(one)
            error = one.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error == 0:
                return one
            one.socket.close()
            self._failed(one.host, one.port, OSError(error, os.strerror(error)))
        for one in [one for one in self._under_way if self._now() >= one.began + self._patience]:
            self._under_way.remove(one)
            one.socket.close()
            self._failed(one.host, one.port, TimeoutError())
        return None

    def _failed(self, host: str, port: int, error: OSError) -> None:
        self.trouble = f"{host}:{port}: {said(error)}"
        self._next_at = self._now()  # begin with the next address at once


class Handshake:
    """Greets one server and logs in; afterwards `transport` and `connection` are usable."""

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
        """`patience`: seconds for each round trip. `connected`: an open connection to use."""
        self._now = now
        self._until = now() + patience * _round_trips(address)
        self.transport = Transport(host, port, address.tls, patience, connected)
        try:
            self.connection = Connection(session, now())
            self.transport.send(self.connection.greet())
            self._pump(lambda: self.connection.phase is not Phase.GREETING)
            if self.connection.phase is Phase.UP and address.login is not None:
                self._log_in(address.auth, *address.login)
        except BaseException:
            self.transport.close()
            raise

    def ask(self, request: Request, xid: int = 0) -> PendingRequest:
        call = PendingRequest(request, xid=xid)
        self.transport.send(self.connection.send((call,)))
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
        """One step of a login; returns the reply of the server."""
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
            if self.transport.ready(left):
                self.transport.flush()
                raw = self.transport.read()
                try:
                    self.connection.receive(self.transport.take_in(raw) if raw else b"")
                except Garbled as error:
                    raise StoreUnavailable(f"it does not speak ZooKeeper's protocol: {error}") from None


def _round_trips(address: Address) -> int:
    """Round trips of a handshake: TLS, greeting, login."""
    return (2 if address.secure else 0) + 1 + (0 if address.login is None else 1 if address.auth == "digest" else 2)
