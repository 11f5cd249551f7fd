"""The two resources of `lab.resource`, used by real processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from lab import resource
from lab.resource import SIZE, Fenced, Journal, Naive, Record, Step, Tally
from process.children import Child, until

TESTS = Path(__file__).parents[1]


class Room:
    """Both resources of one test, and the processes that use them."""

    def __init__(self, directory: Path) -> None:
        self.naive = Naive(directory / "naive")
        self.fenced = Fenced(directory / "fenced")
        self.children: list[Child] = []

    def writer(self) -> Child:
        paths = self.naive.journal.path, self.fenced.journal.path
        child = Child("../lab/writer", *paths, flags=("-P",), env={"PYTHONPATH": str(TESTS)})
        self.children.append(child)
        return child

    def use(self, token: int) -> bool:
        """A whole turn of this process; False: the fenced one refused it."""
        value = self.naive.begin()
        guarded = self.fenced.begin(token)
        self.naive.write(value + 1, token)
        return guarded is not None and self.fenced.write(token, guarded + 1)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    try:
        yield made
    finally:
        for child in made.children:
            child.discard()


def test_turns_one_after_the_other_lose_nothing(room: Room) -> None:
    assert all(room.use(token) for token in (3, 4, 4, 9))
    for tally in (room.naive.tally(), room.fenced.tally()):
        assert tally == Tally(acknowledged=4, lost=0, refused=0, stale=0)
        assert tally.lost_percent == 0.0


def test_nothing_happened_yet(room: Room) -> None:
    assert room.naive.tally() == room.fenced.tally() == Tally(0, 0, 0, 0)
    assert room.naive.tally().lost_percent == 0.0


def test_a_paused_writer_spoils_the_naive_one_and_is_refused_by_the_fenced_one(room: Room) -> None:
    late = room.writer()
    late.ask("begin", 1, hear="begun")
    late.freeze()
    assert all(room.use(token) for token in (2, 3, 4))
    late.signal(signal.SIGCONT)
    assert late.ask("write", 1, hear="wrote") == ["False"]
    assert room.naive.tally() == Tally(acknowledged=4, lost=3, refused=0, stale=1)
    assert room.naive.tally().lost_percent == 75.0
    assert room.fenced.tally() == Tally(acknowledged=3, lost=0, refused=1, stale=0)
    assert room.fenced.begin(4) == 3, "what was refused changed nothing"


def test_a_successor_that_only_began_is_enough_to_refuse(room: Room) -> None:
    late = room.writer()
    late.ask("begin", 1, hear="begun")
    assert room.fenced.begin(2) == 0
    assert late.ask("write", 1, hear="wrote") == ["False"]
    assert late.ask("begin", 1, hear="begun") == ["1", "None"]


def test_writers_without_a_lock_lose_updates(room: Room) -> None:
    writers = [room.writer() for _ in range(3)]

    def lost() -> int:
        for writer in writers:
            writer.tell("race", 200)
        for writer in writers:
            writer.hear("raced")
        return room.naive.tally().lost

    assert until(lost, what="an update lost")
    tally = room.naive.tally()
    assert tally.acknowledged % 600 == 0
    assert tally.acknowledged - tally.lost == room.naive.begin()


def test_a_killed_writer_leaves_whole_records_and_everything_it_was_told(room: Room) -> None:
    said = 0
    for kills in range(8):
        writer = room.writer()
        writer.tell("count", 0)
        for _ in range(3 + 5 * kills):
            writer.hear("counted")
        writer.kill()
        writer.end()
        said += 3 + 5 * kills
        while not writer.silent():
            said += writer._lines.get() is not None
    records = room.naive.journal.records()
    assert room.naive.journal.path.stat().st_size == SIZE * len(records)
    assert [record.value for record in records] == list(range(1, len(records) + 1))
    assert len({record.pid for record in records}) == 8
    assert 0 <= len(records) - said <= 8, "at most the last one of each was not told"


def test_steps_of_threads_and_processes_do_not_interleave(room: Room) -> None:
    journal = room.naive.journal

    def add() -> None:
        for _ in range(100):
            journal.step(lambda last: replace(last, value=last.value + 1))

    writers = [room.writer() for _ in range(2)]
    threads = [threading.Thread(target=add) for _ in range(4)]
    for writer in writers:
        writer.tell("count", 100)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        assert [writer.hear("counted") for _ in range(100)][-1] == ["100"]
    values = [record.value for record in journal.records()]
    assert values == list(range(1, 601))


@pytest.mark.parametrize("other", ["thread", "process"])
def test_a_step_is_alone_with_the_file(room: Room, other: str) -> None:
    journal = room.naive.journal
    inside, come = threading.Event(), threading.Event()
    writer = room.writer()

    def slowly(last: Record) -> Record:
        inside.set()
        come.wait(0.2)  # nobody comes: whoever could would have come by then
        return replace(last, value=last.value + 1)

    def quickly() -> None:
        if other == "process":
            writer.ask("count", 1, hear="counted")
        else:
            journal.step(lambda last: replace(last, value=last.value + 1))
        come.set()

    writer.ask("race", 0, hear="raced")
    first = threading.Thread(target=journal.step, args=(slowly,))
    first.start()
    assert inside.wait(20)
    quickly()
    first.join()
    assert [record.value for record in journal.records()] == [1, 2]


def test_a_torn_end_is_written_over(room: Room) -> None:
    assert room.use(1)
    path = room.fenced.journal.path
    path.write_bytes(path.read_bytes() + b"written 12.5 99 7 7")
    assert room.fenced.tally().acknowledged == 1
    assert room.use(2)
    assert room.fenced.tally() == Tally(acknowledged=2, lost=0, refused=0, stale=0)
    assert path.stat().st_size % SIZE == 0


def test_records_tell_who_and_when(room: Room) -> None:
    writer = room.writer()
    writer.ask("begin", 1, hear="begun")
    assert room.use(2)
    records = room.fenced.journal.records()
    assert [record.pid == writer.pid for record in records] == [True, False, False]
    assert all(one.at <= other.at for one, other in pairwise(records))


def test_the_tally_convicts_a_fence_that_does_not_compare(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def admit(step: Step, last: Record, token: int, value: int) -> Record:
        return replace(last, step=step, token=token, highest=max(token, last.highest), value=value)

    monkeypatch.setattr(resource, "_admit", admit)
    first, second = room.fenced.begin(1), room.fenced.begin(2)
    assert first == second == 0
    assert room.fenced.write(2, 1)
    assert room.fenced.write(1, 1)
    assert room.fenced.tally() == Tally(acknowledged=2, lost=1, refused=0, stale=1)


def test_the_tally_convicts_a_fence_beside_the_resource(tmp_path: Path) -> None:
    """Asked and then written, in two steps: between them anybody may come."""
    fence, journal = Fenced(tmp_path / "fence"), Journal(tmp_path / "beside")

    def write(token: int, value: int) -> None:
        journal.step(lambda last: replace(last, step=Step.WRITTEN, token=token, value=value))

    asked = fence.begin(1)
    assert fence.begin(2) == asked == 0
    write(2, 1)
    write(1, 1)
    assert resource.tally(journal.records()) == Tally(acknowledged=2, lost=1, refused=0, stale=1)
