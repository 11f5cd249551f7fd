"""The simulator explores; and is itself what it says: deterministic, full of faults, readable where it fails.

The seeds are fixed, so that every run explores the same schedules. `scripts/soak sim` explores new ones.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sim.explore import QUORUM, Sum, explore, told, trace_of
from sim.schedule import CELLS, QUEUES

FIRST = {QUEUES: 250, CELLS: 100, QUORUM: 16}
KNOWN = {QUEUES: 1_000, CELLS: 250, QUORUM: 50}


def check(of: str, first: int, count: int) -> Sum:
    total = explore(first, count, of=of)
    assert not total.found, f"{len(total.found)} of {count} schedules from {first}; the first:\n{told(total.found[0])}"
    assert total.schedules == count
    return total


@pytest.mark.parametrize("of", FIRST)
def test_first_schedules(of: str) -> None:
    """Every fault happens in them; that none does too little is checked by each schedule itself."""
    happened = set(check(of, 0, FIRST[of]).faults)
    assert happened == {"lost", "late", "twice", "stall", "break"} | (
        {"stop", "lose", "die"} if of == QUORUM else {"pause", "crash", "interrupt", "fork", "step"}
    )


@pytest.mark.gate
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("of", KNOWN)
def test_known_schedules(of: str) -> None:
    check(of, FIRST[of], KNOWN[of])


@pytest.mark.parametrize("of", KNOWN)
def test_a_seed_gives_the_same_steps_in_every_process(of: str) -> None:
    """Nothing depends on the order of a set, or on anything else that differs from process to process."""
    words = [sys.executable, explore.__code__.co_filename, of, "21"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert done.stdout.splitlines() == trace_of(21, of=of)
