"""Which faults a store is tried by: one entry for each store, and nothing else knows of it.

A new store adds itself to GROUNDS: how to get a fresh one in a directory for the time of a run (a `Site`, with what is
left there when everybody has closed), how many workers of what kind fight for what, the faults inside the workers
(`habits`, see worker.py) and around them (`faults`, names of nemesis.FAULTS; a server's restarts and a proxy's cuts are
added there), and which versions belong into a report.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dibs
from dibs.core.deadline import WAITING_LEASE
from dibs.core.rule import RW_CAPACITY
from lab import leaks
from lab.servers import postgresql_lone
from lab.servers.redis_lone import Lone, lone
from lab.servers.zookeeper_ensemble import Ensemble, proxied
from lab.surface import Target, Want, clock, take_from
from lab.worker import Spec

SWEPT_WITHIN = 2 * WAITING_LEASE
TARGETS = [
    Target("lock-a", "mutex", 1),
    Target("lock-b", "mutex", 1),
    Target("lock-c", "mutex", 1),
    Target("rw-d", "rw", RW_CAPACITY),
    Target("permits-e", "semaphore", 3),
]


def _nothing() -> list[str]:
    return []


@dataclass(frozen=True)
class Site:
    """The store of one run."""

    url: str
    left: Callable[[], list[str]] = _nothing
    """What is there though everybody has closed."""
    versions: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    """If it is a file."""
    ensemble: Ensemble | None = None
    """If it is ZooKeeper."""
    lone: Lone | postgresql_lone.Lone | None = None
    """If it is one Redis, or one PostgreSQL."""


@dataclass(frozen=True)
class Ground:
    """How a store is tried."""

    site: Callable[[Path], AbstractContextManager[Site]]
    procs: int
    threads: int
    tasks: int
    habits: dict[str, float]
    faults: dict[str, int]
    gap: float
    """Mean seconds between two faults around the workers."""
    least_lease: float = 0.0
    """A store with sessions gives no shorter ones."""

    def specs(self, url: str, directory: Path, seed: str, lease: float) -> list[Spec]:
        return [
            Spec(
                proc=f"p{number}",
                url=url,
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


@contextmanager
def _memory(directory: Path) -> Iterator[Site]:
    yield Site("memory://soak")  # the worker looks itself for what is left, before its memory goes


@contextmanager
def _sqlite(directory: Path) -> Iterator[Site]:
    path = directory / "store"
    yield Site(f"sqlite:///{path}", lambda: sqlite_left(directory), {"sqlite": sqlite3.sqlite_version}, path=path)


def sqlite_left(directory: Path) -> list[str]:
    """Whoever comes next sweeps what the dead left, some of it only once its time has run out: nothing may stay."""
    path = directory / "store"

    def left() -> list[str]:
        with dibs.connect(f"sqlite:///{path}") as newcomer:
            newcomer.inspect("a")
        return [str(thing) for thing in leaks.sqlite(path)()]

    return _in_the_end(left)


def _in_the_end(left: Callable[[], list[str]]) -> list[str]:
    """What is still there when time enough to sweep it has passed."""
    end = clock() + SWEPT_WITHIN
    while (there := left()) and clock() <= end:
        time.sleep(0.1)
    return there


@contextmanager
def _zookeeper(directory: Path) -> Iterator[Site]:
    with proxied() as made:
        yield Site(made.url, lambda: made.left(SWEPT_WITHIN), {"zookeeper": made.version()}, ensemble=made)


@contextmanager
def _redis(directory: Path) -> Iterator[Site]:
    with lone() as made:
        yield Site(made.url, lambda: redis_left(made), {"redis": made.version()}, lone=made)


@contextmanager
def _postgresql(directory: Path) -> Iterator[Site]:
    with postgresql_lone.lone() as made:
        yield Site(made.url, lambda: redis_left(made), {"postgresql": made.version()}, lone=made)


def redis_left(server: Lone | postgresql_lone.Lone) -> list[str]:
    """What the dead left, and the graves of those who gave up, go when somebody comes by once their time is over: who
    has been through every line must find nothing behind, in the end."""

    def left() -> list[str]:
        with dibs.connect(server.url) as newcomer:
            for target in TARGETS:
                everything = Want("sweeping", target, target.capacity, fair=True, renew=True, timeout=SWEPT_WITHIN)
                with take_from(newcomer, everything):
                    """All of it is ours: nobody else stands there."""
        return server.left()

    return _in_the_end(left)


GROUNDS: dict[str, Ground] = {
    # All in one process, because the store is in it: what stops one worker stops all of them.
    "memory": Ground(
        site=_memory,
        procs=1,
        threads=10,
        tasks=10,
        habits={
            "long": 0.0002, "past": 0.0003, "stall": 0.0002, "hog": 0.0001, "cancel-acquire": 0.02,
        },
        faults={"stop briefly": 2, "stop past the lease": 1},
        gap=2.0,
    ),
    "sqlite": Ground(
        site=_sqlite,
        procs=20,
        threads=1,
        tasks=1,
        habits={
            "long": 0.001, "past": 0.001, "stall": 0.001, "hog": 0.0005, "fork": 0.005, "cancel-acquire": 0.02,
            "cancel-release": 0.05,
        },
        faults={"kill": 4, "stop briefly": 3, "stop past the lease": 2, "standstill": 1},
        gap=0.4,
    ),
    # Three servers beside the workers on the same machine: fewer of these, and time to elect between two faults.
    "zookeeper": Ground(
        site=_zookeeper,
        procs=6,
        threads=1,
        tasks=1,
        habits={
            "long": 0.003, "past": 0.003, "stall": 0.002, "hog": 0.001, "fork": 0.005, "cancel-acquire": 0.02,
            "cancel-release": 0.05,
        },
        faults={
            "kill": 4, "stop briefly": 3, "stop past the lease": 2, "kill the leader": 2, "restart a node": 2,
            "stop a node": 2, "silence a node": 3, "cut a node off": 2,
        },
        gap=1.5,
        least_lease=1.0,
    ),
    "redis": Ground(
        site=_redis,
        procs=8,
        threads=1,
        tasks=1,
        habits={
            "long": 0.001, "past": 0.001, "stall": 0.001, "hog": 0.0005, "fork": 0.005, "cancel-acquire": 0.02,
            "cancel-release": 0.05,
        },
        faults={
            "kill": 4, "stop briefly": 3, "stop past the lease": 2, "restart the server": 2, "stop the server": 2,
            "end subscriptions": 4, "end connections": 3, "forget scripts": 3,
        },
        gap=0.8,
    ),
    "postgresql": Ground(
        site=_postgresql,
        procs=8,
        threads=1,
        tasks=1,
        habits={
            "long": 0.001, "past": 0.001, "stall": 0.001, "hog": 0.0005, "fork": 0.005, "cancel-acquire": 0.02,
            "cancel-release": 0.05,
        },
        faults={
            "kill": 4, "stop briefly": 3, "stop past the lease": 2, "restart the server": 1, "stop the server": 2,
            "end connections": 4,
        },
        gap=1.0,
    ),
}  # fmt: skip
