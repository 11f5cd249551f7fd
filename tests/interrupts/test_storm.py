"""Real signals at random instants: what `with` forgets, beside a `threading.Lock` in the same storm."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interrupts.stores import SERVERS, STORES

INTERRUPTS = {"memory": (2000, 0.6), "sqlite": (2000, 0.6), "zookeeper": (500, 4.0), "redis": (1000, 2.0)}
"""How many, and the lease beside them."""
PATIENCE = 120
"""The program ends itself a little earlier and then shows where every thread stands."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def _params() -> list[object]:
    return [pytest.param(store, marks=[pytest.mark.soak] if store in SERVERS else []) for store in INTERRUPTS]


@pytest.fixture(scope="module", params=_params())
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program said after the storm."""
    seed = random.randrange(2**32)
    url = STORES[request.param](tmp_path_factory.mktemp("storm"))
    count, lease = INTERRUPTS[request.param]
    command = [sys.executable, str(Path(__file__).with_name("storm.py")), url, str(count), str(lease), str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it hangs (seed {seed}):\n{error.stderr!r}")
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["interrupts"] == count
    print(
        f"\n{count} interrupts of `with` on {request.param}, seed {seed}: forgotten by dibs {found['forgotten']}"
        f" (busy at first {found['busy at first']}), by threading.Lock {found['threading.Lock']},"
        f" by a context manager in Python {found['in Python']}; warnings {found['warnings']}"
    )
    return found


def test_the_keeper_lives(told: dict[str, Any]) -> None:
    assert told["keeper lives"]


def test_no_claim_outlives_its_hold(told: dict[str, Any]) -> None:
    assert told["left in the store"] == []


def test_nothing_is_forgotten_once_our_code_runs(told: dict[str, Any]) -> None:
    """An interrupt at the very entry of `__exit__`, before its first line, is counted in the next test only."""
    assert [(where, times) for where, times in told["where"] if not _at_the_entry(where)] == []


def test_no_more_is_forgotten_than_by_a_lock_made_in_c(told: dict[str, Any]) -> None:
    assert told["in Python"] > 0, "the storm missed: this run shows nothing"
    assert told["forgotten"] <= told["threading.Lock"], told["where"]


def test_no_interrupt_is_swallowed(told: dict[str, Any]) -> None:
    """As it would be if it hit a destructor or a callback of the garbage collector."""
    assert told["swallowed"] == []


def _at_the_entry(where: str) -> bool:
    outermost, innermost = where.split(" > ")
    return outermost == innermost and outermost.endswith(" __exit__")
