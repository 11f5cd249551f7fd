"""Which tests must notice a change of which file: the one table of it, likely and cheap ones first.

A mutant goes through the stages of its area, one run of pytest each, until a test fails. The stages of `fast` are part
of what `scripts/test fast` runs, those of `full` of what only `scripts/test` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FAST, FULL = "fast", "full"
TESTS = Path(__file__).parents[1]
CONTRACT = "src/dibs/testing/contract"
_NOT_SLOW = ("-m", "not slow and not soak")
_FULL = (TESTS / "full.txt").read_text(encoding="utf-8").splitlines()


class Stage(NamedTuple):
    tier: str
    arguments: tuple[str, ...]
    workers: int


def _fast(*arguments: str, workers: int = 3) -> Stage:
    return Stage(FAST, (*_NOT_SLOW, *arguments), workers)


def _full(*arguments: str, workers: int = 3) -> Stage:
    return Stage(FULL, arguments, workers)


def _on(store: str, *paths: str) -> tuple[str, ...]:
    """Tests of the contract suite on a server, as much of it as `scripts/test` asks of it."""
    wanted = (f"--dibs-store={store}=", f"--dibs-part={store}=")
    return (*(word for word in _FULL if word.startswith(wanted)), *paths)


def _contract(*modules: str) -> list[str]:
    return [f"{CONTRACT}/test_{module}.py" for module in modules]


_OPERATIONS = ("queue", "cells", "queue_wakeup", "fence", "rwlock", "votes")
"""What says most about a store in the least time; the rest of the suite comes later."""
_TRAPS = ("tests/sim/test_traps.py", "tests/sim/test_traps_cells.py")
_PARTS = tuple(
    f"tests/core/test_{part}.py"
    for part in (
        "rule",
        "deadline",
        "displaced",
        "news",
        "patience",
        "release_race",
        "close_race",
        "within",
        "aio_inbox",
    )
)
_SIM = [
    _fast("tests/sim/test_schedules.py", workers=0),
    _fast("tests/sim"),
    _full("-m", "slow and not soak", "tests/sim"),
]
_SERVERLESS = [_full("tests/store/sqlite", "tests/testing"), _full("tests/security"), _full("tests/process")]
_CORE = [
    _fast("--dibs-store", "memory", *_TRAPS, *_PARTS, *_contract(*_OPERATIONS, "cell", "life"), workers=0),
    _SIM[0],
    _fast("--dibs-store", "memory", "tests/core", CONTRACT),
    _fast("--dibs-store", "sqlite", CONTRACT),
    *_SIM[1:],
    *_SERVERLESS,
    _full("tests/interrupts"),
]
_QUORUM = [
    _fast(
        "tests/core/test_quorum_members.py", "tests/core/test_quorum_votes.py", "tests/sim/test_quorum.py", workers=0
    ),
    _fast("tests/core"),
    _full("tests/store/quorum"),
    _full(*_on("five", CONTRACT)),
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
            *_SERVERLESS,
        ],
    ),
    "backends/redis/": (
        "redis",
        [
            _full(*_on("redis", *_contract(*_OPERATIONS)), workers=0),
            _full("-k", "redis", "tests/store"),
            _full(*_on("redis", CONTRACT)),
            _full("tests/security"),
        ],
    ),
    "backends/redis/redisson/": (
        "redisson",
        [_full("tests/store/redis/redisson"), _full(*_on("redisson", CONTRACT))],
    ),
    "backends/postgresql/": (
        "postgresql",
        [
            _full(*_on("postgresql", *_contract(*_OPERATIONS)), workers=0),
            _full("-k", "postgresql", "tests/store"),
            _full(*_on("postgresql", CONTRACT)),
            _full("tests/sql", "tests/security"),
        ],
    ),
    "backends/mysql/": (
        "mysql",
        [
            _full(*_on("mariadb", *_contract(*_OPERATIONS)), workers=0),
            _full("-k", "mysql or mariadb", "tests/store"),
            _full(*_on("mariadb", CONTRACT)),
            _full("tests/sql", "tests/security"),
        ],
    ),
    "backends/": ("stores", [_full("tests/store/test_sockets.py", workers=0), _full("tests/store")]),
}


def area(path: str) -> str:
    return AREAS[_key(path)][0]


def stages(path: str, tier: str, first: tuple[str, ...] = ()) -> list[Stage]:
    """In the order in which they are run; those of `fast` belong to `full`, too. `first`: likely tests of `full`."""
    found = AREAS[_key(path)][1]
    if tier == FAST:
        return [stage for stage in found if stage.tier == FAST]
    return [_full(*first, workers=0), *found] if first else found


def _key(path: str) -> str:
    return max((start for start in AREAS if path.startswith(start)), key=len)
