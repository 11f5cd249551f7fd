"""A process is stopped inside a transaction: the store stands still. Nobody hangs, nobody is granted, all recovers."""

from __future__ import annotations

import fcntl
import os

import pytest

from dibs.core.deadline import LEAST_PATIENCE
from process.children import PATIENCE, Child, Crew, clock, until
from process.stores import QUICK
from store.sqlite.places import standstill

TIMEOUT = 0.5
LONGEST = 5 * LEAST_PATIENCE
"""Whatever its timeout, an acquire gives a silent store that patience."""
LONGEST_GAP = 1.0
"""Seconds between two turns of an event loop that ticks a hundred times a second."""
newcomer = pytest.mark.parametrize(
    "first", [False, pytest.param(True, marks=pytest.mark.gate)], ids=["settled", "newcomer"]
)


def settled(crew: Crew, lease: float | None = None) -> Child:
    """A worker that has used the file before."""
    child = crew.worker(lease)
    child.take("warm")
    child.ask("give", "warm", hear="gave")
    return child


def fails_in_time(child: Child, *words: object) -> None:
    error, seconds = child.ask(*words, hear="failed")
    assert error == "StoreUnavailable"
    assert float(str(words[-1])) * 0.9 < float(seconds) < LONGEST


@pytest.mark.alone
@newcomer
def test_an_acquire_ends_in_time(crew: Crew, first: bool) -> None:
    settled(crew)
    child = crew.worker() if first else settled(crew)
    with standstill(crew.path):
        fails_in_time(child, "take", "b", TIMEOUT if first else 0)
    assert child.take("a")
    assert crew.client.lock("a").acquire(timeout=0) is None


@pytest.mark.gate
@newcomer
def test_a_patient_thread_does_not_make_a_hasty_one_wait(crew: Crew, first: bool) -> None:
    settled(crew)
    child = crew.worker() if first else settled(crew)
    with standstill(crew.path):
        fails_in_time(child, "twice", "a", PATIENCE, "b", TIMEOUT)


@pytest.mark.alone
@newcomer
def test_the_event_loop_goes_on(crew: Crew, first: bool) -> None:
    """And a patient task does not make a hasty one wait."""
    settled(crew)
    child = crew.start("loops", "standstill", crew.url, 30)
    child.hear("ready")
    if not first:
        child.ask("warm", PATIENCE, hear="warm")
        child.hear("ticks")
    with standstill(crew.path):
        child.tell("patient", PATIENCE, "&")
        outcome, seconds = child.ask("a", TIMEOUT, hear="a")
        count, gap = child.hear("ticks")
    assert outcome == "StoreUnavailable"
    assert float(seconds) < LONGEST
    assert int(count) > 5
    assert float(gap) < LONGEST_GAP
    assert child.hear("patient")[0] == "took", "once the store goes on"


@pytest.mark.alone
def test_a_holder_loses_by_its_own_deadline(crew: Crew) -> None:
    holder, waiter = settled(crew, QUICK), settled(crew)
    old = holder.take("a")
    waiter.tell("take", "a", PATIENCE)
    crew.in_queue("a", 1, 1)
    with standstill(crew.path):
        begun, checked = clock(), list[float]()

        def lost() -> bool:
            check, lost, *_, at, _ = holder.ask("state", "a", hear="state")
            if check == "ok":
                checked.append(float(at))
            return lost == "lost"

        until(lost, what="lost")
        assert max(checked, default=begun) < begun + QUICK
        assert waiter.silent(), "nobody is granted meanwhile"
        assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    assert int(waiter.hear("took")[0]) > old
    assert holder.tries("a")[0] == "busy"


@pytest.mark.gate
@newcomer
def test_a_turn_that_is_never_given_back_stops_nobody(crew: Crew, first: bool) -> None:
    """The turn is politeness only: a process stopped, or a stray child of a dead one, may keep it for ever."""
    settled(crew)
    child = crew.worker() if first else settled(crew)
    turn = os.open(crew.path.with_name("locks.db.d") / "turn", os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        assert float(child.ask("take", "a", PATIENCE, hear="took")[1]) < 5
    finally:
        os.close(turn)
