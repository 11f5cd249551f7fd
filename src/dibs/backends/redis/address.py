"""What a URL and the store's options say, or an existing driver, checked without I/O.

    redis://user:password@host:6379/0              rediss:// the same with TLS, verified, by host name too
    unix://user:password@/path/of.sock?db=0        one server, through a Unix socket
    redis+sentinel://user:password@h1:26379,h2/service/0
    redis+cluster://user:password@h1:6379,h2       any of its nodes: the others are found

rediss+sentinel:// and rediss+cluster:// encrypt every connection, those to the sentinels too.

| option                                  | what it says                                                               |
|-----------------------------------------|----------------------------------------------------------------------------|
| `prefix`                                | what every key and channel begins with, where several share a server       |
| `replicas`                              | how many replicas must have a grant or renewal before it counts; 0         |
| `wake`                                  | "messages" (pub/sub, the default), or "spin": looks, where that is denied  |
| `db`                                    | the database, where the path does not say it                               |
| `sentinel_username`, `sentinel_password`| the login at the sentinels, which is not the servers'                      |
| `ca`, `certificate`, `key`              | PEM files: whom to believe beside the system's authorities, who we are     |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from redis.connection import AbstractConnection

from dibs.backends.common import options as opts
from dibs.backends.common import tls
from dibs.backends.redis import from_driver as drivers
from dibs.backends.redis.settings import Endpoint, Settings
from dibs.url import Url

__all__ = ["Address", "Endpoint"]
PORT = 6379
SENTINEL_PORT = 26379
LONGEST_PATH = 107
"""Bytes of a Unix socket's path: the kernel's limit."""
_COMMON: dict[str, opts.Check] = {
    "prefix": opts.text,
    "replicas": opts.number,
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
"""Nothing of ours needs the newer protocol, and servers before Redis 6 do not know it."""


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address.of(parse("redis+sentinel://ana:secret@h1,h2:26380/main/1"), replicas=1)
    >>> address.endpoints, address.service, address.replicas
    ((('h1', 26379), ('h2', 26380)), 'main', 1)
    >>> address
    <Address redis+sentinel://h1,h2:26380/main/1>
    """

    def __init__(
        self, shown: str, topology: str, endpoints: tuple[Endpoint, ...], settings: Settings,
        *, options: Mapping[str, Any], service: str | None = None, sentinels: Settings | None = None,
        files: Mapping[str, str] | None = None, least_sentinels: int = 0,
        reachable: Callable[[Endpoint], Endpoint] | None = None,
    ) -> None:  # fmt: skip
        self.shown = shown
        self.topology = topology
        """"single", "sentinel" or "cluster"."""
        self.endpoints = endpoints
        """The server; the sentinels; nodes to start from."""
        self.service = service
        self.prefix: str = options.get("prefix", "")
        self.replicas: int = options.get("replicas", 0)
        self.wake: str = options.get("wake", "messages")
        self.least_sentinels = least_sentinels
        """How many others a sentinel must see, to be believed."""
        self._settings = settings
        self._sentinels = sentinels
        self._files = files or {}
        self._reachable = reachable

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
        login = {"db": found.get("db", db or 0), **_login(url), "protocol": _RESP}
        sentinel_login = {"protocol": _RESP, **_sentinel_login(url, found)}
        return cls(
            url.shown,
            topology,
            _endpoints(url, topology),
            Settings(secure, {**login, **encrypted}),
            options=found,
            service=service,
            sentinels=Settings(secure, {**sentinel_login, **encrypted}) if topology == "sentinel" else None,
            files=files,
        )

    @classmethod
    def of_driver(cls, driver: object, **options: object) -> Address:
        """With the settings of a client or pool of redis-py, of either face: see settings.py for what is taken."""
        read = drivers.read(driver)
        return cls(
            read.shown,
            read.topology,
            read.endpoints,
            read.settings,
            options=opts.parse(read.shown, (), options, _COMMON),
            service=read.service,
            sentinels=read.sentinels,
            least_sentinels=read.least_sentinels,
            reachable=read.reachable,
        )

    def connection(self, endpoint: Endpoint, patience: float) -> AbstractConnection:
        """Fresh, blocking, not connected; each of its steps takes at most `patience`. StoreError if a file of the TLS
        options will not do."""
        _ = self._files_checked
        return self._settings.connection(endpoint, patience)

    def sentinel_connection(self, endpoint: Endpoint, patience: float) -> AbstractConnection:
        assert self._sentinels is not None, "only a sentinel's address has them"
        _ = self._files_checked
        return self._sentinels.connection(endpoint, patience)

    def reachable(self, endpoint: Endpoint) -> Endpoint:
        """Where we reach the server that others know by this address; a driver may say that it is elsewhere."""
        return endpoint if self._reachable is None else self._reachable(endpoint)

    @cached_property
    def _files_checked(self) -> bool:
        """redis-py reads them at every connection, takes a wrong path for a server that is down, and lets OpenSSL ask
        the terminal for the passphrase of an encrypted key."""
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
    """The service and the database that it names."""
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
    """Where redis-py would take it, and where it would be shown."""
    for option, _ in url.query:
        if option.lower() in ("password", "username"):
            scheme, _, rest = url.shown.partition("://")
            raise ValueError(f"{url.shown}: do not put the login into the query: {scheme}://user:password@{rest}")


def _login(url: Url) -> dict[str, str | None]:
    """Redis lets a user in without a password, and a password without a user."""
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
