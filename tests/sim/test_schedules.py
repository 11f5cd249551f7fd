"""The simulator explores; and is itself what it says: deterministic, full of faults, readable where it fails.

CI explores schedules 0 to 4,999 of locks and 0 to 999 of latch, cell, fence and election, and then some of each that
nobody has seen: their first seed is DIBS_SIM_SEED, which `scripts/test` draws and prints.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sim import schedule
from sim.broken import broken
from sim.explore import Found, explore, told, trace_of
from sim.faults import KINDS, STEPPED
from sim.schedule import CELLS, LINES

CHUNK = 500
KNOWN = {LINES: 5_000, CELLS: 1_000}
FRESH = {LINES: 500, CELLS: 200}


def check(of: str, first: int, count: int) -> None:
    total = explore(first, count, of=of)
    assert not total.found, f"{len(total.found)} of {count} schedules from {first}; the first:\n{told(total.found[0])}"
    assert total.schedules == count


@pytest.mark.slow
@pytest.mark.parametrize(("of", "first"), [(of, first) for of, end in KNOWN.items() for first in range(0, end, CHUNK)])
def test_known_schedules(of: str, first: int) -> None:
    check(of, first, CHUNK)


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
    program = Path(explore.__code__.co_filename)
    outputs = [
        subprocess.run(
            [sys.executable, program, of, "21"],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": number},
        ).stdout
        for number in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines() == trace_of(21, of=of)


@pytest.mark.parametrize("of", KNOWN)
def test_schedules_are_as_busy_and_as_faulty_as_they_should_be(of: str) -> None:
    outcomes = [schedule.run(seed, of=of) for seed in range(160)]
    assert min(outcome.handed for outcome in outcomes) >= 20
    assert min(len(outcome.faults) for outcome in outcomes) >= 3
    happened = Counter(kind for outcome in outcomes for kind in outcome.faults)
    assert set(happened) == set(STEPPED)
    assert set(happened) - set(KINDS) == {"step"}


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
