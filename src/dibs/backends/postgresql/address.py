"""The address of a store: a URL with its options, or the settings of an existing driver. Checked without I/O.

    postgresql://user:password@host:5432/database           postgres:// is the same
    postgresql://user:password@h1,h2:5433/database          the first of them that accepts writes
    postgresql:///database?host=/run/postgresql             through a Unix socket

| option        | meaning                                                                                          |
|---------------|--------------------------------------------------------------------------------------------------|
| `schema`      | the schema of our tables and routines; "dibs"                                                    |
| `wake`        | "messages" (LISTEN and NOTIFY, the default, where they arrive), or "looks"                       |
| `mode`        | "lease" (the default), or "session": a lock is held by a connection of its own                   |
| `connections` | connections that a client's requests use at most; 8. The subscriber and the watchdog use 3 more  |

All other options are libpq's (`sslmode`, `sslrootcert`, `target_session_attrs`, `application_name`, `passfile`, ...).
They keep their meaning and defaults, including `PG...` in the environment and `~/.pgpass`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import getclosurevars
from typing import Any

from psycopg import ProgrammingError, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from dibs.backends.common import options as opts
from dibs.info import printable
from dibs.url import Url

SCHEMA = "dibs"
CONNECTIONS = 8
LEASE, SESSION = "lease", "session"
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_OURS = {"client_encoding": "UTF8", "fallback_application_name": "dibs"}
_NOT_TAKEN = frozenset({"client_encoding", "connect_timeout", "fallback_application_name", "replication"})
"""Options that dibs sets itself: each request has a deadline, and texts are UTF-8."""
_PLAIN = frozenset({"host", "hostaddr", "port", "dbname", "user"})

_CALLED = "dibs connects by itself, with the driver's settings, and cannot call {}: give a URL"
_PSYCOPG_ONLY = frozenset({
    "autocommit", "row_factory", "cursor_factory", "prepare_threshold", "context", "server_cursor_factory",
})  # fmt: skip
"""Arguments of psycopg that are not libpq's."""


