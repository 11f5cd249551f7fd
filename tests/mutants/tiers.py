"""Which tests must notice a change of which file, likely and cheap ones first.

A mutant goes through the stages of its area, one run of pytest each, until a test fails. The stages of `fast` are part
of `scripts/test fast`, those of `full` of what only `scripts/test` runs, those of `gate` of `scripts/soak gate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FAST, FULL, GATE = TIERS = ("fast", "full", "gate")
TESTS = Path(__file__).parents[1]
CONTRACT = "src/dibs/testing/contract"
_MARKS = {
    FAST: ("-m", "not slow and not alone and not gate and not soak"),
    FULL: (),  # as pyproject.toml has it
    GATE: ("-m", "gate and not soak"),
}
_FULL = (TESTS / "full.txt").read_text(encoding="utf-8").splitlines()


class Stage(NamedTuple):
    tier: str
    arguments: tuple[str, ...]
    workers: int


def _fast(*arguments: str, workers: int = 3) -> Stage:
    return Stage(FAST, (*_MARKS[FAST], *arguments), workers)


def _full(*arguments: str, workers: int = 3) -> Stage:
    return Stage(FULL, arguments, workers)


def _both(*arguments: str, workers: int = 3) -> list[Stage]:
    """Tests of `scripts/test`, and those beside them that are for the gate."""
    return [Stage(tier, (*_MARKS[tier], *arguments), workers) for tier in (FULL, GATE)]


def _on(store: str, *paths: str) -> tuple[str, ...]:
    """Tests of the contract suite on a server, as much of it as `scripts/test` and the gate ask of it."""
    wanted = (f"--dibs-store={store}=", f"--dibs-part={store}=")
    return (*(word for word in _FULL if word.startswith(wanted)), *paths)


def _contract(*modules: str) -> list[str]:
    return [f"{CONTRACT}/test_{module}.py" for module in modules]


_OPERATIONS = ("queue", "cells", "queue_wakeup", "fence", "rwlock", "votes")
"""The modules that say most about a store in the least time; the rest of the suite comes later."""
_TRAPS = ("tests/sim/test_traps.py",)
_PARTS = tuple(
    f"tests/core/test_{part}.py"
    for part in (
        "rule", "deadline", "watchdog", "news", "patience", "release_race", "close_race", "within", "aio_inbox",
    )
)  # fmt: skip
_SERVERLESS = [
    *_both("tests/store/sqlite", "tests/testing"), *_both("tests/security"), *_both("tests/process"),
]  # fmt: skip
_CORE = [
    _fast("--dibs-store", "memory", *_TRAPS, *_PARTS, *_contract(*_OPERATIONS, "cell", "life"), workers=0),
    _fast("tests/sim/test_schedules.py", workers=0),
    _fast("--dibs-store", "memory", "tests/core", CONTRACT),
    _fast("--dibs-store", "sqlite", CONTRACT),
    _fast("tests/sim"),
    *_both("tests/core", "tests/sim"),
    *_SERVERLESS,
    *_both("tests/interrupts"),
]
_QUORUM = [
    _fast(
        "tests/core/test_quorum_members.py", "tests/core/test_quorum_votes.py", "tests/sim/test_quorum.py", workers=0
    ),
    _fast("tests/core"),
    *_both("tests/store/quorum"),
    *_both(*_on("five", CONTRACT)),
]


def _server(store: str, words: str, *more: str) -> list[Stage]:
    return [
        _full(*_on(store, *_contract(*_OPERATIONS)), workers=0),
        *_both("-k", words, "tests/store"),
        *_both(*_on(store, CONTRACT)),
        *_both(*more),
    ]


AREAS: dict[str, tuple[str, list[Stage]]] = {
    # The longest path that a file begins with decides.
    "core/": ("core", _CORE),
    "core/quorum/grantor.py": ("core", _QUORUM),
    "core/quorum/members.py": ("core", _QUORUM),
    "core/quorum/votes.py": ("core", _QUORUM),
    "runtime/": ("core", _CORE),
    "backends/common/atomic_queue.py": ("verbs", _CORE),
    "backends/common/atomic_cells.py": ("verbs", _CORE),
    "backends/memory.py": ("verbs", _CORE),
    "backends/sqlite/": (
        "sqlite",
        [
            _fast("--dibs-store", "sqlite", *_contract(*_OPERATIONS, "cell", "life"), workers=0),
            _fast("--dibs-store", "sqlite", CONTRACT),
            *_both("--dibs-store", "sqlite", CONTRACT),
            *_SERVERLESS,
        ],
    ),
    "backends/redis/": ("redis", _server("redis", "redis", "tests/security")),
    "backends/redis/redisson/": (
        "redisson",
        [*_both("tests/store/redis/redisson"), *_both(*_on("redisson", CONTRACT))],
    ),
    "backends/postgresql/": ("postgresql", _server("postgresql", "postgresql", "tests/sql", "tests/security")),
    "backends/mysql/": ("mysql", _server("mariadb", "mysql or mariadb", "tests/sql", "tests/security")),
    "backends/": ("stores", [_full("tests/store/test_sockets.py", workers=0), *_both("tests/store")]),
}


def area(path: str) -> str:
    return AREAS[_key(path)][0]


def stages(path: str, tier: str, first: tuple[str, ...] = ()) -> list[Stage]:
    """The stages of a tier and the tiers before it, in the order in which they run. `first`: tests that are likely to
    notice the mutant, which run before the others of `full` and of `gate`."""
    found = AREAS[_key(path)][1]
    likely = _both(*first, workers=0) if first else []
    wanted = TIERS[: TIERS.index(tier) + 1]
    return [stage for one in wanted for stage in (*likely, *found) if stage.tier == one]


def _key(path: str) -> str:
    return max((start for start in AREAS if path.startswith(start)), key=len)
