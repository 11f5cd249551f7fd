"""Somebody is stopped inside a transaction: the store stands still. Nobody hangs, nobody is granted, all recovers."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dibs.core.deadline import LEAST_PATIENCE
from lab.stopwatch import Stopwatch
from process.children import PATIENCE, Child, Crew, clock, until

TIMEOUT, SLACK = 0.5, 0.6
LONGEST = max(TIMEOUT, LEAST_PATIENCE) + SLACK
"""Whatever its time-out, an acquire gives a silent store a moment."""


@contextmanager
def standstill(path: Path) -> Iterator[None]:
    """As a process that is stopped in its transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


def settled(crew: Crew, lease: float = 30) -> Child:
    """A worker that has used the file before."""
    child = crew.worker(lease)
    child.ask("line", "x", hear="line")
    child.take("warm")
    child.ask("give", "warm", hear="gave")
    return child


@pytest.mark.parametrize(("timeout", "longest"), [(TIMEOUT, LONGEST), (0, LEAST_PATIENCE + SLACK)])
@pytest.mark.parametrize("first", [False, True], ids=["settled", "newcomer"])
def test_an_acquire_ends_in_time(crew: Crew, first: bool, timeout: float, longest: float) -> None:
    holder = settled(crew)
    child = crew.worker() if first else settled(crew)
    with standstill(crew.path):
        with Stopwatch() as watch:
            error, seconds = child.ask("take", "a", timeout, hear="failed")
            took = watch.seconds()
        print(f"figure: standstill, timeout {timeout}: {error} after {took:.3f} s")
        assert error == "StoreUnavailable"
        assert float(seconds) > timeout * 0.9
        assert took < longest
    assert child.take("a", 5)
    assert holder.tries("a")[0] == "busy"


@pytest.mark.parametrize("first", [False, True], ids=["settled", "newcomer"])
def test_a_patient_thread_does_not_make_a_hasty_one_wait(crew: Crew, first: bool) -> None:
    """For its three seconds; what a machine that is busy elsewhere adds to a trial it does not add to each."""
    assert any(_hasty(crew, first) < LONGEST for _ in range(3))


def _hasty(crew: Crew, first: bool) -> float:
    settled(crew)
    child = crew.worker() if first else settled(crew)
    with standstill(crew.path), Stopwatch() as watch:
        error, _ = child.ask("twice", "a", 3, "b", TIMEOUT, hear="failed")
        took = watch.seconds()
    assert error == "StoreUnavailable"
    return took


@pytest.mark.parametrize("first", [False, True], ids=["settled", "newcomer"])
def test_the_event_loop_goes_on(crew: Crew, first: bool) -> None:
    settled(crew)
    child = crew.start("loops", "standstill", crew.url, 30)
    child.hear("ready")
    if not first:
        child.ask("warm", 5, hear="took")
        child.hear("ticks")
    with standstill(crew.path):
        seconds = float(child.ask("a", TIMEOUT, hear="StoreUnavailable")[0])
        count, worst = child.hear("ticks")
    print(f"figure: standstill, asyncio: {seconds:.3f} s, {count} ticks, worst gap {float(worst) * 1000:.0f} ms")
    assert seconds < LONGEST
    assert int(count) > 20
    assert float(worst) < 0.2
    child.ask("a", 5, hear="took")


def test_a_patient_task_does_not_make_a_hasty_one_wait(crew: Crew) -> None:
    settled(crew)
    child = crew.start("loops", "standstill", crew.url, 30)
    child.hear("ready")
    child.ask("warm", 5, hear="took")
    child.hear("ticks")
    with standstill(crew.path):
        child.tell("a", 3, "b", TIMEOUT)
        patient = float(child.hear("StoreUnavailable")[0])
        hasty = float(child.hear("StoreUnavailable")[0])
    assert patient < 3 + SLACK
    assert hasty < LONGEST


@pytest.mark.slow
def test_a_holder_loses_by_its_own_deadline(crew: Crew) -> None:
    lease = 1.5
    holder, waiter = settled(crew, lease), settled(crew, lease)
    old = holder.take("a")
    waiter.tell("take", "a", 20)
    until(lambda: holder.ask("line", "a", hear="line") == ["1", "1"], what="the line")
    with standstill(crew.path):
        begun = clock()
        until(lambda: holder.ask("state", "a", hear="state")[1] == "lost", what="lost")
        took = clock() - begun
        print(f"figure: standstill: a holder with lease {lease} lost after {took:.3f} s")
        assert took < lease
        assert waiter.silent(), "nobody is granted meanwhile"
        assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    token = int(waiter.hear("took")[0])
    assert token > old
    assert holder.tries("a")[0] == "busy"


@pytest.mark.slow
def test_a_busy_process_stopped_again_and_again(crew: Crew) -> None:
    """Stopped wherever it is, in its turn or in its transaction: others end in time and go on afterwards."""
    other, busy = settled(crew), settled(crew)
    busy.ask("spin", "busy", hear="spinning")
    dice, stood, stops = random.Random(3), 0, 0
    while stood < 2 and stops < 60:
        stops += 1
        end = clock() + dice.uniform(0.001, 0.02)
        while clock() < end:
            pass
        busy.freeze()
        word, *rest = _taken(other, f"n{stops}")
        if word == "failed":
            stood += 1
            assert rest[0] == "StoreUnavailable"
            assert float(rest[1]) < LONGEST
        else:
            assert word == "took"
        busy.signal(signal.SIGCONT)
        assert other.take(f"n{stops}-later", 5)
    print(f"figure: the store stood still at {stood} of {stops} stops of a busy process")
    busy.freeze()
    busy.kill()
    assert other.take("busy", 5)


def _taken(child: Child, name: str) -> list[str]:
    child.tell("take", name, TIMEOUT)
    return child.next(PATIENCE)


@pytest.mark.parametrize("first", [False, True], ids=["settled", "newcomer"])
def test_a_turn_that_is_never_given_back_stops_nobody(crew: Crew, first: bool) -> None:
    """The turn is politeness only: a process stopped, or a stray child of a dead one, may keep it for ever."""
    settled(crew)
    child = crew.worker() if first else settled(crew)
    turn = os.open(crew.path.with_name("locks.db.d") / "turn", os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _, seconds, _ = child.ask("take", "a", 3, hear="took")
        print(f"figure: with the turn kept by somebody: {float(seconds):.3f} s")
        assert float(seconds) < 1
        assert child.ask("give", "a", hear="gave") == ["ok"]
    finally:
        os.close(turn)
