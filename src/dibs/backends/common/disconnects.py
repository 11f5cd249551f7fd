"""A thread that learns from the kernel when a server ends a connection, whatever else this process does.

It sees the end only, and no data. So replies do not wake it, and a busy event loop delays no loss. Systems other than
Linux have nothing of the kind: there a lost connection is found when it is next used.
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
"""Seconds: how long the kernel is asked at once."""
Whose = TypeVar("Whose")


class Disconnects(Generic[Whose]):
    def __init__(self, runtime: Runtime, told: Callable[[Whose], None], tidied: Callable[[], None]) -> None:
        """In that thread `told` is called with whose connection has ended, and `tidied` about once a second."""
        self._told = told
        self._tidied = tidied
        self._attended: WeakValueDictionary[int, Whose] = WeakValueDictionary()
        """By the number of the socket. Weakly: one that an interrupt has dropped is closed by that."""
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
            with suppress(ValueError):  # it was closed meanwhile
                self._epoll.register(there, select.EPOLLRDHUP)
            if not self._is_awake:
                self._worker.ring()

    def ignore(self, there: int, whose: Whose) -> None:
        """Nothing is done if it was closed already, and another socket bears its number."""
        if sys.platform == "linux" and self._attended.get(there) is whose:
            self._attended.pop(there, None)
            with suppress(OSError, ValueError):
                self._epoll.unregister(there)

    def close(self) -> None:
        self._closed = True
        self._worker.stop()
        with suppress(OSError):
            self._poker.send(b"!")
        if not self._is_awake:  # else its thread does it, when it wakes
            self._end()

    def abandon(self) -> None:
        """In a forked child: what is registered there is the parent's."""
        self._closed = True
        self._end()

    def __del__(self) -> None:
        """An interrupt may have struck before anybody had it."""
        self._end()

    def _end(self) -> None:
        for part in ("_epoll", "_woken", "_poker"):
            if hasattr(self, part):
                getattr(self, part).close()

    async def _turn(self) -> float | None:
        self._is_awake = True  # before it looks whether it was closed
        try:
            if self._closed or not self._attended:  # the thread may end, and with it what keeps a forgotten client here
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
