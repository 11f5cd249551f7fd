"""A history draws its conclusions from its lines; a killed worker's lines survive it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dibs
from lab import history
from lab.crowd import Crowd
from lab.history import NEVER, Span
from lab.surface import Target, clock
from lab.worker import Pen, Spec, looked_at


def spec(directory: Path, proc: str = "p0", **options: Any) -> Spec:
    url = f"sqlite:///{directory / 'store'}"
    return Spec(proc, url, str(directory), "history", [Target("a", "mutex", 1)], **{"lease": 5.0, **options})


class Author:
    """Writes the lines of one use, as a worker does."""

    def __init__(self, directory: Path, proc: str = "p0", n: int = 1) -> None:
        self.pen, self.n = Pen(spec(directory, proc)), n

    def line(self, op: str, at: float, **facts: Any) -> None:
        self.pen.note("t0", self.n, op, at, **facts)

    def granted(self, called: float, returned: float, deadline: float, token: int = 1) -> None:
        asked = {"name": "a", "kind": "mutex", "capacity": 1, "weight": 1, "fair": True, "timeout": 1, "body": "short"}
        self.line("acquire", called, **asked)
        self.line("acquired", returned, outcome="ok", token=token, valid=True, deadline=deadline)


Line = tuple[str, float, dict[str, Any]]
SEEN: Line = ("seen", 5, {"valid": True, "deadline": 14})
CASES: dict[str, tuple[tuple[float, float, float], list[Line], Span | None, Span | None]] = {
    # called, returned, deadline; what follows; when it was surely valid; when it acted late
    "until its release is called": ((1, 2, 10), [("release", 4, {"valid": True, "deadline": 12})], Span(2, 4), None),
    # As a process that was stopped: it looks again only after the deadline, and is told then.
    "until its last known deadline": (
        (1, 2, 10), [SEEN, ("seen", 20, {"valid": False}), ("act", 21, {})], Span(2, 14), Span(14, 21),
    ),
    "until just before the kill": ((1, 2, 10), [("killed", 3, {"victim": "p0"})], Span(2, 3), None),
    "granted after the kill was sent": ((1, 3.5, 10), [("killed", 3, {"victim": "p0"})], None, None),
    "taken away: while it was seen": ((1, 2, 10), [SEEN, ("seen", 6, {"valid": False})], Span(2, 5), None),
    "over when the grant came": ((1, 2, 2), [], None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_when_a_use_was_valid(tmp_path: Path, case: str) -> None:
    times, lines, valid, late = CASES[case]
    author, nemesis = Author(tmp_path), Author(tmp_path, "nemesis")
    author.granted(*times)
    for op, at, facts in lines:
        (nemesis if op == "killed" else author).line(op, at, **facts)
    (use,) = history.read(tmp_path).uses
    assert (use.valid, use.late) == (valid, late)
    assert use.taken_away is case.startswith("taken away")


def test_what_happens_while_it_is_read_is_left_for_the_next_time(tmp_path: Path) -> None:
    """Else a use whose release was not yet there when its file was read overlaps the next one, in a file read later."""
    released, author = clock() + 60, Author(tmp_path)
    author.granted(1, 2, released + 10)
    author.line("release", released, valid=True, deadline=released + 10)
    Author(tmp_path, "p1").granted(1, released + 1, released + 12, token=2)
    uses = history.read(tmp_path)
    assert [(use.proc, use.token, use.release_called) for use in uses.grants] == [("p0", 1, NEVER)]


class Slow:
    """A hold that ends while it is looked at."""

    token = 1
    remaining = 0.0

    def __init__(self, *, told: bool) -> None:
        self.told, self.ended = told, NEVER

    def check(self) -> None:
        asked = clock()
        while clock() <= asked:
            continue
        self.ended = clock()
        if self.told:
            raise dibs.LockLost("it ended meanwhile")


@pytest.mark.parametrize("told", [True, False], ids=["told", "by its time"])
def test_a_loss_is_dated_after_it_was_seen(told: bool) -> None:
    hold = Slow(told=told)
    seen = looked_at(hold)
    assert not seen["valid"]
    assert seen["at"] >= hold.ended


def served(crowd: Crowd, proc: str) -> set[str]:
    return {use.thread for use in crowd.history().grants if use.proc == proc}


def test_a_killed_worker_leaves_its_history(tmp_path: Path) -> None:
    with Crowd([spec(tmp_path, "p0", tasks=1), spec(tmp_path, "p1")]) as crowd:
        crowd.until(lambda: served(crowd, "p0") == {"t0", "t1", "a0"}, "each of its threads and tasks held")
        crowd.kill("p0")
        crowd.successor("p0")
        crowd.heal()
        crowd.quiet(30)
        crowd.end()
        found = crowd.history()
    assert found.faults["kill -9"] == 1
    assert not found.crashes
    assert {use.proc for use in found.grants} == {"p0", "p1", "p0+1"}
    died = found.died["p0"]
    assert all(use.valid is None or use.valid.end <= died for use in found.uses if use.proc == "p0")
    assert all(use.release_outcome == "ok" for use in found.grants if use.proc != "p0")
