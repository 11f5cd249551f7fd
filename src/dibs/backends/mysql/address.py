"""The settings of a store, from its URL and options or from an SQLAlchemy engine, checked without I/O.

    mysql://user:password@host:3306/database       mariadb:// is the same

| option                     | meaning                                                                                 |
|----------------------------|-----------------------------------------------------------------------------------------|
| `prefix`                   | the start of every name, where several programs share a database                        |
| `connections`              | how many each queue has at most; 6. The watchdog needs two more                         |
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
        """The PEM files, if the options ask for encryption; else None."""

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
        """The settings of an SQLAlchemy engine, sync or async. No connection of its pool is used."""
        shown, settings = _of_engine(engine)
        return cls(shown, settings, opts.parse(shown, (), options, _COMMON), None)

    @property
    def database(self) -> str:
        return str(self._settings["database"])

    @property
    def place(self) -> str:
        """Host and port, or the path of a socket, for messages."""
        if (host := self._settings.get("host")) is None:
            return printable(str(self._settings.get("unix_socket") or "the socket"))
        port = self._settings.get("port") or PORT
        return printable(f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}")

    def connection(self, patience: float) -> Any:
        """A PyMySQL connection that is not open yet. Each step of opening it takes at most `patience` seconds. Raises
        StoreError if a TLS file is not usable."""
        made = copy(self._model)
        made.connect_timeout = made._read_timeout = made._write_timeout = patience  # noqa: SLF001  (see `_model`)
        return made

    @cached_property
    def _model(self) -> Any:
        """A connection that is only copied, and never opened. PyMySQL reads all certificates of the system for each
        new one, which takes ten times as long as to connect."""
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
    # As bytes: PyMySQL would encode text as Latin-1, and quote it in its error if it cannot.
    return {"user": username or None, "password": password.encode()}


def _of_engine(engine: Any) -> tuple[str, dict[str, Any]]:
    """The store as messages show it, and the settings for PyMySQL."""
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
    """The arguments of the engine's connections: those of the URL, and connect_args, which only its creator has."""
    try:
        made_of: Mapping[str, Any] = getclosurevars(engine.pool._creator).nonlocals["cparams"]  # noqa: SLF001
    except (AttributeError, KeyError, TypeError):
        raise TypeError(
            "dibs opens its own connections with the engine's settings, and cannot use an engine with creator=: "
            "give a URL"
        ) from None
    return made_of
