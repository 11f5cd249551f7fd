"""A pool of connections to each server of a store: for the sync API here, for the async API in aio_connection.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Generic, TypeVar

from dibs.backends.common.connections import Connect, Pool
from dibs.backends.common.lifecycle import Open
from dibs.backends.common.round_trip import ATTEMPT, RoundTrip
from dibs.backends.redis.address import Address, Endpoint
from dibs.backends.redis.connection import RedisConnection, Reply
from dibs.backends.redis.discovery import named
from dibs.backends.redis.errors import unavailable
from dibs.backends.redis.scripts import Request
from dibs.errors import StoreError, StoreUnavailable

IDLE = 8
"""Idle connections that are kept to one server."""

Parts = Mapping[Endpoint, Sequence[Request]]
Outcomes = dict[Endpoint, list[Reply] | StoreUnavailable]
P = TypeVar("P", bound=Open)


class Dialler:
    """How a store connects: its address, its clock, and the round trip to each server."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: Callable[[object], RoundTrip]) -> None:
        self.address = address
        self.now = now
        self.round_trip = round_trip
        self.patience = inf if address.topology == "single" else ATTEMPT
        """Seconds to wait for a connection: another server may have replaced one that is silent."""

    def to(self, endpoint: Endpoint) -> Connect[RedisConnection]:
        address, now, trip = self.address, self.now, self.round_trip(endpoint)
        return lambda until, begun: RedisConnection(address, endpoint, now, trip, until, begun)


class Pools(Generic[P]):
    """The pools that were made until now, by server. Safe for threads."""

    def __init__(self, make: Callable[[Endpoint], P]) -> None:
        self._make = make
        self.made: dict[Endpoint, P] = {}
        self.closed = False

    def at(self, endpoint: Endpoint) -> P:
        pool = self.made.get(endpoint)
        if pool is None:
            pool = self.made.setdefault(endpoint, self._make(endpoint))
            if self.closed:
                pool.close()
        return pool

    def close(self) -> None:
        self.closed = True
        for pool in list(self.made.values()):
            pool.close()

    def abandon(self) -> None:
        for pool in list(self.made.values()):
            pool.abandon()


class Servers:
    def __init__(self, dialler: Dialler) -> None:
        self._dialler = dialler
        self.pools = pools = Pools(self._new_pool)
        self.pool_now, self.close, self.abandon = pools.made.get, pools.close, pools.abandon

    def _new_pool(self, endpoint: Endpoint) -> Pool[RedisConnection]:
        dialler, trip = self._dialler, self._dialler.round_trip(endpoint)
        return Pool(dialler.to(endpoint), dialler.now, trip, named(endpoint), keep=IDLE, patience=dialler.patience)

    async def exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]:
        pool = self.pools.at(endpoint)
        connection = pool.take(until)
        replies = connection.exchange(requests, until)  # an exception closes the connection
        pool.give(connection)
        return replies

    async def exchange_all(self, parts: Parts, until: float) -> Outcomes:
        """Send to all servers before reading any reply, first to those with an idle connection: a silent server costs
        the others nothing."""
        pool_at = self.pools.at
        found: Outcomes = {}
        asked: dict[Endpoint, RedisConnection] = {}
        try:
            for endpoint in sorted(parts, key=lambda endpoint: not pool_at(endpoint).idle):
                try:
                    asked[endpoint] = connection = pool_at(endpoint).take(until)
                    connection.send(parts[endpoint], until)
                except StoreError as error:
                    asked.pop(endpoint, None)
                    found[endpoint] = unavailable(error)
            while asked:
                endpoint, connection = asked.popitem()  # once given back, it is not ours to close
                try:
                    found[endpoint] = connection.receive(len(parts[endpoint]), until)
                except StoreUnavailable as error:
                    found[endpoint] = error
                else:
                    pool_at(endpoint).give(connection)
        except BaseException:
            for connection in asked.values():
                connection.close()
            raise
        return found

    def tell(self, endpoint: Endpoint, request: bytes) -> None:
        pool = self.pools.made.get(endpoint)
        if pool is not None and pool.idle:
            with suppress(IndexError):  # another thread took it
                connection = pool.idle.pop()
                if connection.tell(request):
                    pool.give(connection)

    async def connect(self, endpoint: Endpoint, until: float) -> None:
        await self.pools.at(endpoint).connect(until)
