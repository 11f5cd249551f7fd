"""The `redis://` family: a single server, a primary found through Sentinel, or a cluster."""

from __future__ import annotations

from typing import Any, ClassVar

from dibs.backends.common.lifecycle import NetworkStore
from dibs.backends.redis.address import Address
from dibs.backends.redis.cells import RedisCells
from dibs.backends.redis.context import Context
from dibs.backends.redis.free_path import FreePath, Layout
from dibs.backends.redis.keys import Keys
from dibs.backends.redis.queue import RedisQueue, read_join
from dibs.backends.redis.servers import Dialler
from dibs.backends.redis.subscriber import RedisSubscriber, to_all
from dibs.backends.redis.topology import topology
from dibs.backends.redis.transports import open_executor
from dibs.core.cells import Cells
from dibs.core.queue import ATOMIC_TRY, CELLS, FAIR, LEASES, PERMITS, RECORDS, RW, VOTES, ClientIdentity, Queue, Store
from dibs.core.runtime import Runtime
from dibs.runtime.threads import boottime
from dibs.url import Url


class RedisStore(NetworkStore[RedisSubscriber]):
    backend: ClassVar[str] = "redis"
    capabilities: ClassVar[frozenset[str]] = frozenset({FAIR, RW, PERMITS, ATOMIC_TRY, CELLS, LEASES, VOTES, RECORDS})

    def __init__(self, address: Address) -> None:
        self._address = address
        self._keys = Keys(address.prefix, address.topology == "cluster")
        super().__init__(address.shown)

    def _begin(self) -> None:
        super()._begin()
        self._topology = topology(self._address, boottime)

    def open(self, runtime: Runtime, me: ClientIdentity) -> Queue:
        context = self._context(runtime, me)
        if runtime.call_soon is None:
            return RedisQueue(context, FreePath(context, _layout(context)))
        from dibs.backends.redis.aio_connection import AioFreePath  # noqa: PLC0415  (threads do not need asyncio)

        return RedisQueue(context, AioFreePath(context, _layout(context)))

    def open_cells(self, runtime: Runtime, me: ClientIdentity) -> Cells:
        return RedisCells(self._context(runtime, me))

    def close(self) -> None:
        self._topology.close()
        super().close()

    def _context(self, runtime: Runtime, identity: ClientIdentity) -> Context:
        address, resources = self._address, self._resources
        dialler = Dialler(address, runtime.now, resources.round_trip)
        executor = open_executor(dialler, self._topology, runtime, resources)
        if resources.subscriber is None and address.wake == "messages":
            channel = self._keys.client(identity.id)
            resources.subscriber = RedisSubscriber(dialler, self._topology, runtime, identity, channel, to_all)
        return Context(executor, resources.subscriber, runtime, identity, self._keys, address)


def _layout(context: Context) -> Layout:
    poll_interval = context.poll_interval
    return Layout(
        context.keys.queue, context.prepare, lambda claim, reply, _: read_join(claim, reply, poll_interval),
        needs_messages=True,
    )  # fmt: skip


def of_url(url: Url, **options: Any) -> Store:
    return _of(Address.of(url, **options))


def of_driver(driver: object, **options: Any) -> Store:
    """Use the connection settings of a client of redis-py, sync or asyncio."""
    return _of(Address.of_driver(driver, **options))


def _of(address: Address) -> Store:
    if address.layout == "dibs":
        return RedisStore(address)
    from dibs.backends.redis.redisson.store import RedissonStore  # noqa: PLC0415  (few programs share locks with Java)

    return RedissonStore(address)
