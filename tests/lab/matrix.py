"""Which faults a store is tried by: one entry for each store, and nothing else knows of it.

A new store adds itself to GROUNDS: how to get the URL of a fresh one in a directory, how many workers of what kind
fight for what, the faults inside the workers (`habits`, see worker.py) and around them (`faults`, names of
nemesis.FAULTS; a server's restarts and a proxy's cuts are added there), what to look for when everybody has closed,
and which versions belong into a report.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dibs
from dibs.core.deadline import WAITING_LEASE
from dibs.core.rule import RW_CAPACITY
from lab import leaks
from lab.surface import Target, clock
from lab.worker import Spec

SWEPT_WITHIN = 2 * WAITING_LEASE
TARGETS = [
    Target("lock-a", "mutex", 1),
    Target("lock-b", "mutex", 1),
    Target("lock-c", "mutex", 1),
    Target("rw-d", "rw", RW_CAPACITY),
    Target("permits-e", "semaphore", 3),
]


@dataclass(frozen=True)
class Ground:
    """How a store is tried."""

    url: Callable[[Path], str]
    procs: int
    threads: int
    tasks: int
    habits: dict[str, float]
    faults: dict[str, int]
    gap: float
    """Mean seconds between two faults around the workers."""
    left: Callable[[Path], list[str]]
    versions: Callable[[], dict[str, str]]

    def specs(self, directory: Path, seed: str, lease: float) -> list[Spec]:
        return [
            Spec(
                proc=f"p{number}",
                url=self.url(directory),
                directory=str(directory),
                seed=seed,
                targets=TARGETS,
                lease=lease,
                threads=self.threads,
                tasks=self.tasks,
                habits=self.habits,
            )
            for number in range(self.procs)
        ]


def _sqlite_left(directory: Path) -> list[str]:
    """Whoever comes next sweeps what the dead left, some of it only once its time has run out: nothing may stay."""
    path, end = directory / "store", clock() + SWEPT_WITHIN
    while True:
        with dibs.connect(f"sqlite:///{path}") as newcomer:
            newcomer.inspect("a")
        left = [str(thing) for thing in leaks.sqlite(path)()]
        if not left or clock() > end:
            return left
        time.sleep(0.1)


GROUNDS: dict[str, Ground] = {
    # All in one process, because the store is in it: what stops one worker stops all of them.
    "memory": Ground(
        url=lambda directory: "memory://soak",
        procs=1,
        threads=10,
        tasks=10,
        habits={
            "long": 0.0002, "past": 0.0003, "stall": 0.0002, "hog": 0.0001, "cancel-acquire": 0.02,
        },
        faults={"stop briefly": 2, "stop past the lease": 1},
        gap=2.0,
        left=lambda directory: [],  # the worker looks itself, before its memory goes
        versions=dict,
    ),
    "sqlite": Ground(
        url=lambda directory: f"sqlite:///{directory / 'store'}",
        procs=20,
        threads=1,
        tasks=1,
        habits={
            "long": 0.001, "past": 0.001, "stall": 0.001, "hog": 0.0005, "fork": 0.005, "cancel-acquire": 0.02,
            "cancel-release": 0.05,
        },
        faults={"kill": 4, "stop briefly": 3, "stop past the lease": 2, "standstill": 1},
        gap=0.4,
        left=_sqlite_left,
        versions=lambda: {"sqlite": sqlite3.sqlite_version},
    ),
}  # fmt: skip
