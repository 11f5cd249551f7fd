"""The address of a store: a URL with its options, or an existing driver, checked without I/O.

    redis://user:password@host:6379/0              rediss:// the same with TLS, verified, by host name too
    unix://user:password@/path/of.sock?db=0        one server, through a Unix socket
    redis+sentinel://user:password@h1:26379,h2/service/0
    redis+cluster://user:password@h1:6379,h2       any of its nodes: the others are found

rediss+sentinel:// and rediss+cluster:// encrypt every connection, including those to the sentinels.

| option                                  | meaning                                                                    |
|-----------------------------------------|----------------------------------------------------------------------------|
| `prefix`                                | the start of every key and channel, where several programs share a server  |
| `replicas`                              | how many replicas must have a grant or renewal before it counts; 0         |
| `layout`                                | "redisson": share locks with Java programs; "dibs" by default              |
| `fair_wait`                             | Redisson's fairLockWaitTimeout, in seconds; 300                            |
| `sharded`                               | Redisson's shardedSubscriptionMode in a cluster: "auto", "on" or "off"     |
| `wake`                                  | "messages" (pub/sub, the default), or "spin": poll, where that is denied   |
| `db`                                    | the database, if the path does not have it                                 |
| `sentinel_username`, `sentinel_password`| the login for the sentinels, which differs from that of the servers        |
| `ca`, `certificate`, `key`              | PEM files: trusted certificates, and the client's own certificate          |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from redis.connection import AbstractConnection

from dibs.backends.common import options as opts
from dibs.backends.common import tls
from dibs.backends.redis.settings import Endpoint, Settings, Target, of_driver
from dibs.url import Url

__all__ = ["Address", "Endpoint"]
PORT = 6379
SENTINEL_PORT = 26379
LONGEST_PATH = 107
"""Bytes: the kernel's limit for the path of a Unix socket."""
_COMMON: dict[str, opts.Check] = {
    "prefix": opts.text,
    "replicas": opts.number,
    "layout": opts.word("dibs", "redisson"),
    "fair_wait": opts.number,
    "sharded": opts.word("auto", "on", "off"),
    "wake": opts.word("messages", "spin"),
}
_FILES: dict[str, opts.Check] = dict.fromkeys(tls.FILES, opts.file)
_LOGIN: dict[str, opts.Check] = {"sentinel_username": opts.text, "sentinel_password": opts.text}
_KNOWN: dict[str, dict[str, opts.Check]] = {
    "single": {**_COMMON, "db": opts.number, **_FILES},
    "sentinel": {**_COMMON, "db": opts.number, **_LOGIN, **_FILES},
    "cluster": {**_COMMON, **_FILES},
}
_EXAMPLES = {"single": "host:6379/0", "sentinel": "h1,h2,h3/service", "cluster": "h1,h2,h3"}
_RESP = 2
"""We do not need RESP3, which servers before Redis 6 do not support."""


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address.of(parse("redis+sentinel://ana:secret@h1,h2:26380/main/1"), replicas=1)
    >>> address.endpoints, address.service, address.replicas
    ((('h1', 26379), ('h2', 26380)), 'main', 1)
    >>> address
    <Address redis+sentinel://h1,h2:26380/main/1>
    """

    def __init__(self, target: Target, options: Mapping[str, Any], files: Mapping[str, str] | None = None) -> None:
        self.shown, self.topology, self.endpoints = target.shown, target.topology, target.endpoints
        self.service, self.least_sentinels = target.service, target.least_sentinels
        self.prefix: str = options.get("prefix", "")
        self.replicas: int = options.get("replicas", 0)
        if foreign := [option for option in ("fair_wait", "sharded") if option in options]:
            if options.get("layout") != "redisson":
                raise ValueError(f"{self.shown}: {foreign[0]}= is only for layout=redisson")
            if options.get("fair_wait") == 0:
                raise ValueError(f"{self.shown}: fair_wait= must be at least 1")
        self.layout: str = options.get("layout", "dibs")
        self.fair_wait: int = options.get("fair_wait", 300)
        self.sharded: str = options.get("sharded", "auto")
        self.wake: str = options.get("wake", "messages")
        self._target = target
        self._files = files or {}

    @classmethod
    def of(cls, url: Url, **options: object) -> Address:
        topology = url.scheme.partition("+")[2] or "single"
        secure = url.scheme.startswith("rediss")
        known = _KNOWN[topology]
        if url.scheme == "unix":
            known = {option: check for option, check in known.items() if option not in _FILES}
        _refuse_login(url)
        found = opts.parse(url.shown, url.query, options, known)
        files = tls.files(url.shown, found, secure, "rediss" + url.scheme.removeprefix("redis"))
        service, db = _path(url, topology)
        if db is not None and "db" in found:
            raise ValueError(f"{url.shown}: the database is given twice, in the path and as db=")
        encrypted = _tls_arguments(files) if secure else {}
        settings = Settings(secure, {"db": found.get("db", db or 0), **_login(url), "protocol": _RESP, **encrypted})
        sentinels = None
        if topology == "sentinel":
            sentinels = Settings(secure, {"protocol": _RESP, **_sentinel_login(url, found), **encrypted})
        target = Target(url.shown, topology, _endpoints(url, topology), settings, service, sentinels)
        return cls(target, found, files)

    @classmethod
    def of_driver(cls, driver: object, **options: object) -> Address:
        """Take the settings of a client or pool of redis-py, sync or asyncio: see settings.py."""
        target = of_driver(driver)
        return cls(target, opts.parse(target.shown, (), options, _COMMON))

    def connection(self, endpoint: Endpoint, patience: float) -> AbstractConnection:
        """A new blocking connection object, not connected. Each of its steps takes at most `patience` seconds. Raises
        StoreError if a TLS file cannot be used."""
        _ = self._files_checked
        return self._target.settings.connection(endpoint, patience)

    def sentinel_connection(self, endpoint: Endpoint, patience: float) -> AbstractConnection:
        assert self._target.sentinels is not None, "only with Sentinel"
        _ = self._files_checked
        return self._target.sentinels.connection(endpoint, patience)

    def reachable(self, endpoint: Endpoint) -> Endpoint:
        """Our address of a server that other servers know by `endpoint`: a driver may translate it."""
        translate = self._target.reachable
        return endpoint if translate is None else translate(endpoint)

    @cached_property
    def _files_checked(self) -> bool:
        """Check the TLS files once. redis-py would report a wrong path as a server that is down, and OpenSSL would ask
        for the passphrase of an encrypted key on the terminal."""
        if self._files:
            encrypted = "decrypt it, or connect with redis.Redis(ssl_password=...) in place of the URL"
            tls.context(self.shown, self._files, encrypted)
        return True

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def _endpoints(url: Url, topology: str) -> tuple[Endpoint, ...]:
    if url.scheme == "unix":
        return (_socket(url),)
    hosts = opts.servers(url, SENTINEL_PORT if topology == "sentinel" else PORT, _EXAMPLES[topology])
    if topology == "single" and len(hosts) > 1:
        raise ValueError(
            f"{url.shown}: {url.scheme}:// is one server; for several write {url.scheme}+sentinel://,"
            f" {url.scheme}+cluster:// or quorum+redis://"
        )
    return hosts


def _socket(url: Url) -> str:
    if url.hosts:
        raise ValueError(f"{url.shown}: a socket's URL names no host: unix:///path/of.sock")
    if url.path in ("", "/"):
        raise ValueError(f"{url.shown}: the URL names no socket: unix:///path/of.sock")
    if len(os.fsencode(url.path)) > LONGEST_PATH:
        raise ValueError(f"unix://: the path of a socket is at most {LONGEST_PATH} bytes long")
    return url.path


def _path(url: Url, topology: str) -> tuple[str | None, int | None]:
    """The service and the database in the path."""
    if url.scheme == "unix":
        return None, None
    parts = url.path.split("/")[1:] if url.path not in ("", "/") else []
    if topology == "cluster" and parts:
        raise ValueError(f"{url.shown}: a cluster has only one database: leave out the path")
    service = None
    if topology == "sentinel":
        if not parts or not parts[0]:
            raise ValueError(f"{url.shown}: which service? Write {url.scheme}://{_EXAMPLES['sentinel']}")
        service, *parts = parts
    if len(parts) > 1:
        raise ValueError(f"{url.shown}: too many parts in the path: {url.scheme}://{_EXAMPLES[topology]}")
    return service, opts.number(url.shown, "the database", parts[0]) if parts else None


def _refuse_login(url: Url) -> None:
    """Refuse a login in the query: it would be shown."""
    for option, _ in url.query:
        if option.lower() in ("password", "username"):
            scheme, _, rest = url.shown.partition("://")
            raise ValueError(f"{url.shown}: do not put the login into the query: {scheme}://user:password@{rest}")


def _login(url: Url) -> dict[str, str | None]:
    """User and password; Redis accepts each without the other."""
    username, password = url.username or "", url.password or ""
    if not opts.encodes(username + password):
        raise ValueError(f"{url.shown}: user and password must be UTF-8")
    return {"username": username or None, "password": password or None}


def _sentinel_login(url: Url, found: Mapping[str, Any]) -> dict[str, str | None]:
    username, password = found.get("sentinel_username"), found.get("sentinel_password")
    if username is not None and password is None:
        raise ValueError(f"{url.shown}: sentinel_username= is half a login: give sentinel_password= too")
    return {"username": username, "password": password}


def _tls_arguments(files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_ca_certs": files.get("ca"),
        "ssl_certfile": files.get("certificate"),
        "ssl_keyfile": files.get("key"),
    }