class Attempt:
    """One host to try. It has no repr, because it holds the password."""

    __slots__ = ("conninfo", "shown")

    def __init__(self, conninfo: bytes, shown: str) -> None:
        self.conninfo = conninfo
        self.shown = shown


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address.of(parse("postgresql://ana:secret@h1,h2:5433/app?sslmode=require"), schema="locks")
    >>> address, address.schema, [attempt.shown for attempt in address.attempts]
    (<Address postgresql://h1,h2:5433/app>, 'locks', ['h1', 'h2:5433'])
    """

    def __init__(
        self, shown: str, hosts: tuple[tuple[str, int | None], ...], settings: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.shown = shown
        self.schema: str = options.get("schema", SCHEMA)
        self.wake: str = options.get("wake", "messages")
        self.mode: str = options.get("mode", LEASE)
        self.connections: int = options.get("connections", CONNECTIONS)
        self._settings = {key: str(value) for key, value in settings.items()}
        self.attempts = tuple(self._attempt(host, port) for host, port in hosts or ((None, None),))
        """One for each host, in order."""
        self.was_let_in = False
        """A login with these settings has succeeded, so a refused one may succeed later."""

    @classmethod
    def of(cls, url: Url, **keywords: Any) -> Address:
        known = {**_own_options(), **dict.fromkeys(_libpq(), _setting)}
        options = opts.parse(url.shown, url.query, keywords, known)
        settings = {key: options.pop(key) for key in list(options) if key not in _own_options()}
        if url.hosts:
            opts.servers(url, 5432, "host:5432/database")
            if "host" in settings:
                raise ValueError(f"{url.shown}: host= is given twice, in the URL and as an option")
        database = url.path.removeprefix("/")
        if "/" in database:
            raise ValueError(f"{url.shown}: the path is the name of one database: postgresql://host/database")
        parts = {"dbname": database or None, "user": url.username, "password": url.password}
        for key, part in parts.items():
            if part is not None:
                if key in settings:
                    raise ValueError(f"{url.shown}: {key}= is given twice, in the URL and as an option")
                settings[key] = part
        if len(url.hosts) > 1:
            settings.setdefault("target_session_attrs", "read-write")
        return cls(url.shown, url.hosts, settings, options)

    @classmethod
    def of_driver(cls, driver: object, **keywords: Any) -> Address:
        found, most = read(driver)
        settings = {key: value for key, value in found.items() if key in _libpq()}
        shown = _shown(settings)
        options = opts.parse(shown, (), keywords, _own_options())
        options.setdefault("connections", min(CONNECTIONS, most or CONNECTIONS))
        return cls(shown, (), settings, options)

    def cleaned(self, text: str) -> str:
        """Remove option values from a text of libpq, which may repeat a secret."""
        for key, value in self._settings.items():
            if key not in _PLAIN and len(value) > 2:
                text = text.replace(value, "...")
        return text

    def __repr__(self) -> str:
        return f"<Address {self.shown}>"

    def _attempt(self, host: str | None, port: int | None) -> Attempt:
        place = {"host": host, "port": port} if host is not None else {}
        settings: dict[str, Any] = {**self._settings, **_OURS, **place}
        shown = self.shown.partition("://")[2] if host is None else f"[{host}]" if ":" in host else host
        failure: str
        try:
            conninfo = make_conninfo("", **settings).encode()
            return Attempt(conninfo, printable(shown if port is None else f"{shown}:{port}"))
        except UnicodeEncodeError:
            failure = "one of them is no text"
        except ProgrammingError as error:
            failure = self.cleaned(str(error))
        raise ValueError(f"{self.shown}: libpq does not accept these options: {printable(failure)}")


def _own_options() -> dict[str, opts.Check]:
    return {
        "schema": _schema,
        "wake": opts.word("messages", "looks"),
        "mode": opts.word(LEASE, SESSION),
        "connections": _connections,
    }


def _libpq() -> frozenset[str]:
    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults()) - _NOT_TAKEN


def _setting(shown: str, option: str, value: object) -> str:
    return opts.text(shown, option, str(value) if isinstance(value, int) else value)


def _connections(shown: str, option: str, value: object) -> int:
    number = opts.number(shown, option, value)
    if number < 1:
        raise ValueError(f"{shown}: {option} must be at least 1")
    return number


def _schema(shown: str, option: str, value: object) -> str:
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        raise ValueError(f"{shown}: {option} must be 1-63 letters, digits, _ and -, and begin with a letter or _")
    return value


def _shown(settings: Mapping[str, Any]) -> str:
    host = printable(str(settings.get("host") or ""))
    port = f":{settings['port']}" if settings.get("port") and "," not in host else ""
    place = "" if host.startswith("/") else f"[{host}]{port}" if ":" in host else f"{host}{port}"
    return f"postgresql://{place}/{printable(str(settings.get('dbname') or ''))}"


def read(driver: Any) -> tuple[Mapping[str, Any], int | None]:
    """The settings of an existing driver, of either API, and how many connections it would open. No connection of the
    driver is used.

    | driver                                               | settings                                         |
    |------------------------------------------------------|--------------------------------------------------|
    | `psycopg_pool.ConnectionPool`, `AsyncConnectionPool` | its conninfo, kwargs and max_size                |
    | `sqlalchemy.Engine`, `AsyncEngine`, on psycopg       | its URL, connect_args and pool size              |
    """
    if not hasattr(driver, "conninfo"):
        return _engine(getattr(driver, "sync_engine", driver))
    if callable(driver.conninfo) or callable(driver.kwargs):
        raise TypeError(_CALLED.format("the function that gives a pool its conninfo"))
    return conninfo_to_dict(driver.conninfo, **_connect_arguments(driver.kwargs or {})), driver.max_size


def _engine(engine: Any) -> tuple[Mapping[str, Any], int | None]:
    dialect = engine.dialect
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg_async"):
        raise TypeError(f"this engine is on {dialect.name}+{dialect.driver}: give one on postgresql+psycopg, or a URL")
    if dialect.dispatch.do_connect:
        raise TypeError(_CALLED.format("what this engine does on do_connect"))
    positional, arguments = dialect.create_connect_args(engine.url)
    try:  # only the function that opens the pool's connections knows `connect_args` of create_engine
        given = getclosurevars(engine.pool._creator).nonlocals["cparams"]  # noqa: SLF001
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TypeError(_CALLED.format("the engine's creator")) from None
    size = getattr(engine.pool, "size", None)
    settings = conninfo_to_dict(*positional, **_connect_arguments({**arguments, **_connect_arguments(given)}))
    return settings, (size() if callable(size) else None) or None


def _connect_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in _PSYCOPG_ONLY and value is not None}
