"""The blocking way to the servers: a few idle connections to each, one taken for each exchange.

A waiting claim holds none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from dibs.backends.redis.address import Place
from dibs.backends.redis.answers import unavailable
from dibs.backends.redis.link import Dialer, Link, Reply
from dibs.backends.redis.scripts import Request
from dibs.backends.redis.where import Where
from dibs.errors import StoreError, StoreUnavailable

IDLE = 8
"""Connections kept to one server while nobody uses them."""
_TRUSTED = 1.0
"""Seconds after which an idle connection is looked at before it is used."""

Parts = Mapping[Place, Sequence[Request]]


class Pool:
    def __init__(self, dialer: Dialer, where: Where) -> None:
        self._dialer = dialer
        self._where = where
        self._now = dialer.now
        self._idle: dict[Place, deque[Link]] = {}
        self._closed = False

    async def exchange(self, place: Place, requests: Sequence[Request], until: float) -> list[Reply]:
        link = self._take(place, until)
        replies = link.exchange(requests, until)  # whatever ends it early closes it
        self._give(link)
        return replies

    async def exchange_all(self, parts: Parts, until: float) -> dict[Place, list[Reply] | StoreUnavailable]:
        """All are asked before any is listened to, those first to whom there is a connection: one that is silent costs
        the others nothing."""
        found: dict[Place, list[Reply] | StoreUnavailable] = {}
        asked: dict[Place, Link] = {}
        try:
            for place in sorted(parts, key=lambda place: not self._idle.get(place)):
                try:
                    asked[place] = link = self._take(place, until)
                    link.send(parts[place], until)
                except StoreError as error:
                    asked.pop(place, None)
                    found[place] = unavailable(error)
            while asked:
                place, link = asked.popitem()  # once given back it is not ours to close
                try:
                    found[place] = link.receive(len(parts[place]), until)
                except StoreUnavailable as error:
                    found[place] = error
                else:
                    self._give(link)
        except BaseException:
            for link in asked.values():
                link.close()
            raise
        return found

    async def learn(self, until: float) -> None:
        self._where.learn(until)

    def close(self) -> None:
        self._closed = True
        for links in list(self._idle.values()):
            while links:
                links.pop().close()

    def abandon(self) -> None:
        self.close()

    def _take(self, place: Place, until: float) -> Link:
        links = self._idle.get(place)
        while links:
            try:
                link = links.pop()
            except IndexError:  # another thread was quicker
                break
            if self._now() - link.used_at < _TRUSTED or not link.is_stale():
                return link
            link.close()
        return self._dialer.link(place, until)

    def _give(self, link: Link) -> None:
        links = self._idle.setdefault(link.place, deque())
        if self._closed or len(links) >= IDLE or not link.answers.is_spent():
            link.close()
        else:
            links.append(link)
