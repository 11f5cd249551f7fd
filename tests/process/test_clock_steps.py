"""Steps of the wall clock do nothing to holders and waiters of a SQLite store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dibs
from lab import clock as clocks
from lab.clock import Clock
from process.children import Child, until
from process.children import clock as boottime

HOUR = 3600
LEASE = 5.0
Start = Callable[..., Child]


@pytest.fixture
def clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path, clocks.shim(tmp_path_factory))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """A process that uses locks; on a clock of its own if it is given one."""
    children: list[Child] = []

    def timekeeper(clock: Clock | None = None) -> Child:
        children.append(Child("timekeeper", url, LEASE, flags=("-P",), env=clock.env() if clock else None))
        children[-1].hear("ready")
        return children[-1]

    yield timekeeper
    for child in children:
        child.discard()


@pytest.mark.slow
def test_a_hold_stays_valid_and_renewed_and_exclusive(clock: Clock, start: Start, url: str) -> None:
    """Forward for a lease, then back for a lease."""
    holder, rival = start(clock), start()
    asked = boottime()
    holder.ask("take", "door", 10, hear="took")
    taken = boottime()
    for step in (HOUR, -2 * HOUR):
        clock.step(step)
        begun, deadline = boottime(), 0.0
        while boottime() < begun + LEASE:
            before = boottime()
            word, remaining, *ages = holder.ask("state", "door", hear="state")
            assert word == "valid"
            assert 0 < float(remaining) <= LEASE
            assert len(ages) == 2
            for age in map(float, ages):
                assert before - taken - 1 <= age <= boottime() - asked + 1
            deadline = before + float(remaining)
            rival.ask("take", "door", 0.1, hear="busy")
        assert deadline > begun + LEASE, "it was renewed after the step"
    with dibs.connect(url) as onlooker:
        (seen,) = onlooker.inspect("door").holders
        age = time.time() - seen.since.timestamp()
        assert boottime() - taken - 1 <= age <= boottime() - asked + 1
        assert 0 < seen.remaining <= LEASE
    holder.ask("give", hear="gave")
    rival.ask("take", "door", 10, hear="took")


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_waiter_whose_clock_jumps_waits_as_long_as_it_said_and_in_its_turn(
    clock: Clock, start: Start, url: str, step: int
) -> None:
    holder, first, second, hasty = start(), start(clock), start(), start(clock)
    with dibs.connect(url) as onlooker:

        def in_queue() -> int:
            return len(onlooker.inspect("door").waiters)

        token = int(holder.ask("take", "door", 10, hear="took")[0])
        for waiters, (waiter, timeout) in enumerate(((first, 60), (second, 60), (hasty, 1.2)), 1):
            waiter.tell("take", "door", timeout)
            until(lambda waiters=waiters: in_queue() == waiters, what=f"{waiters} in line")
        clock.step(step)
        assert float(hasty.hear("busy")[0]) >= 1.2
        # All look after themselves once a second, so the first has done so by its new time.
        assert in_queue() == 2
        assert first.silent()
        holder.ask("give", hear="gave")
        next_token = int(first.hear("took")[0])
        assert second.silent()
        first.ask("give", hear="gave")
        assert token < next_token < int(second.hear("took")[0])
