"""Which module may import which: the layers of CONTRIBUTING.md, "The picture"."""

from __future__ import annotations

import sys
from graphlib import CycleError, TopologicalSorter

import pytest

from architecture.sources import Import, imports, modules, ours

API_MODULES = frozenset({"bases", "blocking", "aio", "_shared", "sql", "synchronized"})
OPEN_CORE = frozenset(
    f"dibs.core.{name}" for name in ("rule", "queue", "cells", "latches", "deadline", "names", "runtime")
)
"""The core modules that a store may import."""
SHARED_BY_BACKENDS = frozenset(f"dibs.backends.{name}" for name in ("common", "sql"))

MAY_IMPORT: dict[str, frozenset[str]] = {
    "core": frozenset({"core", "errors", "events", "info"}),
    "runtime": frozenset({"runtime", "core", "events"}),
    "backends": frozenset({"core", "errors", "info", "url", "runtime"}),
    "api": frozenset({"api", "core", "runtime", "url", "errors", "events", "info", "backends"}),
    "monitor": frozenset({"monitor", "api", "errors", "events", "info"}),
    "dashboard": frozenset({"dashboard", "monitor", "api", "errors", "info"}),
    "cli": frozenset({"cli", "dashboard", "monitor", "api", "info", "errors"}),
    "otel": frozenset({"api", "errors", "events", "monitor"}),
    "prometheus": frozenset({"api", "errors", "events", "monitor"}),
    "testing": frozenset({"testing", "api", "core", "runtime", "backends"}),
    "errors": frozenset({"info"}),
    "events": frozenset({"info"}),
    "info": frozenset(),
    "url": frozenset(),
}
DRIVERS = {
    "backends": {"asyncmy", "hiredis", "psycopg", "pymysql", "redis"},
    "testing": {"pytest"},
    "cli": {"rich", "uvicorn"},
    "otel": {"opentelemetry"},
    "prometheus": {"prometheus_client"},
}
"""The third-party packages that a room may import; a room that is not listed may import none."""
NOT_IN_CORE = frozenset(
    {"asyncio", "threading", "_thread", "time", "random", "socket", "select", "selectors", "signal", "sqlite3", "os"}
)


def room(module: str) -> str:
    """The row of the table that a module belongs to."""
    name = module.partition(".")[2].partition(".")[0]
    if not name or name in API_MODULES:
        return "api"
    if name == "__main__":
        return "cli"
    return name if name in MAY_IMPORT else f"{module} belongs to no row of the table"


def part_of_backends(module: str) -> str:
    """The store that a module of `dibs.backends` belongs to; the package itself belongs to none."""
    return ".".join(module.split(".")[:3])


def allowed(found: Import) -> bool:
    here, there = room(found.importer), room(found.target)
    if here == there == "backends":
        own = part_of_backends(found.importer) == part_of_backends(found.target)
        return own or part_of_backends(found.target) in SHARED_BY_BACKENDS
    if there not in MAY_IMPORT[here]:
        return False
    if here == "backends" and there == "core":
        return found.target in OPEN_CORE
    if here == "testing" and there == "backends":
        return found.target in ("dibs.backends.memory", "dibs.backends.common.atomic_queue")
    return True


def test_a_module_imports_only_what_the_table_allows() -> None:
    assert {room(module) for module in modules()} <= MAY_IMPORT.keys()
    wrong = [str(found) for module in modules() for found in ours(module) if not allowed(found)]
    assert not wrong, "not allowed by the table of this test: " + "; ".join(wrong)


def test_the_table_refuses() -> None:
    for wrong in (
        ("dibs.core.rule", "dibs.runtime.threads"),
        ("dibs.backends.sqlite.queue", "dibs.core.watchdog"),
        ("dibs.backends.sqlite.queue", "dibs.backends.memory"),
        ("dibs.testing.kit", "dibs.backends.sqlite.queue"),
    ):
        assert not allowed(Import(*wrong, line=1)), wrong


def test_no_circle() -> None:
    """Imports inside functions and imports for types count, too."""
    graph = {module: {found.target for found in ours(module) if found.target != module} for module in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a circle: " + " <- ".join(error.args[1]))


def test_the_core_knows_neither_threads_nor_clocks_nor_files() -> None:
    core = [module for module in modules() if room(module) == "core"]
    assert core
    wrong = [
        str(found) for module in core for found in imports(module) if found.target.partition(".")[0] in NOT_IN_CORE
    ]
    assert not wrong


def test_no_dependency_beyond_the_standard_library() -> None:
    """DRIVERS lists the exceptions; a new store adds its driver there."""
    foreign = [
        str(found)
        for module in modules()
        for found in imports(module)
        if found.target.partition(".")[0] not in {*sys.stdlib_module_names, "dibs", *DRIVERS.get(room(module), ())}
    ]
    assert not foreign
