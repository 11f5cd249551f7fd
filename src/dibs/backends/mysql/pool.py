"""The blocking way to the server: some connections at most, one taken for each exchange. A waiting claim holds none.

Whoever comes when all are taken waits for one. A seat is what entitles to a connection: it comes back whatever becomes
of who has it, also if an interrupt strikes between two lines.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue
from weakref import ReferenceType, ref

from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.link import ATTEMPT, Dialer, Link
from dibs.backends.mysql.wire import Sets
from dibs.core.line import Unsent

TRUSTED = 1.0
"""Seconds after which an idle connection is looked at before it is used."""


class _Seat:
    __slots__ = ("_pool",)

    def __init__(self, pool: ReferenceType[Pool]) -> None:
        self._pool = pool

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            pool.free.put(_Seat(self._pool))


class Pool:
    def __init__(self, dialer: Dialer, size: int) -> None:
        self._dialer = dialer
        self._now = dialer.now
        self._idle: deque[Link] = deque()
        self.free: SimpleQueue[_Seat] = SimpleQueue()
        for _ in range(size):
            self.free.put(_Seat(ref(self)))
        self._closed = False

    async def exchange(self, request: Request, until: float) -> Sets:
        try:
            seat = self.free.get(timeout=max(min(until - self._now(), ATTEMPT), 0.0))
        except Empty:
            raise Unsent("all connections of this client are in use", step="give connections= more of them") from None
        try:
            link = self._take(until)
            found = link.exchange(request, until)  # whatever ends it early closes it
            if self._closed:
                link.close()
            else:
                self._idle.append(link)
            return found
        finally:
            self.free.put(seat)

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().bid_farewell()

    def abandon(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self, until: float) -> Link:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if self._now() - link.used_at < TRUSTED or not link.is_stale():
                return link
            link.close()
        return self._dialer.link(until)
