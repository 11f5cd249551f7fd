"""What a URL and the store's options say, or an existing engine, checked without I/O.

    mysql://user:password@host:3306/database       mariadb:// is the same

| option                     | what it says                                                                            |
|----------------------------|-----------------------------------------------------------------------------------------|
| `prefix`                   | what every name begins with, where several share a database                             |
| `connections`              | how many each way to the store has at most; 6. The watchdog needs two more              |
| `mode`                     | "lease"; "session": a lock is held by a connection of its own, as by GET_LOCK           |
| `tls`                      | "on": encrypted and verified, by host name too; "off"; else as the server offers it     |
| `ca`, `certificate`, `key` | PEM files: authorities in place of the system's, our certificate and key; tls=on        |
| `socket`                   | the path of the server's Unix socket, in place of a host                                |
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from inspect import getclosurevars
from typing import Any

import pymysql

from dibs.backends.common import options as opts
from dibs.backends.common import tls
from dibs.backends.mysql.errors import Epoch
from dibs.info import printable
from dibs.url import Url

PORT = 3306
CONNECTIONS = 6
_COMMON: dict[str, opts.Check] = {
    "prefix": opts.text,
    "connections": opts.number,
    "mode": opts.word("lease", "session"),
}
_KNOWN: dict[str, opts.Check] = {
    **_COMMON,
    "tls": opts.word("on", "off"),
    **dict.fromkeys(tls.FILES, opts.file),
    "socket": opts.file,
}

_DIALECTS = frozenset({"mysql", "mariadb"})
_DRIVERS = frozenset({"pymysql", "asyncmy", "aiomysql", "mysqldb"})
_TAKEN = {
    "host": "host", "port": "port", "user": "user", "unix_socket": "unix_socket", "db": "database",
    "database": "database", "passwd": "password", "password": "password", "ssl": "ssl", "ssl_ca": "ssl_ca",
    "ssl_cert": "ssl_cert", "ssl_key": "ssl_key", "ssl_key_password": "ssl_key_password",
    "ssl_verify_cert": "ssl_verify_cert", "ssl_verify_identity": "ssl_verify_identity",
    "ssl_disabled": "ssl_disabled", "bind_address": "bind_address", "auth_plugin_map": "auth_plugin_map",
    "server_public_key": "server_public_key", "read_default_file": "read_default_file",
    "read_default_group": "read_default_group",
}  # fmt: skip


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address.of(parse("mysql://ana:secret@db/shop"), prefix="a:")
    >>> address, address.database, address.prefix, address.connections
    (<Address mysql://db/shop>, 'shop', 'a:', 6)
    """

    def __init__(
        self, shown: str, settings: Mapping[str, Any], options: Mapping[str, Any], files: Mapping[str, str] | None
    ) -> None:
        self.shown = shown
        self.prefix: str = options.get("prefix", "")
        self.connections: int = options.get("connections", CONNECTIONS)
        self.mode: str = options.get("mode", "lease")
        if self.connections < 1:
            raise ValueError(f"{shown}: connections= must be at least 1")
        self.epoch = Epoch()
        self._settings = settings
        self._files = files
        """Where encryption is asked for by an option; None: it is not."""

    @classmethod
    def of(cls, url: Url, **options: object) -> Address:
        _refuse_login(url)
        found = opts.parse(url.shown, url.query, options, _KNOWN)
        named = [option for option in tls.FILES if option in found]
        if named and found.get("tls") == "off":
            raise ValueError(f"{url.shown}: {named[0]}= has no effect with tls=off")
        secure = found.get("tls") == "on" or bool(named)
        files = tls.files(url.shown, found, secure, url.scheme)
        settings = {**_place(url, found.get("socket")), **_login(url), "database": _database(url)}
        if found.get("tls") == "off":
            settings["ssl_disabled"] = True
        return cls(url.shown, settings, found, files if secure else None)

    @classmethod
    def of_engine(cls, engine: object, **options: object) -> Address:
        """With the settings of an engine of SQLAlchemy's, of either API: only settings are read, and
        no connection of its pool is used."""
        shown, settings = _of_engine(engine)
        return cls(shown, settings, opts.parse(shown, (), options, _COMMON), None)

    @property
    def database(self) -> str:
        return str(self._settings["database"])

    @property
    def place(self) -> str:
        """For texts: host and port, or the path of a socket."""
        if (host := self._settings.get("host")) is None:
            return printable(str(self._settings.get("unix_socket") or "the socket"))
        port = self._settings.get("port") or PORT
        return printable(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}")

    def connection(self, patience: float) -> Any:
        """Fresh, blocking, not connected; each of its steps takes at most `patience`. StoreError if a file of the TLS
        options will not do."""
        made = copy(self._model)
        made.connect_timeout = made._read_timeout = made._write_timeout = patience  # noqa: SLF001  (see `_model`)
        return made

    @cached_property
    def _model(self) -> Any:
        """Never connected. PyMySQL reads all authorities of the system for each that it makes, which takes ten times as
        long as to connect: so one is made, and copied."""
        return pymysql.Connection(
            **{**self._settings, **self._encryption},
            charset="utf8mb4", autocommit=True, defer_connect=True, local_infile=False, program_name="dibs",
        )  # fmt: skip

    @cached_property
    def _encryption(self) -> dict[str, Any]:
        if self._files is None:
            return {}
        return {"ssl": tls.context(self.shown, self._files, "decrypt it")}

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"


