"""The stores that the suite runs over. Adding one is one entry: a name, and how to get the URL of a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

_numbers = count(1)


def _memory(tmp_path: Path) -> str:
    return f"memory://contract-{next(_numbers)}"


def _sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


STORES: dict[str, Callable[[Path], str]] = {
    "memory": _memory,
    "sqlite": _sqlite,
}
