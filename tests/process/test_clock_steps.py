"""Steps of the wall clock do nothing to holders and waiters of a SQLite store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import clock as clocks
from lab.clock import Clock
from process.children import Child, Crew
from process.children import clock as boottime
from process.stores import QUICK

HOUR = 3600
Start = Callable[[], Child]


@pytest.fixture
def clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path, clocks.shim(tmp_path_factory))


@pytest.fixture
def stepped(crew: Crew, clock: Clock) -> Start:
    """Starts a worker that sees that clock."""
    return lambda: crew.worker(QUICK, flags=("-P",), env=clock.env())


@pytest.mark.gate
def test_a_hold_stays_valid_and_renewed_and_exclusive(clock: Clock, stepped: Start, crew: Crew) -> None:
    """Forward for a lease, then back for a lease."""
    holder, rival = stepped(), crew.worker()
    asked = boottime()
    holder.take("door")
    taken = boottime()
    for step in (HOUR, -2 * HOUR):
        clock.step(step)
        begun, deadline = boottime(), 0.0
        while boottime() < begun + QUICK:
            before = boottime()
            check, _, _, remaining, *_ = holder.ask("state", "door", hear="state")
            assert check == "ok"
            assert 0 < float(remaining) <= QUICK
            for age in map(float, holder.ask("ages", "door", hear="ages")):
                assert before - taken - 1 <= age <= boottime() - asked + 1
            deadline = before + float(remaining)
            rival.ask("take", "door", 0.1, hear="busy")
        assert deadline > begun + QUICK, "it was renewed after the step"
    (seen,) = crew.client.inspect("door").holders
    assert boottime() - taken - 1 <= time.time() - seen.since.timestamp() <= boottime() - asked + 1
    assert 0 < seen.remaining <= QUICK
    holder.ask("give", "door", hear="gave")
    rival.take("door")


@pytest.mark.gate
@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
def test_a_waiter_waits_as_long_as_it_said_and_in_its_turn(clock: Clock, stepped: Start, crew: Crew, step: int) -> None:
    first, second, hasty = stepped(), crew.worker(), stepped()
    hold = crew.client.lock("door").acquire(timeout=0)
    assert hold is not None
    for waiters, (waiter, timeout) in enumerate(((first, 60), (second, 60), (hasty, 1.2)), 1):
        waiter.tell("take", "door", timeout)
        crew.in_queue("door", 1, waiters)
    clock.step(step)
    assert float(hasty.hear("busy")[0]) >= 1.2  # all look once a second: the first has done so by its new time
    crew.in_queue("door", 1, 2)
    assert first.silent()
    hold.release()
    token = int(first.hear("took")[0])
    assert second.silent()
    first.ask("give", "door", hear="gave")
    assert hold.token < token < int(second.hear("took")[0])
