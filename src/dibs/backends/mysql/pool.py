"""The blocking way to the server: some connections at most, one taken for each exchange. A waiting claim holds none.

Whoever comes when all are taken waits for one (permits.py).
"""

from __future__ import annotations

from collections import deque

from dibs.backends.mysql.calls import Request
from dibs.backends.mysql.link import ATTEMPT, Dialer, Link
from dibs.backends.mysql.wire import Sets
from dibs.backends.permits import Permits
from dibs.core.line import Unsent

TRUSTED = 1.0
"""Seconds after which an idle connection is looked at before it is used."""


class Pool:
    def __init__(self, dialer: Dialer, size: int) -> None:
        self._dialer = dialer
        self._now = dialer.now
        self._idle: deque[Link] = deque()
        self._permits = Permits(size)
        self._closed = False

    async def exchange(self, request: Request, until: float) -> Sets:
        permit = self._permits.take(max(min(until - self._now(), ATTEMPT), 0.0))
        if permit is None:
            raise Unsent("all connections of this client are in use", step="give connections= more of them")
        try:
            link = self._take(until)
            found = link.exchange(request, until)  # whatever ends it early closes it
            if self._closed:
                link.close()
            else:
                self._idle.append(link)
            return found
        finally:
            self._permits.give(permit)

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
