"""Somebody is stopped inside a transaction: the store stands still. Nobody hangs, nobody is granted, all recovers."""

from __future__ import annotations

import fcntl
import os
import random
import signal
from collections.abc import Callable

import pytest

from dibs.core.deadline import LEAST_PATIENCE
from lab.stopwatch import Stopwatch
from process.children import LASTING, PATIENCE, Child, Crew, clock, until
from store.sqlite.places import standstill

TIMEOUT, SLACK = 0.5, 0.6
LONGEST = max(TIMEOUT, LEAST_PATIENCE) + SLACK
"""Whatever its timeout, an acquire gives a silent store a moment."""
TRIALS = 5
newcomer = pytest.mark.parametrize("first", [False, True], ids=["settled", "newcomer"])


def settled(crew: Crew, lease: float | None = None) -> Child:
    """A worker that has used the file before."""
    child = crew.worker(lease)
    child.take("warm")
    child.ask("give", "warm", hear="gave")
    return child


def in_time(trial: Callable[[int], float], longest: float) -> None:
    """A busy machine adds to a trial what it does not add to each."""
    assert any(trial(number) < longest for number in range(TRIALS)), f"each trial took longer than {longest:g} s"


def failed(child: Child, *words: object) -> float:
    """How long it took to fail, as far as this machine ran."""
    with Stopwatch() as watch:
        error, seconds = child.ask(*words, hear="failed")
        took = watch.seconds()
    assert error == "StoreUnavailable"
    assert float(seconds) > float(str(words[-1])) * 0.9
    return took


@newcomer
def test_an_acquire_ends_in_time(crew: Crew, first: bool) -> None:
    settled(crew)
    child = crew.worker() if first else settled(crew)
    with standstill(crew.path):
        for timeout in (TIMEOUT, 0):
            in_time(lambda number, timeout=timeout: failed(child, "take", f"a{number}", timeout), LONGEST)
    assert child.take("a")
    assert crew.client.lock("a").acquire(timeout=0) is None


@newcomer
def test_a_patient_thread_does_not_make_a_hasty_one_wait(crew: Crew, first: bool) -> None:
    settled(crew)
    child = crew.worker() if first else settled(crew)
    with standstill(crew.path):
        in_time(lambda number: failed(child, "twice", "a", PATIENCE, f"b{number}", TIMEOUT), LONGEST)


@newcomer
def test_the_event_loop_goes_on(crew: Crew, first: bool) -> None:
    """And a patient task does not make a hasty one wait."""
    settled(crew)
    child = crew.start("loops", "standstill", crew.url, 30)
    child.hear("ready")
    if not first:
        child.ask("warm", PATIENCE, hear="warm")
        child.hear("ticks")
    worst: list[float] = []

    def take(number: int) -> float:
        outcome, seconds = child.ask(f"a{number}", TIMEOUT, hear=f"a{number}")
        count, gap = child.hear("ticks")
        assert outcome == "StoreUnavailable"
        worst.append(float(gap) if int(count) > 5 else PATIENCE)
        return max(float(seconds), worst[-1] * LONGEST / 0.25)

    with standstill(crew.path):
        child.tell("patient", PATIENCE, "&")
        in_time(take, LONGEST)
    assert child.hear("patient")[0] == "took", "once the store goes on"


@pytest.mark.slow
def test_a_holder_loses_by_its_own_deadline(crew: Crew) -> None:
    holder, waiter = settled(crew, LASTING), settled(crew)
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
        assert max(checked, default=begun) < begun + LASTING
        assert waiter.silent(), "nobody is granted meanwhile"
        assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    assert int(waiter.hear("took")[0]) > old
    assert holder.tries("a")[0] == "busy"


@pytest.mark.slow
def test_a_busy_process_stopped_again_and_again(crew: Crew) -> None:
    """Stopped wherever it is, in its turn or in its transaction: others end and go on afterwards."""
    other, busy = settled(crew), settled(crew)
    busy.ask("spin", "busy", hear="spinning")
    dice, stood, stops = random.Random(3), 0, 0
    while stood < 2 and stops < 60:
        stops += 1
        end = clock() + dice.uniform(0.001, 0.02)
        while clock() < end:
            pass
        busy.freeze()
        other.tell("take", f"n{stops}", TIMEOUT)
        word, *rest = other.next()
        if word == "failed":
            stood += 1
            assert rest[0] == "StoreUnavailable"
        else:
            assert word == "took"
        busy.signal(signal.SIGCONT)
        assert other.take(f"n{stops}-later")
    busy.freeze()
    busy.kill()
    assert other.take("busy")


@newcomer
def test_a_turn_that_is_never_given_back_stops_nobody(crew: Crew, first: bool) -> None:
    """The turn is politeness only: a process stopped, or a stray child of a dead one, may keep it for ever."""
    settled(crew)
    child = crew.worker() if first else settled(crew)
    turn = os.open(crew.path.with_name("locks.db.d") / "turn", os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        in_time(lambda number: float(child.ask("take", f"a{number}", PATIENCE, hear="took")[1]), 1)
    finally:
        os.close(turn)
