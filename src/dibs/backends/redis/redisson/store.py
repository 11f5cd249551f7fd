"""The store of `connect("redis://…", layout="redisson")`: a server, a primary found through Sentinel, or a cluster."""

from __future__ import annotations

from typing import ClassVar

from dibs.backends.common.lifecycle import NetworkStore
from dibs.backends.redis.address import Address
from dibs.backends.redis.cells import RedisCells
from dibs.backends.redis.context import Context
from dibs.backends.redis.free_path import FreePath
from dibs.backends.redis.queue import AnyFreePath, RedisQueue
from dibs.backends.redis.redisson.latches import RedissonLatches
from dibs.backends.redis.redisson.names import RedissonKeys, client_id
from dibs.backends.redis.redisson.queue import Publishing, Redisson, RedissonQueue
from dibs.backends.redis.redisson.wakeups import Wakeups
from dibs.backends.redis.servers import Dialler
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.backends.redis.topology import topology
from dibs.backends.redis.transports import open_executor
from dibs.core.cells import Cells
from dibs.core.latches import Latches
from dibs.core.queue import ATOMIC_TRY, CELLS, FOREIGN, LATCHES, LEASES, PERMITS, RW, ClientIdentity, Queue
from dibs.core.runtime import Runtime
from dibs.runtime.threads import boottime


class RedissonStore(NetworkStore[RedisSubscriber]):
    backend: ClassVar[str] = "redis"
    capabilities: ClassVar[frozenset[str]] = frozenset({RW, PERMITS, ATOMIC_TRY, CELLS, LATCHES, LEASES, FOREIGN})

    def __init__(self, address: Address) -> None:
        self._address = address
        self._keys = RedissonKeys(address.prefix)
        super().__init__(address.shown)

    def _begin(self) -> None:
        super()._begin()
        self._topology = topology(self._address, boottime)
        self._wakeups: Wakeups | None = None
        self._publishing = Publishing(self._address)

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        redisson = self._redisson(runtime, me)
        context, layout = redisson.context, redisson.layout()
        free_path: AnyFreePath
        if runtime.call_soon is None:
            free_path = FreePath(context, layout)
        else:
            from dibs.backends.redis.aio_connection import AioFreePath  # noqa: PLC0415  (threads do not need asyncio)

            free_path = AioFreePath(context, layout)
        return RedissonQueue(redisson, free_path, RedisQueue(context, free_path))

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return RedisCells(self._context(runtime, me))

    def open_latches(self, runtime: Runtime, me: ClientIdentity) -> Latches:
        return RedissonLatches(self._redisson(runtime, me))

    def close(self) -> None:
        self._topology.close()
        super().close()

    def _redisson(self, runtime: Runtime, me: ClientIdentity) -> Redisson:
        if self._wakeups is None:
            self._wakeups = Wakeups(me.inbox)
        context = self._context(runtime, me)
        return Redisson(context, self._keys, client_id(me.id), self._wakeups, self._publishing)

    def _context(self, runtime: Runtime, identity: ClientIdentity) -> Context:
        address, resources = self._address, self._resources
        dialler = Dialler(address, runtime.now, resources.round_trip)
        executor = open_executor(dialler, self._topology, runtime, resources)
        if self._wakeups is None:
            self._wakeups = Wakeups(identity.inbox)
        if resources.subscriber is None and address.wake == "messages":
            resources.subscriber = RedisSubscriber(
                dialler, self._topology, runtime, identity, None, self._wakeups.route
            )
        return Context(executor, resources.subscriber, runtime, identity, self._keys.own, address)
