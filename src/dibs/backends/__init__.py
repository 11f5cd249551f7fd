"""Which store a URL means: a table, imported lazily, open to others by the entry points `dibs.backends`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from dibs.core.cells import Admits
from dibs.core.line import Store
from dibs.errors import MissingDriver, Unsupported
from dibs.url import Url

_STORES = {
    "memory": "dibs.backends.memory:MemoryStore",
    "sqlite": "dibs.backends.sqlite.store:SqliteStore",
}
_TRANSACTIONS = {
    "sqlite3.Connection": "dibs.backends.sqlite.within:SqliteTransaction",
}
_LATER = frozenset(
    [
        "redis",
        "rediss",
        "unix",
        "redis+sentinel",
        "redis+cluster",
        "quorum+redis",
        "zookeeper",
        "zookeepers",
        "mysql",
        "postgresql",
        "etcd",
    ]
)


def make_store(url: Url, options: dict[str, Any]) -> Store:
    """The store for a URL; options it does not know are an error that names them."""
    factory = _factory(url)
    try:
        return factory(url, **options)
    except TypeError as error:
        if options and "unexpected keyword" in str(error):
            names = ", ".join(sorted(options))
            raise TypeError(f"{url.scheme}:// has no store option of that name (given: {names})") from None
        raise


def transaction(connection: object) -> Admits:
    """The caller's own transaction, as far as a fence needs it; told by the class of what was given."""
    for cls in type(connection).__mro__:
        target = _TRANSACTIONS.get(f"{cls.__module__}.{cls.__qualname__}")
        if target is not None:
            made: Admits = _load(target)(connection)
            return made
    known = ", ".join(sorted(_TRANSACTIONS))
    raise TypeError(f"within must be an open connection ({known}), not {connection!r}")


def _load(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def _factory(url: Url) -> Callable[..., Store]:
    if url.scheme == "sqlite" and sys.platform == "win32":
        raise Unsupported("the embedded store does not run on Windows", store=url.shown, step="use a network store")
    target = _STORES.get(url.scheme)
    if target is None:
        from importlib.metadata import entry_points  # noqa: PLC0415  (a quarter of the time that `import dibs` takes)

        others = {point.name: point.value for point in entry_points(group="dibs.backends")}
        target = others.get(url.scheme)
    if target is None:
        if url.scheme in _LATER:
            raise Unsupported(f"{url.scheme}:// is not in this version of dibs yet", step="use sqlite:/// or memory://")
        known = ", ".join(f"{scheme}://" for scheme in sorted({*_STORES, *others}))
        raise ValueError(f"no store is known for {url.scheme[:40]}:// URLs; known are {known}")
    try:
        return _load(target)
    except ImportError as error:
        raise MissingDriver(
            f"the driver of {url.scheme}:// is missing: {error}", store=url.shown,
            step=f"pip install 'dibs[{url.scheme.partition('+')[0]}]'",
        ) from error  # fmt: skip