def _place(url: Url, socket: str | None) -> dict[str, Any]:
    if socket is not None:
        if url.hosts:
            raise ValueError(f"{url.shown}: a host and socket= exclude each other: {url.scheme}:///database")
        return {"unix_socket": socket}
    hosts = opts.servers(url, PORT, "host:3306/database")
    if len(hosts) > 1:
        raise ValueError(f"{url.shown}: {url.scheme}:// is one server: give the one that accepts writes")
    return {"host": hosts[0][0], "port": hosts[0][1]}


def _database(url: Url) -> str:
    name = url.path.removeprefix("/")
    if not name or "/" in name:
        raise ValueError(f"{url.shown}: the URL names one database: {url.scheme}://host:3306/database")
    if not opts.encodes(name) or len(name) > 64:
        raise ValueError(f"{url.shown}: that is not a database name")
    return name


def _refuse_login(url: Url) -> None:
    for option, _ in url.query:
        if option.lower() in ("password", "username", "user", "passwd"):
            scheme, _, rest = url.shown.partition("://")
            raise ValueError(f"{url.shown}: do not put the login into the query: {scheme}://user:password@{rest}")


def _login(url: Url) -> dict[str, Any]:
    username, password = url.username or "", url.password or ""
    if not opts.encodes(username + password):
        raise ValueError(f"{url.shown}: user and password must be UTF-8")
    # As bytes: PyMySQL would take text for Latin-1, and quote what is not in its error.
    return {"user": username or None, "password": password.encode()}


def _of_engine(engine: Any) -> tuple[str, dict[str, Any]]:
    """How the store is shown, and what PyMySQL is to be given."""
    engine = getattr(engine, "sync_engine", engine)
    dialect = engine.dialect
    if dialect.name not in _DIALECTS or dialect.driver not in _DRIVERS:
        known = ", ".join(sorted(_DRIVERS))
        raise TypeError(
            f"dibs does not know the MySQL driver of an engine for {dialect.name}+{dialect.driver} ({known})"
        )
    if dialect.dispatch.do_connect:
        raise TypeError("dibs opens its own connections and cannot call this engine's do_connect handler: give a URL")
    arguments = _arguments(engine)
    settings = {name: arguments[given] for given, name in _TAKEN.items() if arguments.get(given) is not None}
    if not settings.get("database"):
        raise ValueError("this engine has no database to keep the locks in")
    if isinstance(settings.get("password"), str):
        settings["password"] = settings["password"].encode()
    host = str(settings.get("host") or "")
    port = f":{settings['port']}" if settings.get("port") else ""
    return f"{dialect.name}://{printable(host)}{port}/{printable(str(settings['database']))}", settings


def _arguments(engine: Any) -> Mapping[str, Any]:
    """What its connections are made of: those of the URL, and connect_args, which only its own function knows."""
    try:
        made_of: Mapping[str, Any] = getclosurevars(engine.pool._creator).nonlocals["cparams"]  # noqa: SLF001
    except (AttributeError, KeyError, TypeError):
        raise TypeError(
            "dibs opens its own connections with the engine's settings, and cannot use an engine with creator=: "
            "give a URL"
        ) from None
    return made_of
