"""What an existing driver is connected to, and how. Either face takes the drivers of both: only settings are read, and
no connection of its own is used.

| driver                                                          | is                                               |
|-----------------------------------------------------------------|--------------------------------------------------|
| `psycopg_pool.ConnectionPool`, `AsyncConnectionPool`            | what its conninfo and kwargs say, its max_size   |
| `sqlalchemy.Engine`, `AsyncEngine`, on psycopg                  | what its URL and connect_args say, its pool size |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from psycopg.conninfo import conninfo_to_dict

_CALLED = "dibs connects by itself, with the driver's settings, and cannot call {}: give a URL"


class Read(NamedTuple):
    settings: Mapping[str, Any]
    most: int | None
    """Connections that the driver would make."""


def read(driver: Any) -> Read:
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
    """`connect_args` of create_engine: kept in what makes the pool's connections, and nowhere else."""
    creator = engine.pool._creator  # noqa: SLF001  (SQLAlchemy shows them nowhere else)
    cells = dict(zip(creator.__code__.co_freevars, creator.__closure__ or (), strict=False))
    found = cells.get("cparams")
    return found.cell_contents if found is not None and isinstance(found.cell_contents, Mapping) else {}


def _has_creator(engine: Any) -> bool:
    creator = engine.pool._creator  # noqa: SLF001  (see above)
    return "cparams" not in getattr(getattr(creator, "__code__", None), "co_freevars", ())


def _connect_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are libpq's: psycopg's own are about objects that we do not make."""
    ours = {"autocommit", "row_factory", "cursor_factory", "prepare_threshold", "context", "server_cursor_factory"}
    return {key: value for key, value in arguments.items() if key not in ours and value is not None}
