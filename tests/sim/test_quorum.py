"""The simulator over a quorum: nothing is violated; and without any one safeguard something is, soon."""

from __future__ import annotations

import os
import secrets
from collections import Counter

import pytest

from sim.quorum import BROKEN, broken, find, run

FIRST, WITHIN = 1_000, 600
"""The rarest violation shows in about one schedule of a hundred."""


def check(first: int, count: int) -> None:
    found = find(first, count)
    assert found is None, f"{found[1]}; replay: python tests/sim/quorum.py {found[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 100))
def test_known_schedules(first: int) -> None:
    check(first, 100)


def test_fresh_schedules() -> None:
    check(int(os.environ.get("DIBS_SIM_SEED") or secrets.randbelow(2**40)), 60)


@pytest.mark.parametrize("safeguard", BROKEN)
def test_the_simulator_finds_what_is_broken(safeguard: str) -> None:
    with broken(safeguard):
        found = find(FIRST, WITHIN)
    assert found is not None, f"{WITHIN} schedules without «{safeguard}» and nothing was found"
    assert found[1].__cause__ is None, f"the twin itself fails: {found[1]}"


def test_a_seed_gives_the_same_steps_again() -> None:
    for seed in (1, 8, 21):
        assert run(seed, trace=True).trace == run(seed, trace=True).trace


def test_schedules_are_as_busy_and_as_faulty_as_they_should_be() -> None:
    outcomes = [run(seed) for seed in range(40)]
    assert min(outcome.handed for outcome in outcomes) >= 12
    happened = Counter(kind for outcome in outcomes for kind in outcome.happened)
    assert set(happened) == {"lost", "late", "twice", "stop", "stall", "lose", "die", "break"}
