"""What an existing driver of redis-py is connected to, and how. Either face takes the drivers of both: only settings
are read, and no connection of its own is used.

| driver                                                          | is                                               |
|-----------------------------------------------------------------|--------------------------------------------------|
| `redis.Redis`, `redis.asyncio.Redis`, a `ConnectionPool` of one | one server                                       |
| what `Sentinel(...).master_for(service)` gives, or its pool     | that service, asked for at the same sentinels    |
| `redis.RedisCluster`, `redis.asyncio.RedisCluster`              | the cluster; replicas are not read from          |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from redis.connection import Connection

from dibs.backends.redis import settings as connecting
from dibs.backends.redis.settings import Endpoint, Settings
from dibs.info import printable

_CLUSTERS = {"redis.cluster.RedisCluster", "redis.asyncio.cluster.RedisCluster"}
_SENTINELS = {"redis.sentinel.Sentinel", "redis.asyncio.sentinel.Sentinel"}
_ASYNC = "redis.asyncio."


class Read(NamedTuple):
    shown: str
    topology: str
    endpoints: tuple[Endpoint, ...]
    settings: Settings
    service: str | None = None
    sentinels: Settings | None = None
    least_sentinels: int = 0
    reachable: Callable[[Endpoint], Endpoint] | None = None


def read(driver: Any) -> Read:
    names = {connecting.class_name(cls) for cls in type(driver).__mro__}
    if names & _SENTINELS:
        raise TypeError("a Sentinel may watch many services: pass the result of its master_for(service)")
    if names & _CLUSTERS:
        return _cluster(driver)
    pool = getattr(driver, "connection_pool", driver)
    if hasattr(pool, "sentinel_manager"):
        return _sentinel(pool)
    return _single(pool)


def _single(pool: Any) -> Read:
    settings, arguments = _settings(pool), pool.connection_kwargs
    if "path" in arguments:
        path = str(arguments["path"])
        return Read(f"unix://{printable(path)}", "single", (path,), settings)
    endpoint = (str(arguments.get("host", "localhost")), int(arguments.get("port", 6379)))
    return Read(f"{_scheme(settings)}://{_listed([endpoint])}/{settings.db}", "single", (endpoint,), settings)


def _sentinel(pool: Any) -> Read:
    manager, service = pool.sentinel_manager, str(pool.service_name)
    if not pool.is_master:
        raise ValueError("this driver reads from replicas, but a lock needs the primary: use master_for(service)")
    if not manager.sentinels:
        raise ValueError("the driver's Sentinel has no sentinels to ask")
    settings, pools = _settings(pool), [sentinel.connection_pool for sentinel in manager.sentinels]
    endpoints = [(str(one.connection_kwargs["host"]), int(one.connection_kwargs["port"])) for one in pools]
    shown = f"{_scheme(settings)}+sentinel://{_listed(endpoints)}/{printable(service)}/{settings.db}"
    forced = vars(manager).get("_force_master_ip")
    return Read(
        shown,
        "sentinel",
        tuple(endpoints),
        settings,
        service=service,
        sentinels=_settings(pools[0]),
        least_sentinels=int(manager.min_other_sentinels),
        reachable=None if forced is None else lambda endpoint: (str(forced), int(endpoint[1])),
    )


def _cluster(driver: Any) -> Read:
    manager = driver.nodes_manager
    if _is_async(driver):
        arguments = dict(driver.connection_kwargs, redis_connect_func=None)
    else:
        ours = connecting.then(driver.user_on_connect_func)
        arguments = dict(manager.connection_kwargs, redis_connect_func=ours)
    kind = arguments.pop("connection_class", Connection)
    settings = connecting.of_driver(kind, arguments, awaited=False)
    endpoints = tuple((str(node.host), int(node.port)) for node in manager.startup_nodes.values())
    return Read(
        f"{_scheme(settings)}+cluster://{_listed(endpoints)}",
        "cluster",
        endpoints,
        settings,
        reachable=manager.address_remap,
    )


def _settings(pool: Any) -> Settings:
    return connecting.of_driver(pool.connection_class, pool.connection_kwargs, awaited=_is_async(pool))


def _is_async(thing: object) -> bool:
    return any(connecting.class_name(cls).startswith(_ASYNC) for cls in type(thing).__mro__)


def _scheme(settings: Settings) -> str:
    return "rediss" if settings.secure else "redis"


def _listed(endpoints: Any) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{printable(host)}:{port}" for host, port in endpoints)
