"""The servers of a store, with a pool of connections to each: for the sync API here, for the async API in
aio_connection.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf

from dibs.backends.common.connections import Connect, Pool
from dibs.backends.common.round_trip import ATTEMPT, RoundTrip
from dibs.backends.redis.address import Address, Place
from dibs.backends.redis.answers import unavailable
from dibs.backends.redis.asking import named
from dibs.backends.redis.connection import RedisConnection, Reply
from dibs.backends.redis.scripts import Request
from dibs.backends.redis.topology import Topology
from dibs.errors import StoreError, StoreUnavailable

IDLE = 8
"""Connections kept to one server while nobody uses them."""

Parts = Mapping[Place, Sequence[Request]]


class Dialler:
    """How a store connects: with its login, its clock, and the round trip to each server."""

    def __init__(self, address: Address, now: Callable[[], float], round_trip: Callable[[object], RoundTrip]) -> None:
        self.address = address
        self.now = now
        self.round_trip = round_trip
        self.patience = inf if address.topology == "single" else ATTEMPT
        """Seconds to wait for a connection: another server may have taken the place of a silent one."""

    def to(self, place: Place) -> Connect[RedisConnection]:
        address, now, trip = self.address, self.now, self.round_trip(place)
        return lambda until, begun: RedisConnection(address, place, now, trip, until, begun)


class Servers:
    def __init__(self, dialler: Dialler, where: Topology) -> None:
        self._dialler = dialler
        self._where = where
        self._pools: dict[Place, Pool[RedisConnection]] = {}
        self._closed = False

    def pool_now(self, place: Place) -> Pool[RedisConnection] | None:
        """That of a server that was asked before."""
        return self._pools.get(place)

    async def exchange(self, place: Place, requests: Sequence[Request], until: float) -> list[Reply]:
        pool = self._pools.get(place) or self._pool(place)
        connection = pool.take(until)
        replies = connection.exchange(requests, until)  # whatever ends it early closes it
        pool.give(connection)
        return replies

    async def exchange_all(self, parts: Parts, until: float) -> dict[Place, list[Reply] | StoreUnavailable]:
        """All are asked before any is listened to, those first to whom there is a connection: one that is silent costs
        the others nothing."""
        found: dict[Place, list[Reply] | StoreUnavailable] = {}
        asked: dict[Place, RedisConnection] = {}
        try:
            for place in sorted(parts, key=lambda place: not self._pool(place).idle):
                try:
                    asked[place] = connection = self._pool(place).take(until)
                    connection.send(parts[place], until)
                except StoreError as error:
                    asked.pop(place, None)
                    found[place] = unavailable(error)
            while asked:
                place, connection = asked.popitem()  # once given back it is not ours to close
                try:
                    found[place] = connection.receive(len(parts[place]), until)
                except StoreUnavailable as error:
                    found[place] = error
                else:
                    self._pool(place).give(connection)
        except BaseException:
            for connection in asked.values():
                connection.close()
            raise
        return found

    async def connect(self, place: Place, until: float) -> None:
        await self._pool(place).connect(until)

    async def learn(self, until: float) -> None:
        self._where.learn(until)

    def close(self) -> None:
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()

    def abandon(self) -> None:
        for pool in list(self._pools.values()):
            pool.abandon()

    def _pool(self, place: Place) -> Pool[RedisConnection]:
        pool = self._pools.get(place)
        if pool is None:
            dialler = self._dialler
            made = Pool(
                dialler.to(place), dialler.now, dialler.round_trip(place), named(place),
                keep=IDLE, patience=dialler.patience,
            )  # fmt: skip
            pool = self._pools.setdefault(place, made)
            if self._closed:
                pool.close()
        return pool
