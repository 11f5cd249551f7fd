"""Real signals at random instants: what `with` forgets."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interrupts.stores import SERVERS, STORES

INTERRUPTS = {"memory": (400, 3.0), "sqlite": (400, 3.0), "zookeeper": (500, 6.0), "redis": (1000, 3.0)}
"""How many, and the lease beside them."""
PATIENCE = 120
"""The program ends itself a little earlier and then shows where every thread stands."""


def _at_the_entry(where: str) -> bool:
    """Of `__exit__`, before its first line: Python's own gap."""
    outermost, innermost = where.split(" > ")
    return outermost == innermost and outermost.endswith(" __exit__")


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "store", [pytest.param(store, marks=[pytest.mark.soak] if store in SERVERS else []) for store in INTERRUPTS]
)
def test_a_storm_of_signals_leaves_nothing(store: str, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    url = STORES[store](tmp_path)
    count, lease = INTERRUPTS[store]
    command = [sys.executable, str(Path(__file__).with_name("storm.py")), url, str(count), str(lease), str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it hangs (seed {seed}):\n{error.stderr!r}")
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    told: dict[str, Any] = json.loads(done.stdout)
    print(f"\n{count} interrupts of `with` on {store}, seed {seed}: {told}")
    assert (told["interrupts"], told["busy at first"] > 0) == (count, True), "the storm missed: this shows nothing"
    assert told["watchdog lives"]
    assert told["left in the store"] == [], "a claim outlived its hold"
    assert [(where, times) for where, times in told["forgotten"] if not _at_the_entry(where)] == []
    assert told["swallowed"] == [], "by a destructor or a callback of the garbage collector"
