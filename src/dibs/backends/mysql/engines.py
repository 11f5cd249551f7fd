"""What an existing engine of SQLAlchemy's is connected to, and how. Either face takes the engines of both: only
settings are read, and no connection of its pool is used: dibs connects by itself, with PyMySQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import getclosurevars
from typing import Any

from dibs.info import printable

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


def read(engine: Any) -> tuple[str, dict[str, Any]]:
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
