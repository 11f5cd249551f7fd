"""The blocking way to the server: a bounded number of connections, one taken for each exchange.

A waiting claim holds none of them. Who finds all of them in use waits for one, as long as it may wait for the answer.
"""

from __future__ import annotations

from collections import deque

from psycopg.pq.abc import PGresult

from dibs.backends.permits import Permits
from dibs.backends.postgresql.answers import Refusal
from dibs.backends.postgresql.link import LEAST, Call, Dialer, Link
from dibs.core.line import Unsent
from dibs.errors import Closed

_LONGEST = 3600.0
"""Seconds: what a queue takes as a time-out is limited."""
_TRUSTED = 1.0
"""Seconds after which an idle connection is looked at before it is used."""


class Pool:
    def __init__(self, dialer: Dialer, most: int) -> None:
        self._dialer = dialer
        self._now = dialer.now
        self._idle: deque[Link] = deque()
        self._permits = Permits(most)
        self._closed = False
        self.is_stated = False

    async def exchange(self, call: Call, until: float) -> PGresult:
        link = self._take(until)
        try:
            result = link.exchange(call, until)  # whatever ends it early closes it
        except Refusal:
            self._give(link)
            raise
        except BaseException:
            link.permit = None  # who keeps the error keeps this frame, and must not keep others from asking
            raise
        link.hear(result)
        self._give(link)
        return result

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def abandon(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().abandon()

    def _take(self, until: float) -> Link:
        if self._closed:
            raise Closed("this client was closed", step="connect again")
        permit = self._permits.take(min(max(until - self._now(), LEAST), _LONGEST))
        if permit is None:
            raise Unsent("all connections were in use", step="give the client more: connections=")
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if self._suits(link) and (self._now() - link.used_at < _TRUSTED or not link.is_stale()):
                link.permit = permit
                return link
            link.close()
        try:
            link = self._dialer.link(until)
        except BaseException:
            del permit  # as above
            raise
        link.is_stated = self.is_stated
        link.permit = permit
        return link

    def _give(self, link: Link) -> None:
        if self._closed or not link.is_idle() or not self._suits(link):
            link.close()
        else:
            self._idle.append(link)
        link.permit = None  # last: whoever gets it finds the link

    def _suits(self, link: Link) -> bool:
        """What was learned since it was made may tell against it."""
        return link.is_stated == self.is_stated and self._dialer.suits(link)
