"""Sees at once that the server ended a session: its other end is closed, whether or not anybody reads.

A thread of its own, in both faces: a busy event loop keeps nobody from learning of a loss. Where the system has no
epoll a renewal finds it, a third of the lease later.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakValueDictionary

from dibs.backends.mysql.session.session import Session
from dibs.core.runtime import Runtime

_PATIENCE = 1.0


class Vigil:
    def __init__(self, runtime: Runtime, told: Callable[[Session], None]) -> None:
        """`told`: to be called with a session that was ended."""
        self._told = told
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._watched: WeakValueDictionary[int, Session] = WeakValueDictionary()
        self._is_awake = self._closed = False
        self._worker = runtime.blocking().worker(self._turn)

    def watch(self, session: Session) -> None:
        if self._epoll is not None:
            self._watched[session.fd] = session
            # Not for what is to be read: that is the business of whoever asked.
            self._epoll.register(session.fd, select.EPOLLRDHUP)
            if not self._is_awake:
                self._worker.ring()

    def ignore(self, session: Session) -> None:
        if self._epoll is not None and self._watched.get(session.fd) is session:
            self._watched.pop(session.fd, None)
            with suppress(OSError, ValueError):  # it is closed by now
                self._epoll.unregister(session.fd)

    def close(self) -> None:
        self._closed = True
        self._worker.stop()

    def abandon(self) -> None:
        """In a forked child: what is registered there is the parent's."""
        self._closed = True
        if self._epoll is not None:
            self._epoll.close()

    async def _turn(self) -> float | None:
        self._is_awake = True
        try:
            while self._watched and not self._closed and self._epoll is not None:
                for number, _ in self._epoll.poll(_PATIENCE):
                    session = self._watched.get(number)
                    if session is not None:
                        session.cut = True
                        self.ignore(session)
                        self._told(session)
        finally:
            self._is_awake = False
        return 0.0 if self._watched and not self._closed else None
