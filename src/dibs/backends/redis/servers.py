"""The servers of a store, with a pool of connections to each: for the sync API here, for the async API in
aio_connection.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from dibs.backends.common.connections import Connect, Pool
from dibs.backends.common.round_trip import ATTEMPT, RoundTrip
from dibs.backends.redis.address import Address, Endpoint
from dibs.backends.redis.connection import RedisConnection, Reply
from dibs.backends.redis.discovery import named
from dibs.backends.redis.errors import unavailable
from dibs.backends.redis.scripts import Request
from dibs.backends.redis.topology import Topology
from dibs.errors import StoreError, StoreUnavailable

IDLE = 8
"""Connections kept to one server while nobody uses them."""

Parts = Mapping[Endpoint, Sequence[Request]]


class Dialler:
    """How a store connects: with its login, its clock, and the round trip to each server."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: Callable[[object], RoundTrip]) -> None:
        self.address = address
        self.now = now
        self.round_trip = round_trip
        self.patience = inf if address.topology == "single" else ATTEMPT
        """Seconds to wait for a connection: another server may have taken the place of a silent one."""

    def to(self, endpoint: Endpoint) -> Connect[RedisConnection]:
        address, now, trip = self.address, self.now, self.round_trip(endpoint)
        return lambda until, begun: RedisConnection(address, endpoint, now, trip, until, begun)


class Servers:
    def __init__(self, dialler: Dialler, topology: Topology) -> None:
        self._dialler = dialler
        self._topology = topology
        self._pools: dict[Endpoint, Pool[RedisConnection]] = {}
        self._closed = False

    def pool_now(self, endpoint: Endpoint) -> Pool[RedisConnection] | None:
        """That of a server that was asked before."""
        return self._pools.get(endpoint)

    async def exchange(self, endpoint: Endpoint, requests: Sequence[Request], until: float) -> list[Reply]:
        pool = self._pools.get(endpoint) or self._pool(endpoint)
        connection = pool.take(until)
        replies = connection.exchange(requests, until)  # whatever ends it early closes it
        pool.give(connection)
        return replies

    async def exchange_all(self, parts: Parts, until: float) -> dict[Endpoint, list[Reply] | StoreUnavailable]:
        """All are asked before any is listened to, those first to whom there is a connection: one that is silent costs
        the others nothing."""
        found: dict[Endpoint, list[Reply] | StoreUnavailable] = {}
        asked: dict[Endpoint, RedisConnection] = {}
        try:
            for endpoint in sorted(parts, key=lambda endpoint: not self._pool(endpoint).idle):
                try:
                    asked[endpoint] = connection = self._pool(endpoint).take(until)
                    connection.send(parts[endpoint], until)
                except StoreError as error:
                    asked.pop(endpoint, None)
                    found[endpoint] = unavailable(error)
            while asked:
                endpoint, connection = asked.popitem()  # once given back it is not ours to close
                try:
                    found[endpoint] = connection.receive(len(parts[endpoint]), until)
                except StoreUnavailable as error:
                    found[endpoint] = error
                else:
                    self._pool(endpoint).give(connection)
        except BaseException:
            for connection in asked.values():
                connection.close()
            raise
        return found

    async def connect(self, endpoint: Endpoint, until: float) -> None:
        await self._pool(endpoint).connect(until)

    async def learn(self, until: float) -> None:
        self._topology.learn(until)

    def close(self) -> None:
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()

    def abandon(self) -> None:
        for pool in list(self._pools.values()):
            pool.abandon()

    def _pool(self, endpoint: Endpoint) -> Pool[RedisConnection]:
        pool = self._pools.get(endpoint)
        if pool is None:
            dialler = self._dialler
            made = Pool(
                dialler.to(endpoint), dialler.now, dialler.round_trip(endpoint), named(endpoint),
                keep=IDLE, patience=dialler.patience,
            )  # fmt: skip
            pool = self._pools.setdefault(endpoint, made)
            if self._closed:
                pool.close()
        return pool
