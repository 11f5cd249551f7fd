"""The stores that interrupts are tried on: a name, and a URL that is fresh for each test."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

_fresh = count(1)

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: f"memory://interrupts-{next(_fresh)}",
    "sqlite": lambda folder: f"sqlite:///{folder}/locks-{next(_fresh)}.db",
}
