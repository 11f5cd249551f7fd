"""Opens the way to the servers, for the sync or the async API."""

from __future__ import annotations

from typing import Any

from dibs.backends.common.lifecycle import Resources
from dibs.backends.redis.executor import RedisExecutor, Transport
from dibs.backends.redis.servers import Dialler, Servers
from dibs.backends.redis.topology import Topology
from dibs.core.runtime import Runtime


def open_executor(dialler: Dialler, topology: Topology, runtime: Runtime, resources: Resources[Any]) -> RedisExecutor:
    transport: Transport
    if runtime.call_soon is None:
        transport = Servers(dialler)
    else:
        from dibs.backends.redis.aio_connection import AioServers  # noqa: PLC0415  (threads do not need asyncio)

        transport = AioServers(dialler)
    resources.wires.append(transport)
    topology.attend(runtime)
    return RedisExecutor(transport, topology, runtime, dialler.address.replicas, resources.slowest)
