"""The simulator explores; and is itself what it says: deterministic, full of faults, readable where it fails.

Every run explores schedules whose seeds are fixed, and some that nobody has seen: their first seed is DIBS_SIM_SEED,
which `scripts/test` draws and prints. `scripts/soak sim` explores for as long as it is told to.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys

import pytest

from sim.broken import broken
from sim.explore import Found, Sum, explore, told, trace_of
from sim.faults import KINDS, STEPPED
from sim.schedule import CELLS, QUEUES

FIRST = {QUEUES: 250, CELLS: 100}
KNOWN = {QUEUES: 1_000, CELLS: 250}
MORE = {QUEUES: 1_000, CELLS: 250}
"""Known ones as well, for the soak."""
FRESH = {QUEUES: 250, CELLS: 100}


def check(of: str, first: int, count: int) -> Sum:
    total = explore(first, count, of=of)
    assert not total.found, f"{len(total.found)} of {count} schedules from {first}; the first:\n{told(total.found[0])}"
    assert total.schedules == count
    return total


@pytest.mark.parametrize("of", FIRST)
def test_first_schedules(of: str) -> None:
    """Every fault happens in them; that none does too little is checked by each schedule itself."""
    happened = check(of, 0, FIRST[of]).faults
    assert set(happened) == set(STEPPED)
    assert set(happened) - set(KINDS) == {"step"}


@pytest.mark.early
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("of", KNOWN)
def test_known_schedules(of: str) -> None:
    check(of, FIRST[of], KNOWN[of])


@pytest.mark.soak
@pytest.mark.parametrize("of", MORE)
def test_more_known_schedules(of: str) -> None:
    check(of, FIRST[of] + KNOWN[of], MORE[of])


@pytest.mark.parametrize("of", FRESH)
def test_fresh_schedules(of: str) -> None:
    check(of, int(os.environ.get("DIBS_SIM_SEED") or secrets.randbelow(2**40)), FRESH[of])


@pytest.mark.parametrize("of", KNOWN)
def test_a_seed_gives_the_same_steps_again(of: str) -> None:
    for seed in (1, 8, 21, 34):
        assert trace_of(seed, of=of) == trace_of(seed, of=of)


@pytest.mark.parametrize("of", KNOWN)
def test_a_seed_gives_the_same_steps_in_every_process(of: str) -> None:
    """Nothing depends on the order of a set, or on anything else that differs from process to process."""
    words = [sys.executable, explore.__code__.co_filename, of, "21"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert done.stdout.splitlines() == trace_of(21, of=of)


def test_a_failure_names_the_command_that_shows_it_again() -> None:
    with_margin = trace_of(25)
    assert with_margin[-1] == "nothing was violated"
    total = _without_margin()
    text = told(total, "margin")
    assert f'python tests/sim/explore.py {total.seed} "margin"' in text
    assert "FAULT" in text
    assert text.splitlines()[-1] == f"VIOLATION {total.what}"


def test_a_failure_among_cells_says_so_in_its_command() -> None:
    with broken("version of a put"):
        found = explore(0, 2_000, of=CELLS, until_found=True).found[0]
    assert f'python tests/sim/explore.py cells {found.seed} "version of a put"' in told(found, "version of a put")


def _without_margin() -> Found:
    with broken("margin"):
        return explore(0, 2_000, until_found=True).found[0]
