"""Finds the store for a URL or a driver object, by tables and lazy imports. Entry points `dibs.backends` add others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from dibs.core.cells import Admits
from dibs.core.queue import Store
from dibs.errors import MissingDriver, Unsupported
from dibs.url import QUORUM, Url, members

_REDIS = "dibs.backends.redis.store:of_url"
_REDIS_DRIVER = "dibs.backends.redis.store:of_driver"
_POSTGRESQL = "dibs.backends.postgresql.store:of_url"
_POSTGRESQL_DRIVER = "dibs.backends.postgresql.store:of_driver"
_MYSQL = "dibs.backends.mysql.store:of_url"
_MYSQL_ENGINE = "dibs.backends.mysql.store:of_engine"
_ENGINE = "see _ENGINES"
_STORES = {
    "mariadb": _MYSQL,
    "memory": "dibs.backends.memory:MemoryStore",
    "mysql": _MYSQL,
    "postgres": _POSTGRESQL,
    "postgresql": _POSTGRESQL,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+cluster": _REDIS,
    "rediss+sentinel": _REDIS,
    "sqlite": "dibs.backends.sqlite.store:SqliteStore",
    "unix": _REDIS,
    "zookeeper": "dibs.backends.zookeeper.store:ZookeeperStore",
    "zookeepers": "dibs.backends.zookeeper.store:ZookeeperStore",
}
_DRIVERS = {
    "psycopg_pool.pool.ConnectionPool": _POSTGRESQL_DRIVER,
    "psycopg_pool.pool_async.AsyncConnectionPool": _POSTGRESQL_DRIVER,
    "redis.asyncio.client.Redis": _REDIS_DRIVER,
    "redis.asyncio.cluster.RedisCluster": _REDIS_DRIVER,
    "redis.asyncio.connection.ConnectionPool": _REDIS_DRIVER,
    "redis.asyncio.sentinel.Sentinel": _REDIS_DRIVER,
    "redis.client.Redis": _REDIS_DRIVER,
    "redis.cluster.RedisCluster": _REDIS_DRIVER,
    "redis.connection.ConnectionPool": _REDIS_DRIVER,
    "redis.sentinel.Sentinel": _REDIS_DRIVER,
    "sqlalchemy.engine.base.Engine": _ENGINE,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": _ENGINE,
}
_ENGINES = {
    "mariadb": _MYSQL_ENGINE,
    "mysql": _MYSQL_ENGINE,
    "postgresql": _POSTGRESQL_DRIVER,
}
"""SQLAlchemy engines, by dialect."""
_TRANSACTIONS = {
    "sqlite3.Connection": "dibs.backends.sqlite.within:SqliteTransaction",
}
_OWN = {
    "asyncmy.connection.Connection": "dibs.backends.sql.caller_connection:of_asyncmy",
    "django.db.backends.base.base.BaseDatabaseWrapper": "dibs.backends.sql.caller_connection:of_django",
    "django.utils.connection.ConnectionProxy": "dibs.backends.sql.caller_connection:of_django",
    "psycopg.AsyncConnection": "dibs.backends.sql.caller_connection:of_async_psycopg",
    "psycopg.Connection": "dibs.backends.sql.caller_connection:of_psycopg",
    "pymysql.connections.Connection": "dibs.backends.sql.caller_connection:of_pymysql",
    "sqlalchemy.engine.base.Connection": "dibs.backends.sql.caller_connection:of_sqlalchemy",
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "dibs.backends.sql.caller_connection:of_async_sqlalchemy",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": "dibs.backends.sql.caller_connection:of_async_sqlalchemy",
    "sqlalchemy.ext.asyncio.session.AsyncSession": "dibs.backends.sql.caller_connection:of_async_sqlalchemy",
    "sqlalchemy.orm.scoping.scoped_session": "dibs.backends.sql.caller_connection:of_sqlalchemy",
    "sqlalchemy.orm.session.Session": "dibs.backends.sql.caller_connection:of_sqlalchemy",
    "sqlite3.Connection": "dibs.backends.sql.caller_connection:of_sqlite",
}
_FENCE = "dibs.backends.sql.fence:OwnTransaction"
_QUORUM = "dibs.core.quorum.store:QuorumStore"
_QUORUMS = frozenset({"quorum+redis", "quorum+rediss"})
"""For error texts."""
_UNSUPPORTED = frozenset({"consul", "etcd"})
"""Stores that users may expect."""


def make_store(url: Url, options: dict[str, Any]) -> Store:
    """Make the store for a URL. Raises TypeError for unknown options."""
    if url.scheme.startswith(QUORUM):
        return _of_quorum_url(url, options)
    factory = _factory(url)
    try:
        return factory(url, **options)
    except TypeError as error:
        if options and "unexpected keyword" in str(error):
            names = ", ".join(sorted(options))
            raise TypeError(f"{url.scheme}:// does not have all of these store options: {names}") from None
        raise


def make_store_of(driver: object, options: dict[str, Any]) -> Store:
    """Make the store of an existing driver object, with the settings of that driver."""
    target = _by_class(_DRIVERS, driver)
    if target is None:
        known = ", ".join(sorted(_DRIVERS))
        raise TypeError(f"a store is given as a URL (str) or a driver ({known}), not {type(driver).__name__}")
    if target is _ENGINE:
        target = _of_dialect(driver)
    try:
        factory = _load(target)
    except ImportError as error:
        raise _missing(type(driver).__name__, None, target, error) from error
    made: Store = factory(driver, **options)
    return made


def _of_quorum_url(url: Url, options: dict[str, Any]) -> Store:
    asked = dict(options)
    guards = [value for key, value in url.query if key == "guard"]
    if len(guards) > 1 or (guards and "guard" in asked):
        raise ValueError(f"{url.shown}: guard= is given twice")
    guard = asked.pop("guard", guards[0] if guards else None)
    made: Store = _load(_QUORUM)([make_store(member, asked) for member in members(url)], guard, url.shown)
    return made


def make_quorum(stores: Sequence[Store], guard: object) -> Store:
    """Make the store that decides by a majority of these."""
    made: Store = _load(_QUORUM)(stores, guard)
    return made


def transaction(connection: object, *, awaits: bool) -> Admits:
    """Wrap a connection of the caller, for a fence in its transaction."""
    target = _by_class(_TRANSACTIONS, connection)
    made: Admits = (
        _load(target)(connection) if target else _load(_FENCE)(caller_connection(connection, "within", awaits))
    )
    return made


def caller_connection(connection: object, what: str, awaits: bool) -> Any:
    """Wrap a connection of the caller as a `CallerConnection`; it must be of the same API, sync or async."""
    target = _by_class(_OWN, connection)
    if target is None:
        raise TypeError(f"{what} must be an open connection ({', '.join(sorted(_OWN))}), not {connection!r:.200}")
    own = _load(target)(connection)
    if own.awaits is not awaits:
        api = "async API, dibs.aio" if own.awaits else "sync API, dibs"
        raise TypeError(f"a connection of {type(connection).__module__} is for the {api}")
    return own


def _by_class(table: dict[str, str], thing: object) -> str | None:
    """Find the target by the names of the classes of an object, without an import."""
    named = (table.get(f"{cls.__module__}.{cls.__qualname__}") for cls in type(thing).__mro__)
    return next((target for target in named if target is not None), None)


def _of_dialect(engine: Any) -> str:
    dialect = str(engine.dialect.name)
    if dialect not in _ENGINES:
        raise TypeError(f"dibs has no store for an engine of {dialect}; it has {', '.join(sorted(_ENGINES))}")
    return _ENGINES[dialect]


def _load(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _factory(url: Url) -> Callable[..., Store]:
    if url.scheme == "sqlite" and sys.platform == "win32":
        raise Unsupported("the embedded store does not run on Windows", store=url.shown, step="use a network store")
    target = _STORES.get(url.scheme)
    if target is None:
        from importlib.metadata import entry_points  # noqa: PLC0415  (takes a quarter of the time of `import dibs`)

        others = {point.name: point.value for point in entry_points(group="dibs.backends")}
        target = others.get(url.scheme)
    if target is None:
        dialect = url.scheme.partition("+")[0]
        if dialect in _STORES:
            raise ValueError(f"dibs has no store for {url.scheme[:40]}:// URLs; write {dialect}://")
        known = ", ".join(f"{scheme}://" for scheme in sorted({*_STORES, *others, *_QUORUMS}))
        if url.scheme in _UNSUPPORTED:
            raise Unsupported(f"dibs does not support {url.scheme}", step=f"use one of {known}")
        raise ValueError(f"dibs has no store for {url.scheme[:40]}:// URLs; it has {known}")
    try:
        return _load(target)
    except ImportError as error:
        raise _missing(f"{url.scheme}://", url.shown, target, error) from error


def _missing(whose: str, store: str | None, target: str, error: ImportError) -> MissingDriver:
    package, _, rest = target.partition(".backends.")
    extra = rest.partition(".")[0]
    if package == "dibs" and extra == "postgresql" and not isinstance(error, ModuleNotFoundError):
        what = f"psycopg is installed, but finds no libpq: {str(error).splitlines()[0]}"
        return MissingDriver(what, store=store, step="pip install 'psycopg[binary]', or install libpq (Debian: libpq5)")
    if package == "dibs":
        step = f"pip install 'dibs[{extra}]', or in a checkout of dibs: pip install '.[{extra}]'"
    else:
        step = f"install the packages that {target.partition('.')[0]} needs"
    return MissingDriver(f"the driver of {whose} is not installed: {error}", store=store, step=step)
