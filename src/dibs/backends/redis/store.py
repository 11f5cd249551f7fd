"""The `redis://` family: one server, a primary found by Sentinel, a cluster. A client has one subscriber."""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.common.lifecycle import NetworkStore
from dibs.backends.redis.address import Address
from dibs.backends.redis.cells import RedisCells
from dibs.backends.redis.executor import RedisExecutor, Transport
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.queue import RedisQueue
from dibs.backends.redis.servers import Dialler, Servers
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.backends.redis.topology import topology
from dibs.core.cells import Cells
from dibs.core.queue import ATOMIC_TRY, CELLS, FAIR, LEASES, PERMITS, RECORDS, RW, VOTES, ClientIdentity, Queue
from dibs.core.runtime import Runtime
from dibs.runtime.threads import boottime
from dibs.url import Url


class RedisStore(NetworkStore[RedisSubscriber]):
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, VOTES, RECORDS})

    def __init__(self, address: Address) -> None:
        self._address = address
        self._keys = Keys(address.prefix, address.topology == "cluster")
        super().__init__(address.shown)

    def _begin(self) -> None:
        super()._begin()
        self._topology = topology(self._address, boottime)

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        executor, subscriber = self._executor(runtime), self._subscriber(runtime, me)
        if runtime.call_soon is None:
            return RedisQueue(executor, subscriber, runtime, me, self._keys, self._address)
        from dibs.backends.redis.aio_connection import RedisAioQueue  # noqa: PLC0415  (threads do not need asyncio)

        return RedisAioQueue(executor, subscriber, runtime, me, self._keys, self._address)

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return RedisCells(self._executor(runtime), self._subscriber(runtime, me), runtime, me, self._keys)

    def close(self) -> None:
        self._topology.close()
        super().close()

    def _executor(self, runtime: Runtime) -> RedisExecutor:
        transport, resources = self._transport(runtime), self._resources
        resources.wires.append(transport)
        self._topology.attend(runtime)
        return RedisExecutor(transport, self._topology, runtime, self._address.replicas, resources.slowest)

    def _transport(self, runtime: Runtime) -> Transport:
        dialler = self._dialler(runtime)
        if runtime.call_soon is None:
            return Servers(dialler, self._topology)
        from dibs.backends.redis.aio_connection import AioServers  # noqa: PLC0415  (threads do not need asyncio)

        return AioServers(dialler, self._topology, runtime)

    def _dialler(self, runtime: Runtime) -> Dialler:
        return Dialler(self._address, runtime.now, self._resources.round_trip)

    def _subscriber(self, runtime: Runtime, me: ClientIdentity) -> RedisSubscriber | None:
        resources = self._resources
        if resources.subscriber is None and self._address.wake == "messages":
            channel = self._keys.client(me.id)
            resources.subscriber = RedisSubscriber(self._dialler(runtime), self._topology, runtime, me, channel)
        return resources.subscriber


def of_url(url: Url, **options: Any) -> RedisStore:
    return RedisStore(Address.of(url, **options))


def of_driver(driver: object, **options: Any) -> RedisStore:
    """With the settings of a client of redis-py's, of either API."""
    return RedisStore(Address.of_driver(driver, **options))
