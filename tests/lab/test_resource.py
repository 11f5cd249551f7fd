"""The tallies of the two resources convict a lock and a fence that do not protect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab import resource
from lab.resource import SIZE, Fenced, Naive, Record, Step, Tally


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


def test_a_late_writer_spoils_the_naive_one_and_is_refused_by_the_fenced_one(
    naive: Naive, fenced: Fenced, use: Callable[[int], bool]
) -> None:
    assert naive.tally() == fenced.tally() == Tally(0, 0, 0, 0)
    value, guarded = naive.begin(), fenced.begin(1)
    assert guarded == 0
    assert all(use(token) for token in (2, 3, 3))
    assert fenced.tally() == Tally(acknowledged=3, lost=0, refused=0, stale=0)
    naive.write(value + 1, 1)
    assert not fenced.write(1, guarded + 1)
    assert fenced.begin(1) is None
    assert naive.tally() == Tally(acknowledged=4, lost=3, refused=0, stale=1)
    assert fenced.tally() == Tally(acknowledged=3, lost=0, refused=2, stale=0)
    assert fenced.begin(5) == 3, "what was refused changed nothing"
    assert not fenced.write(3, 9), "a successor that only began is enough to refuse"


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
