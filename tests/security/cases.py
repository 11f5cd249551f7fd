"""The shape of the table of attacks (table.py): what a case is, and which stores and parts must show it.

A store joins where it joins dibs.testing.contract: what runs over the stores there attacks it at once. What only some
stores have to withstand depends on their `TRAITS`. A store without traits, or a case that applies to a store and that
no test shows there, fails test_table.py. So does a part (the command line, the dashboard) once it is there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

EVERY = "every store"
"""As a trait: applies to each. As a key of `shown`: tests that run over every store, or that no store takes part in."""
FILE = "lives in a file"
SQL = "speaks SQL"
ROWS = "keeps claims where others of its user can write"
WAKES = "is woken by messages that others can forge"
NETWORK = "is reached over a network, with credentials"
REDIS, CLUSTER, ZOOKEEPER, MARIADB, POSTGRESQL = "Redis", "Redis Cluster", "ZooKeeper", "MariaDB", "PostgreSQL"

TRAITS: dict[str, frozenset[str]] = {
    "memory": frozenset(),
    "sqlite": frozenset({FILE, SQL, ROWS, WAKES}),
    "redis": frozenset({NETWORK, ROWS, WAKES, REDIS}),
    "redis+sentinel": frozenset({NETWORK, ROWS, WAKES, REDIS}),
    "redis+cluster": frozenset({NETWORK, ROWS, WAKES, REDIS, CLUSTER}),
    "quorum+redis": frozenset({NETWORK, ROWS, WAKES, REDIS}),
    "zookeeper": frozenset({NETWORK, ROWS, ZOOKEEPER}),
    "mysql": frozenset({NETWORK, SQL, ROWS, MARIADB}),
    "postgresql": frozenset({NETWORK, SQL, ROWS, WAKES, POSTGRESQL}),
}


@cache
def _has_command() -> bool:
    return "scripts" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache
def _has_dashboard() -> bool:
    return (ROOT / "src/dibs/dashboard").exists()


COMMAND, DASHBOARD = "the command line", "the dashboard"
PARTS: dict[str, Callable[[], bool]] = {COMMAND: _has_command, DASHBOARD: _has_dashboard}
"""Parts that are no stores, and how to see that they are there."""


@dataclass(frozen=True)
class Case:
    """One numbered attack, what must come of it, for whom it counts, and the tests that show it."""

    number: int
    attack: str
    outcome: str
    counts_for: str
    """A trait, or a part."""
    shown: Mapping[str, tuple[str, ...]]
    """Tests by store or part; under EVERY for all stores. `folder/test_file word`: those with that word in their names;
    `folder/test_file`: all of them."""

    def applies_to(self, store: str) -> bool:
        return self.counts_for == EVERY or self.counts_for in TRAITS[store]

    def tests(self) -> list[str]:
        return [test for tests in self.shown.values() for test in tests]


def case(number: int, attack: str, outcome: str, counts_for: str, every: str = "", **by_store: str) -> Case:
    """`every`: tests over every store, or that no store takes part in; `command` and
    `dashboard`: those of a part."""
    parts = {COMMAND: by_store.pop("command", ""), DASHBOARD: by_store.pop("dashboard", "")}
    written = {EVERY: every, **parts, **by_store}
    shown = {where: tuple(tests.split(", ")) for where, tests in written.items() if tests}
    return Case(number, attack, outcome, counts_for, shown)
