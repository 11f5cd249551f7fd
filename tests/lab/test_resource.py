"""The two resources of `lab.resource`: what their tallies convict, and steps of processes that are killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lab import resource
from lab.resource import SIZE, Fenced, Journal, Naive, Record, Step, Tally

TESTS = Path(__file__).parents[1]
COUNT = """
import os, sys
from dataclasses import replace
from lab.resource import Naive
journal, times = Naive(sys.argv[1]).journal, int(sys.argv[2])
while times:
    times -= 1
    journal.step(lambda last: replace(last, pid=os.getpid(), value=last.value + 1))
    print(times, flush=True)
"""


def counting(naive: Naive, times: int) -> subprocess.Popen[bytes]:
    """A process that adds one so many times, each in a single step, and says so after each; -1: until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", COUNT, naive.journal.path, str(times)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
    )


def more(last: Record) -> Record:
    return replace(last, value=last.value + 1)


@pytest.fixture
def naive(tmp_path: Path) -> Naive:
    return Naive(tmp_path / "naive")


@pytest.fixture
def fenced(tmp_path: Path) -> Fenced:
    return Fenced(tmp_path / "fenced")


@pytest.fixture
def use(naive: Naive, fenced: Fenced) -> Callable[[int], bool]:
    """A whole turn; False: the fenced one refused it."""

    def turn(token: int) -> bool:
        value = naive.begin()
        guarded = fenced.begin(token)
        naive.write(value + 1, token)
        return guarded is not None and fenced.write(token, guarded + 1)

    return turn


def test_turns_one_after_the_other_lose_nothing(naive: Naive, fenced: Fenced, use: Callable[[int], bool]) -> None:
    assert naive.tally() == fenced.tally() == Tally(0, 0, 0, 0)
    assert all(use(token) for token in (3, 4, 4, 9))
    assert naive.tally() == fenced.tally() == Tally(acknowledged=4, lost=0, refused=0, stale=0)
    assert all(one.at <= other.at and one.pid == os.getpid() for one, other in pairwise(fenced.journal.records()))


def test_a_late_writer_spoils_the_naive_one_and_is_refused_by_the_fenced_one(
    naive: Naive, fenced: Fenced, use: Callable[[int], bool]
) -> None:
    value, guarded = naive.begin(), fenced.begin(1)
    assert guarded == 0
    assert all(use(token) for token in (2, 3, 4))
    naive.write(value + 1, 1)
    assert not fenced.write(1, guarded + 1)
    assert fenced.begin(1) is None
    assert naive.tally() == Tally(acknowledged=4, lost=3, refused=0, stale=1)
    assert fenced.tally() == Tally(acknowledged=3, lost=0, refused=2, stale=0)
    assert fenced.begin(5) == 3, "what was refused changed nothing"
    assert not fenced.write(4, 9), "a successor that only began is enough to refuse"


def test_a_killed_writer_leaves_whole_records_and_everything_it_said(naive: Naive) -> None:
    said = 0
    for kills in range(3):
        with counting(naive, -1) as writer:
            assert writer.stdout is not None
            for _ in range(3 + 5 * kills):
                writer.stdout.readline()
            writer.kill()
            said += 3 + 5 * kills + writer.stdout.read().count(b"\n")
    records = naive.journal.records()
    assert naive.journal.path.stat().st_size == SIZE * len(records)
    assert [record.value for record in records] == list(range(1, len(records) + 1))
    assert len({record.pid for record in records}) == 3
    assert 0 <= len(records) - said <= 3, "at most the last one of each was not said"


def test_steps_of_threads_and_processes_do_not_interleave(naive: Naive) -> None:
    def add() -> None:
        for _ in range(100):
            naive.journal.step(more)

    threads = [threading.Thread(target=add) for _ in range(4)]
    with counting(naive, 100) as one, counting(naive, 100) as other:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one.communicate()
        other.communicate()
    assert [record.value for record in naive.journal.records()] == list(range(1, 601))


def test_a_step_is_alone_with_the_file(naive: Naive) -> None:
    def decide(last: Record) -> Record:
        with naive.journal.path.open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return more(last)

    assert naive.journal.step(decide).value == 1


def test_a_torn_end_is_written_over(fenced: Fenced, use: Callable[[int], bool]) -> None:
    assert use(1)
    path = fenced.journal.path
    path.write_bytes(path.read_bytes() + b"written 12.5 99 7 7")
    assert fenced.tally().acknowledged == 1
    assert use(2)
    assert fenced.tally() == Tally(acknowledged=2, lost=0, refused=0, stale=0)
    assert path.stat().st_size % SIZE == 0


def test_the_tally_convicts_a_fence_that_does_not_compare(fenced: Fenced, monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(step: Step, last: Record, token: int, value: int) -> Record:
        return replace(last, step=step, token=token, highest=max(token, last.highest), value=value)

    monkeypatch.setattr(resource, "_admit", admit)
    assert fenced.begin(1) == fenced.begin(2) == 0
    assert fenced.write(2, 1)
    assert fenced.write(1, 1)
    assert fenced.tally() == Tally(acknowledged=2, lost=1, refused=0, stale=1)


def test_the_tally_convicts_a_fence_beside_the_resource(tmp_path: Path) -> None:
    """Asked and then written, in two steps: between them anybody may come."""
    fence, journal = Fenced(tmp_path / "fence"), Journal(tmp_path / "beside")
    assert fence.begin(1) == fence.begin(2) == 0
    for token in (2, 1):
        journal.step(lambda last, token=token: replace(last, step=Step.WRITTEN, token=token, value=1))
    assert resource.tally(journal.records()) == Tally(acknowledged=2, lost=1, refused=0, stale=1)
