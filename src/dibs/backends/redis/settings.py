"""How a connection to Redis is made: its login, its database, TLS, keep-alive. redis-py makes it, blocking, in both
APIs.

`of_driver` takes these from an existing driver's pool. Its time-outs, retries, health checks, decoding, caching and
numbers of connections are deliberately not taken: our calls have deadlines of their own, and read their own answers.
What we cannot do in the driver's place is a TypeError: a connection class of the user's own, and what is awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import redis
from redis.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.credentials import CredentialProvider

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
_PLAIN = {
    "redis.connection.Connection",
    "redis.asyncio.connection.Connection",
    "redis.sentinel.SentinelManagedConnection",
    "redis.asyncio.sentinel.SentinelManagedConnection",
    "redis.connection.UnixDomainSocketConnection",
    "redis.asyncio.connection.UnixDomainSocketConnection",
}
_SECURE = {
    "redis.connection.SSLConnection",
    "redis.asyncio.connection.SSLConnection",
    "redis.sentinel.SentinelManagedSSLConnection",
    "redis.asyncio.sentinel.SentinelManagedSSLConnection",
}
_SAID = {"driver_info", "lib_name", "lib_version"}


def _itself() -> dict[str, Any]:
    """What redis-py says of itself to a server: told nothing, it looks its version up in the files of its installation
    for each connection, which takes longer than to connect."""
    try:
        from redis.driver_info import DriverInfo  # noqa: PLC0415  (older ones do not have it)
    except ImportError:
        return {"lib_version": redis.__version__}
    return {"driver_info": DriverInfo(lib_version=redis.__version__)}


_ITSELF = _itself()


class Settings:
    """Shows nothing of itself: it holds the password."""

    __slots__ = ("_arguments", "secure")

    def __init__(self, secure: bool, arguments: Mapping[str, Any]) -> None:
        self.secure = secure
        self._arguments = arguments if _SAID & arguments.keys() else {**_ITSELF, **arguments}

    @property
    def db(self) -> int:
        return int(self._arguments.get("db") or 0)

    def connection(self, endpoint: Endpoint, patience: float) -> AbstractConnection:
        """Fresh and not connected. redis-py's own defaults are: no retries, no health checks, bytes."""
        timing = {"socket_timeout": patience, "socket_connect_timeout": patience}
        if isinstance(endpoint, str):
            return _BY_PATH(path=endpoint, **timing, **self._arguments)
        make = _ENCRYPTED if self.secure else _BY_HOST
        return make(host=endpoint[0], port=endpoint[1], **timing, **self._arguments)


def of_driver(connection_class: type, arguments: Mapping[str, Any], awaited: bool) -> Settings:
    """From what a driver's pool makes its connections of; `awaited`: it is one for asyncio."""
    name = class_name(connection_class)
    if name not in _PLAIN | _SECURE:
        raise TypeError(
            f"dibs opens its own connections with the driver's settings, and does not support its connection "
            f"class {name}: give a URL, or a driver with a connection class of redis-py"
        )
    taken = {key: value for key, value in arguments.items() if key in _TAKEN or key.startswith("ssl_")}
    _check_provider(taken.get("credential_provider"))
    if awaited and taken.get("redis_connect_func") is not None:
        raise TypeError(
            "redis_connect_func of an asyncio driver works only on the driver's own connections, and dibs opens "
            "others: give a redis.Redis with a plain function, or a URL"
        )
    return Settings(name in _SECURE or bool(arguments.get("ssl")), taken)


def then(first: Callable[[AbstractConnection], object] | None) -> Callable[[AbstractConnection], None] | None:
    """A cluster's driver calls the user's function after the login, where another driver leaves the login to it."""
    if first is None:
        return None

    def connected(connection: AbstractConnection) -> None:
        connection.on_connect()
        first(connection)

    return connected


def class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _check_provider(provider: object) -> None:
    """One that can only be awaited would fail at the first connection."""
    if provider is None:
        return
    if getattr(type(provider), "get_credentials", None) in (None, CredentialProvider.get_credentials):
        raise TypeError(
            f"{type(provider).__name__} has no get_credentials(): dibs cannot await a credential_provider,"
            " give it that method too"
        )
