"""The simulator over a quorum: nothing is violated; and without any one safeguard something is, soon."""

from __future__ import annotations

import os
import secrets
from collections import Counter

import pytest

from sim.quorum import BROKEN, broken, find, run

WITHIN = 600
FROM = {"validity from before round one": 1_069, "round two looks before it stamps": 1_009, "margin": 1_038}
"""Where the search begins; the rarest violation shows in about one schedule of a hundred."""
FAULTS = {"lost", "late", "twice", "stop", "stall", "lose", "die", "break"}


def check(first: int, count: int) -> None:
    found = find(first, count)
    assert found is None, f"{found[1]}; replay: python tests/sim/quorum.py {found[0]}"


def test_first_schedules() -> None:
    """A seed gives the same steps again, and every fault happens."""
    outcomes = [run(seed, trace=True) for seed in range(16)]
    assert run(8, trace=True).trace == outcomes[8].trace
    happened = Counter(kind for outcome in outcomes for kind in outcome.happened)
    assert set(happened) == FAULTS
    assert min(outcome.handed for outcome in outcomes) >= 12


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_known_schedules() -> None:
    check(16, 100)


def test_fresh_schedules() -> None:
    check(int(os.environ.get("DIBS_SIM_SEED") or secrets.randbelow(2**40)), 20)


@pytest.mark.parametrize("safeguard", BROKEN)
def test_the_simulator_finds_what_is_broken(safeguard: str) -> None:
    with broken(safeguard):
        found = find(FROM.get(safeguard, 1_000), WITHIN)
    assert found is not None, f"{WITHIN} schedules without «{safeguard}» and nothing was found"
    assert found[1].__cause__ is None, f"the twin itself fails: {found[1]}"
