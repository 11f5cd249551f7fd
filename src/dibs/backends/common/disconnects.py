"""A thread that notices at once when a server ends a connection.

The kernel reports only the end, not data. So replies do not wake the thread, and a busy event loop does not delay it.
This needs Linux: elsewhere a lost connection is noticed when it is used next.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from dibs.core.runtime import Runtime

_NAP = 1.0
"""Seconds that one poll takes at most."""
Owner = TypeVar("Owner")


class Disconnects(Generic[Owner]):
    def __init__(self, runtime: Runtime, on_end: Callable[[Owner], None], on_turn: Callable[[], None]) -> None:
        """The thread calls `on_end` with the owner of an ended connection, and `on_turn` about once a second."""
        self._on_end = on_end
        self._on_turn = on_turn
        self._owners: WeakValueDictionary[int, Owner] = WeakValueDictionary()
        """By file descriptor. Weak references, so that the destructor closes a connection that an interrupt dropped."""
        self._closed = False
        self._is_awake = False
        self._woken, self._poker = socket.socketpair()
        self._poker.setblocking(False)
        self._worker = runtime.blocking().worker(self._turn)
        if sys.platform == "linux":
            self._epoll = select.epoll()
            self._epoll.register(self._woken.fileno(), select.EPOLLIN)

    def attend(self, fd: int, owner: Owner) -> None:
        if sys.platform == "linux":
            self._owners[fd] = owner
            with suppress(ValueError):  # the epoll object was closed meanwhile
                self._epoll.register(fd, select.EPOLLRDHUP)
            if not self._is_awake:
                self._worker.ring()

    def ignore(self, fd: int, owner: Owner) -> None:
        """Does nothing if the number belongs to another socket by now."""
        if sys.platform == "linux" and self._owners.get(fd) is owner:
            self._owners.pop(fd, None)
            with suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        self._closed = True
        self._worker.stop()
        with suppress(OSError):
            self._poker.send(b"!")
        if not self._is_awake:  # else the thread does it
            self._end()

    def abandon(self) -> None:
        """In a forked child: close our copies only, the sockets are the parent's."""
        self._closed = True
        self._end()

    def __del__(self) -> None:
        """For an object that an interrupt dropped."""
        self._end()

    def _end(self) -> None:
        for part in ("_epoll", "_woken", "_poker"):
            if hasattr(self, part):
                getattr(self, part).close()

    async def _turn(self) -> float | None:
        self._is_awake = True  # before `_closed` is read
        try:
            if self._closed or not self._owners:  # let the thread end, so a forgotten client can be freed
                self._is_awake = False
                return _NAP if self._owners else None
            for fd, _ in self._epoll.poll(_NAP):
                owner = self._owners.get(fd)
                if owner is not None:
                    self.ignore(fd, owner)
                    self._on_end(owner)
            self._on_turn()
            return 0.0
        finally:
            self._is_awake = False
            if self._closed:
                self._end()
