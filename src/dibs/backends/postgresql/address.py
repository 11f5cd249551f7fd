"""What a URL and the store's options say, or an existing driver, checked without I/O.

    postgresql://user:password@host:5432/database           postgres:// is the same
    postgresql://user:password@h1,h2:5433/database          the first of them that can be written to
    postgresql:///database?host=/run/postgresql             through a Unix socket

| option        | what it says                                                                                     |
|---------------|--------------------------------------------------------------------------------------------------|
| `schema`      | where our tables and routines are; "dibs"                                                        |
| `wake`        | "messages" (LISTEN and NOTIFY, the default, where they get through), or "looks"                  |
| `mode`        | "lease" (the default), or "session": a lock is held by a connection of its own                    |
| `connections` | how many at most a client's verbs use at once; 8. One to listen and two of the watchdog come on top |

Everything else is libpq's: `sslmode`, `sslrootcert`, `target_session_attrs`, `application_name`, `passfile` ...; it has
the same meaning and the same defaults as there, the environment's `PG...` and `~/.pgpass` too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

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
"""Ours to decide: calls have deadlines of their own, and texts go out as UTF-8."""
_PLAIN = frozenset({"host", "hostaddr", "port", "dbname", "user"})

_CALLED = "dibs connects by itself, with the driver's settings, and cannot call {}: give a URL"


class Attempt:
    """One host to try. Shows nothing of what it holds: the password is in it."""

    __slots__ = ("conninfo", "shown")

    def __init__(self, conninfo: bytes, shown: str) -> None:
        self.conninfo = conninfo
        self.shown = shown


class Address:
    """
    >>> from dibs.url import parse
    >>> address = Address.of(parse("postgresql://ana:secret@h1,h2:5433/app?sslmode=require"), schema="locks")
    >>> address, address.schema, [attempt.shown for attempt in address.attempts()]
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
        self._hosts = hosts
        self._settings = {key: str(value) for key, value in settings.items()}
        self._made: tuple[Attempt, ...] | None = None
        self.was_let_in = False
        """A login with these settings has succeeded: one that is refused later may succeed again."""
        self.attempts()

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
        found = read(driver)
        settings = {key: value for key, value in found.settings.items() if key in _libpq()}
        shown = _shown(settings)
        options = opts.parse(shown, (), keywords, _own_options())
        options.setdefault("connections", min(CONNECTIONS, found.most or CONNECTIONS))
        return cls(shown, (), settings, options)

    def attempts(self) -> tuple[Attempt, ...]:
        if self._made is None:
            places = self._hosts or ((None, None),)
            self._made = tuple(self._attempt(host, port) for host, port in places)
        return self._made

    def cleaned(self, text: str) -> str:
        """What libpq says may repeat what it was given, and that may be a secret in the wrong place."""
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


class Read(NamedTuple):
    settings: Mapping[str, Any]
    most: int | None
    """Connections that the driver would make."""


def read(driver: Any) -> Read:
    """The settings of an existing driver, for either API. No connection of the driver is used.

    | driver                                               | settings                                         |
    |------------------------------------------------------|--------------------------------------------------|
    | `psycopg_pool.ConnectionPool`, `AsyncConnectionPool` | its conninfo, kwargs and max_size                |
    | `sqlalchemy.Engine`, `AsyncEngine`, on psycopg       | its URL, connect_args and pool size              |
    """
    if hasattr(driver, "conninfo"):
        return _pool(driver)
    return _engine(getattr(driver, "sync_engine", driver))


def _pool(pool: Any) -> Read:
    if callable(pool.conninfo) or callable(pool.kwargs):
        raise TypeError(_CALLED.format("the function that gives a pool its conninfo"))
    return Read(conninfo_to_dict(pool.conninfo, **_connect_arguments(pool.kwargs or {})), pool.max_size)


def _engine(engine: Any) -> Read:
    dialect = engine.dialect
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg_async"):
        raise TypeError(f"this engine is on {dialect.name}+{dialect.driver}: give one on postgresql+psycopg, or a URL")
    if dialect.dispatch.do_connect:
        raise TypeError(_CALLED.format("what this engine does on do_connect"))
    positional, arguments = dialect.create_connect_args(engine.url)
    if getattr(engine.pool, "_creator", None) is not None and _has_creator(engine):
        raise TypeError(_CALLED.format("the engine's creator"))
    given = {**arguments, **_connect_arguments(_given_arguments(engine))}
    size = getattr(engine.pool, "size", None)
    most = size() if callable(size) else None
    return Read(conninfo_to_dict(*positional, **_connect_arguments(given)), most or None)


def _given_arguments(engine: Any) -> Mapping[str, Any]:
    """`connect_args` of create_engine: the function that makes the pool's connections keeps them."""
    creator = engine.pool._creator  # noqa: SLF001  (SQLAlchemy shows them nowhere else)
    cells = dict(zip(creator.__code__.co_freevars, creator.__closure__ or (), strict=False))
    found = cells.get("cparams")
    return found.cell_contents if found is not None and isinstance(found.cell_contents, Mapping) else {}


def _has_creator(engine: Any) -> bool:
    creator = engine.pool._creator  # noqa: SLF001  (see above)
    return "cparams" not in getattr(getattr(creator, "__code__", None), "co_freevars", ())


def _connect_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of libpq: psycopg's own are about objects that we do not make."""
    ours = {"autocommit", "row_factory", "cursor_factory", "prepare_threshold", "context", "server_cursor_factory"}
    return {key: value for key, value in arguments.items() if key not in ours and value is not None}
