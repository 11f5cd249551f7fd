"""The tables "from `with` to the wire" in CONTRIBUTING.md are true: each call of a free pair is traced on a real store.

The functions of dibs that are called are the same on every Python. The counts of calls are those of the Python that
made the table: another one may have fewer Python calls, never more. On a network store pairs take slightly different
roads, by how replies arrive: the one on the page must be among them.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lab.servers import shared

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda place: f"memory://{place.name}",
    "sqlite": lambda place: f"sqlite:///{place}/locks.db",
    "redis": shared.fresh_redis,
    "postgresql": shared.fresh_postgresql,
    "mysql": shared.fresh_mariadb,
    "zookeeper": shared.fresh,
}
RENEW = "run bench/trace --write"


def _road_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_road", ROOT / "bench" / "road.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


road = _road_module()


@pytest.mark.parametrize(
    "store", [pytest.param(name, marks=() if name in ("memory", "sqlite") else pytest.mark.slow) for name in STORES]
)
def test_the_road_is_as_contributing_shows_it(store: str, tmp_path: Path) -> None:
    seen = road.travelled(STORES[store](tmp_path))
    if store in road.SHOWN:
        shown = road.block(PAGE, store)
        assert shown in [road.table(one) for one in seen], f"{RENEW}; see bench/trace {store}"
        seen = [one for one in seen if road.table(one) == shown]
    counted_by, (python, _, files, others) = _figures(store)
    counts = [(one.python(), len(one.files()), len(one.files(ours=False))) for one in seen]
    if counted_by == f"{sys.version_info.major}.{sys.version_info.minor}":  # calls of C depend on how replies arrive
        assert (python, files, others) in counts, RENEW
    assert any(now[0] <= python and now[1] == files for now in counts), f"{counts}: {RENEW}"


def _figures(store: str) -> tuple[str, tuple[int, ...]]:
    """The Python that counted, and the figures of a store."""
    first, *_ = lines = road.block(PAGE, "figures")
    version = re.search(r"Python (\d+\.\d+)", first)
    assert version is not None, first
    rows = {cells[0]: cells[1:] for line in lines if (cells := [cell.strip() for cell in line.strip("|").split("|")])}
    return version[1], tuple(map(int, rows[store]))
