"""How to connect to a server: login, database, TLS, keep-alive. redis-py opens the connection, blocking, in both APIs.

An existing driver of redis-py, sync or asyncio, only gives its settings; its own connections are not used.

| driver                                                          | store                                            |
|-----------------------------------------------------------------|--------------------------------------------------|
| `redis.Redis`, `redis.asyncio.Redis`, a `ConnectionPool` of one | one server                                       |
| the result of `Sentinel(...).master_for(service)`, or its pool  | that service, found through the same sentinels   |
| `redis.RedisCluster`, `redis.asyncio.RedisCluster`              | the cluster; replicas are not read from          |

Timeouts, retries, health checks, decoding, caching and pool sizes of a driver are ignored on purpose: our requests have
deadlines of their own, and we parse the replies ourselves. A driver whose own connection class or coroutines would be
needed is refused with TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import redis
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider

from dibs.info import printable

Endpoint = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""
Make = Callable[..., AbstractConnection]
_BY_HOST: Make = Connection
_ENCRYPTED: Make = SSLConnection
_BY_PATH: Make = UnixDomainSocketConnection
_TAKEN = frozenset(
    [
        "db", "username", "password", "credential_provider", "client_name", "lib_name", "lib_version", "driver_info",
        "protocol", "socket_keepalive", "socket_keepalive_options", "socket_type", "redis_connect_func",
    ]
)  # fmt: skip
_ASYNC = "redis.asyncio."
_PLAIN = {
    "redis.connection.Connection",
    "redis.connection.UnixDomainSocketConnection",
    "redis.sentinel.SentinelManagedConnection",
}
_SECURE = {"redis.connection.SSLConnection", "redis.sentinel.SentinelManagedSSLConnection"}
"""Supported connection classes, and those of redis.asyncio with the same names."""
_SAID = {"driver_info", "lib_name", "lib_version"}


def _client_info() -> dict[str, Any]:
    """The version that redis-py reports to a server. Without it, redis-py looks it up in the files of its installation
    for each connection, which takes longer than connecting."""
    try:
        from redis.driver_info import DriverInfo  # noqa: PLC0415  (older versions do not have it)
    except ImportError:
        return {"lib_version": redis.__version__}
    return {"driver_info": DriverInfo(lib_version=redis.__version__)}


_CLIENT_INFO = _client_info()


class Settings:
    """Has no repr of its contents, because it contains the password."""

    __slots__ = ("_arguments", "secure")

    def __init__(self, secure: bool, arguments: Mapping[str, Any]) -> None:
        self.secure = secure
        self._arguments = arguments if _SAID & arguments.keys() else {**_CLIENT_INFO, **arguments}

    @property
    def db(self) -> int:
        return int(self._arguments.get("db") or 0)

    @property
    def scheme(self) -> str:
        return "rediss" if self.secure else "redis"

    def connection(self, endpoint: Endpoint, patience: float) -> AbstractConnection:
        """A new connection object, not connected. By default redis-py does no retries, health checks or decoding."""
        timing = {"socket_timeout": patience, "socket_connect_timeout": patience}
        if isinstance(endpoint, str):
            return _BY_PATH(path=endpoint, **timing, **self._arguments)
        make = _ENCRYPTED if self.secure else _BY_HOST
        return make(host=endpoint[0], port=endpoint[1], **timing, **self._arguments)


class Target(NamedTuple):
    """Where a store is, from a URL or from a driver."""

    shown: str
    topology: str
    """"single", "sentinel" or "cluster"."""
    endpoints: tuple[Endpoint, ...]
    """The server; the sentinels; the nodes to start from."""
    settings: Settings
    service: str | None = None
    sentinels: Settings | None = None
    """How to connect to the sentinels."""
    least_sentinels: int = 0
    """How many other sentinels a sentinel must see, or its word does not count."""
    reachable: Callable[[Endpoint], Endpoint] | None = None
    """Translates addresses that servers give for each other, where the driver does that."""


def of_driver(driver: Any) -> Target:
    names = {_class_name(cls) for cls in type(driver).__mro__}
    if "redis.sentinel.Sentinel" in names:
        raise TypeError("a Sentinel may watch many services: pass the result of its master_for(service)")
    if "redis.cluster.RedisCluster" in names:
        return _cluster(driver)
    pool = getattr(driver, "connection_pool", driver)
    return _sentinel(pool) if hasattr(pool, "sentinel_manager") else _single(pool)


def _single(pool: Any) -> Target:
    settings, arguments = _pool_settings(pool), pool.connection_kwargs
    if "path" in arguments:
        path = str(arguments["path"])
        return Target(f"unix://{printable(path)}", "single", (path,), settings)
    endpoint = (str(arguments.get("host", "localhost")), int(arguments.get("port", 6379)))
    return Target(f"{settings.scheme}://{_listed([endpoint])}/{settings.db}", "single", (endpoint,), settings)


def _sentinel(pool: Any) -> Target:
    manager, service = pool.sentinel_manager, str(pool.service_name)
    if not pool.is_master:
        raise ValueError("this driver reads from replicas, but a lock needs the primary: use master_for(service)")
    if not manager.sentinels:
        raise ValueError("the driver's Sentinel has no sentinels to ask")
    settings, pools = _pool_settings(pool), [sentinel.connection_pool for sentinel in manager.sentinels]
    endpoints = tuple((str(one.connection_kwargs["host"]), int(one.connection_kwargs["port"])) for one in pools)
    shown = f"{settings.scheme}+sentinel://{_listed(endpoints)}/{printable(service)}/{settings.db}"
    forced = vars(manager).get("_force_master_ip")
    reachable = None if forced is None else lambda endpoint: (str(forced), int(endpoint[1]))
    least = int(manager.min_other_sentinels)
    return Target(shown, "sentinel", endpoints, settings, service, _pool_settings(pools[0]), least, reachable)


def _cluster(driver: Any) -> Target:
    manager = driver.nodes_manager
    if _is_async(driver):
        arguments = dict(driver.connection_kwargs, redis_connect_func=None)
    else:
        first = _after_login(driver.user_on_connect_func)
        arguments = dict(manager.connection_kwargs, redis_connect_func=first)
    kind = arguments.pop("connection_class", Connection)
    settings = _driver_settings(kind, arguments, is_async=False)
    endpoints = tuple((str(node.host), int(node.port)) for node in manager.startup_nodes.values())
    shown = f"{settings.scheme}+cluster://{_listed(endpoints)}"
    return Target(shown, "cluster", endpoints, settings, reachable=manager.address_remap)


def _pool_settings(pool: Any) -> Settings:
    return _driver_settings(pool.connection_class, pool.connection_kwargs, _is_async(pool))


def _driver_settings(connection_class: type, arguments: Mapping[str, Any], is_async: bool) -> Settings:
    kind = _class_name(connection_class)
    if kind not in _PLAIN | _SECURE:
        raise TypeError(
            f"dibs opens its own connections with the driver's settings, and does not support its connection "
            f"class {connection_class.__module__}.{connection_class.__qualname__}: give a URL, or a driver with a "
            "connection class of redis-py"
        )
    taken = {key: value for key, value in arguments.items() if key in _TAKEN or key.startswith("ssl_")}
    _check_provider(taken.get("credential_provider"))
    if is_async and taken.get("redis_connect_func") is not None:
        raise TypeError(
            "redis_connect_func of an asyncio driver works only on the driver's own connections, and dibs opens "
            "others: give a redis.Redis with a plain function, or a URL"
        )
    return Settings(kind in _SECURE or bool(arguments.get("ssl")), taken)


def _after_login(first: Callable[[AbstractConnection], object] | None) -> Callable[[AbstractConnection], None] | None:
    """A cluster's driver calls the user's function after the login. Other drivers leave the login to that function."""
    if first is None:
        return None

    def connected(connection: AbstractConnection) -> None:
        connection.on_connect()
        first(connection)

    return connected


def _check_provider(provider: object) -> None:
    """Refuse a provider that can only be awaited: it would fail at the first connection."""
    if provider is None:
        return
    if getattr(type(provider), "get_credentials", None) in (None, CredentialProvider.get_credentials):
        raise TypeError(
            f"{type(provider).__name__} has no get_credentials(): dibs cannot await a credential_provider,"
            " give it that method too"
        )


def _class_name(cls: type) -> str:
    """The full name of a class, with asyncio classes named as their sync counterparts."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    return f"redis.{name.removeprefix(_ASYNC)}" if name.startswith(_ASYNC) else name


def _is_async(thing: object) -> bool:
    return any(f"{cls.__module__}.".startswith(_ASYNC) for cls in type(thing).__mro__)


def _listed(endpoints: Any) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{printable(host)}:{port}" for host, port in endpoints)
