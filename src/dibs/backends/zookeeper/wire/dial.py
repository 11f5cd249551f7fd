"""TCP connections to several servers, begun one after the other while those before them are silent: a server that does
not answer costs a moment, and not its whole time limit. It waits, so it is the heart's.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dibs.backends.zookeeper.wire.link import said

STAGGER = 0.25
"""Seconds that an address has for itself before the next one is tried beside it."""


class Dialled(NamedTuple):
    host: str
    port: int
    socket: socket.socket
    began: float


class _Address(NamedTuple):
    host: str
    port: int
    family: int
    where: Any


class Dial:
    def __init__(self, servers: Sequence[tuple[str, int]], now: Callable[[], float], patience: float) -> None:
        """`patience`: for each address."""
        self._servers = deque(servers)
        self._addresses: deque[_Address] = deque()
        self._under_way: list[Dialled] = []
        self._now = now
        self._patience = patience
        self._next_at = now()
        self.trouble = ""
        """Why the last one failed that did."""

    @property
    def alternatives(self) -> bool:
        """There are others that may answer."""
        return bool(self._servers or self._addresses or self._under_way)

    def connected(self) -> Dialled | None:
        """The next connection that was made; None: there is no address left."""
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
        """With the next address, if there is one."""
        self._next_at = self._now() + STAGGER
        while self._servers and not self._addresses:
            host, port = self._servers.popleft()
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                self._failed(host, port, error)
            else:
                self._addresses += [_Address(host, port, family, where) for family, _, _, _, where in found]
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
        """One that is connected, as soon as there is; None: it is time to begin with another, or one has failed."""
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
        self._next_at = self._now()  # it is not silent: the next one need not wait
