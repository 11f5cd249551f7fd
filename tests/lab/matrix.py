"""The faults by which each store is tried. A new store adds an entry to PLANS.

An entry says how to get a fresh store in a directory (a `Site`), how many workers of what kind use it, and the faults
inside the workers (`chances`, see worker.py) and around them (`faults`, names of nemesis.FAULTS).
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
from lab.servers.lone import MARIADB, POSTGRESQL, REDIS, Lone, Ways, lone
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


@dataclass(frozen=True)
class Site:
    url: str
    left: Callable[[], list[str]] = list
    """Lists what is left after all clients closed."""
    versions: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    ensemble: Ensemble | None = None
    lone: Lone | None = None


@dataclass(frozen=True)
class Plan:
    site: Callable[[Path], AbstractContextManager[Site]]
    procs: int
    faults: dict[str, int]
    gap: float = 0.8
    """Mean seconds between two faults around the workers."""
    chances: dict[str, float] = field(default_factory=lambda: _USUAL)
    threads: int = 1
    tasks: int = 1
    least_lease: float = 0.0
    """A store with sessions gives no shorter ones."""

    def specs(self, url: str, directory: Path, seed: str, lease: float) -> list[Spec]:
        own = {"threads": self.threads, "tasks": self.tasks, "chances": self.chances}
        return [Spec(f"p{number}", url, str(directory), seed, TARGETS, lease, **own) for number in range(self.procs)]


@contextmanager
def _memory(directory: Path) -> Iterator[Site]:
    yield Site("memory://soak")  # the worker looks itself for what is left, before its memory goes


@contextmanager
def _sqlite(directory: Path) -> Iterator[Site]:
    path = directory / "store"
    yield Site(f"sqlite:///{path}", lambda: sqlite_left(directory), {"sqlite": sqlite3.sqlite_version}, path=path)


def sqlite_left(directory: Path) -> list[str]:
    """The next client sweeps what dead ones left, some of it only after a timeout: nothing may stay."""
    path = directory / "store"

    def left() -> list[str]:
        with dibs.connect(f"sqlite:///{path}") as newcomer:
            newcomer.inspect("a")
        return [str(thing) for thing in leaks.sqlite(path)()]

    return _in_the_end(left)


def _in_the_end(left: Callable[[], list[str]]) -> list[str]:
    """Poll until nothing is left, for the time in which it must be swept."""
    end = clock() + SWEPT_WITHIN
    while (there := left()) and clock() <= end:
        time.sleep(0.1)
    return there


@contextmanager
def _zookeeper(directory: Path) -> Iterator[Site]:
    with proxied() as made:
        yield Site(made.url, lambda: made.left(SWEPT_WITHIN), {"zookeeper": made.version()}, ensemble=made)


def _one(name: str, ways: Ways) -> Callable[[Path], AbstractContextManager[Site]]:
    @contextmanager
    def site(directory: Path) -> Iterator[Site]:
        with lone(ways) as made:
            yield Site(made.url, lambda: left_on(made), {name: made.version()}, lone=made)

    return site


def left_on(server: Lone) -> list[str]:
    """Clients sweep expired claims and tombstones from each queue they use: a client that has used every queue must
    find nothing left in the end."""

    def left() -> list[str]:
        with dibs.connect(server.url) as newcomer:
            for target in TARGETS:
                everything = Want("sweeping", target, target.capacity, fair=True, renew=True, timeout=SWEPT_WITHIN)
                with take_from(newcomer, everything):
                    """All of it is ours: nobody else stands there."""
        return server.left()

    return _in_the_end(left)


_USUAL = {
    "long": 0.001, "past": 0.001, "stall": 0.001, "hog": 0.0005, "fork": 0.005, "cancel-acquire": 0.02,
    "cancel-release": 0.05,
}  # fmt: skip
_OF_WORKERS = {"kill -9": 4, "stopped for less than a lease": 3, "stopped for more than a lease": 2}
_OF_A_SERVER = _OF_WORKERS | {
    "server restarted": 2, "server stopped": 2, "subscriptions ended": 4, "connections ended": 3,
}  # fmt: skip
_OF_AN_ENSEMBLE = _OF_WORKERS | {
    "leader killed": 2, "node restarted": 2, "node stopped": 2, "node silenced": 3, "node cut off": 2,
}  # fmt: skip
PLANS: dict[str, Plan] = {
    # All in one process, because the store is in it: what stops one worker stops all of them.
    "memory": Plan(
        _memory, 1, {"stopped for less than a lease": 2, "stopped for more than a lease": 1}, gap=2.0,
        threads=10, tasks=10,
        chances={"long": 0.0002, "past": 0.0003, "stall": 0.0002, "hog": 0.0001, "cancel-acquire": 0.02},
    ),
    "sqlite": Plan(_sqlite, 20, {**_OF_WORKERS, "store at a standstill": 1}, gap=0.4),
    # Three servers beside the workers on the same machine: fewer of these, and time to elect between two faults.
    "zookeeper": Plan(
        _zookeeper, 6, _OF_AN_ENSEMBLE, gap=1.5, least_lease=1.0,
        chances={**_USUAL, "long": 0.003, "past": 0.003, "stall": 0.002, "hog": 0.001},
    ),
    "redis": Plan(_one("redis", REDIS), 8, {**_OF_A_SERVER, "scripts forgotten": 3}),
    "postgresql": Plan(_one("postgresql", POSTGRESQL), 6, _OF_A_SERVER),
    "mysql": Plan(_one("mariadb", MARIADB), 6, _OF_A_SERVER),
}  # fmt: skip
