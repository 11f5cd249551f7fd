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
Whose = TypeVar("Whose")


class Disconnects(Generic[Whose]):
    def __init__(self, runtime: Runtime, told: Callable[[Whose], None], tidied: Callable[[], None]) -> None:
        """The thread calls `told` with the owner of a connection that has ended, and `tidied` about once a second."""
        self._told = told
        self._tidied = tidied
        self._attended: WeakValueDictionary[int, Whose] = WeakValueDictionary()
        """By file descriptor. Weak references, so that the destructor closes a connection that an interrupt dropped."""
        self._closed = False
        self._is_awake = False
        self._woken, self._poker = socket.socketpair()
        self._poker.setblocking(False)
        self._worker = runtime.blocking().worker(self._turn)
        if sys.platform == "linux":
            self._epoll = select.epoll()
            self._epoll.register(self._woken.fileno(), select.EPOLLIN)

    def attend(self, there: int, whose: Whose) -> None:
        if sys.platform == "linux":
            self._attended[there] = whose
            with suppress(ValueError):  # the epoll object was closed meanwhile
                self._epoll.register(there, select.EPOLLRDHUP)
            if not self._is_awake:
                self._worker.ring()

    def ignore(self, there: int, whose: Whose) -> None:
        """Does nothing if the number belongs to another socket by now."""
        if sys.platform == "linux" and self._attended.get(there) is whose:
            self._attended.pop(there, None)
            with suppress(OSError, ValueError):
                self._epoll.unregister(there)

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
            if self._closed or not self._attended:  # let the thread end, so a forgotten client can be freed
                self._is_awake = False
                return _NAP if self._attended else None
            for there, _ in self._epoll.poll(_NAP):
                whose = self._attended.get(there)
                if whose is not None:
                    self.ignore(there, whose)
                    self._told(whose)
            self._tidied()
            return 0.0
        finally:
            self._is_awake = False
            if self._closed:
                self._end()
