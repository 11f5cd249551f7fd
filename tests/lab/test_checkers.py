"""The checkers convict what breaks a rule, and acquit what keeps all of them."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.checkers import judge
from lab.history import History, Sight, Use
from lab.resource import Fenced, Record, Step, tally

_numbers = count(1)


def use(begin: float, end: float, token: int, **facts: Any) -> Use:
    """A grant, valid from `begin` to `end`; called just before, unless `called` says otherwise."""
    n = next(_numbers)
    usual: dict[str, Any] = {
        "proc": f"p{n}", "thread": "t0", "n": n, "name": "a", "kind": "mutex", "capacity": 1, "weight": 1,
        "fair": True, "timeout": 1, "body": "short", "called": begin, "returned": begin, "outcome": "ok",
        "token": token, "known": begin, "valid_at": begin, "deadline": end + 100, "release_called": end,
    }  # fmt: skip
    return Use(**{**usual, **facts})


def reader(begin: float, end: float, token: int, **facts: Any) -> Use:
    return use(begin, end, token, kind="rw", capacity=100, **facts)


def writer(begin: float, end: float, token: int, **facts: Any) -> Use:
    return reader(begin, end, token, weight=100, **facts)


def permits(weight: int, begin: float, end: float, token: int, **facts: Any) -> Use:
    return use(begin, end, token, **{"kind": "semaphore", "capacity": 3, "weight": weight, **facts})


def kinds(*uses: Use, **facts: Any) -> set[str]:
    """The kinds of violation that `judge` finds in a history of these uses."""
    verdict = judge(History(uses=list(uses), **facts), within=5)
    return {kind for kind, number in verdict.guilty.items() if number}


CASES: list[tuple[str, set[str], list[Use]]] = [
    ("two valid holders", {"overlap"}, [use(1, 3, 1), use(2, 4, 2)]),
    ("one after the other", set(), [use(1, 2, 1), use(2, 4, 2)]),
    ("readers", set(), [reader(1, 5, 1), reader(2, 6, 2), reader(3, 4, 3)]),
    ("a writer beside a reader", {"overlap"}, [reader(1, 3, 1), writer(2, 4, 2)]),
    ("a reader beside a writer", {"overlap"}, [writer(1, 3, 1), reader(2, 4, 2)]),
    ("permits that fit", set(), [permits(2, 1, 5, 1), permits(1, 2, 3, 2), permits(1, 3, 4, 3)]),
    ("a permit too many", {"overlap"}, [permits(2, 1, 5, 1), permits(1, 2, 4, 2), permits(1, 3, 4, 3)]),
    ("two kinds on one name", {"overlap"}, [permits(1, 1, 5, 1), reader(2, 3, 2)]),
    ("two names", set(), [use(1, 3, 1), use(2, 4, 1, name="b")]),
    ("taken away", {"taken"}, [use(1, 9, 1, deadline=8, told=4)]),
    ("told after its deadline", set(), [use(1, 9, 1, deadline=8, told=8.5)]),
    ("tokens that fall", {"token"}, [use(1, 2, 7), use(3, 4, 6, fair=False)]),
    ("it may have been asked before", set(), [use(1, 2, 7), use(3, 4, 6, called=0.5, fair=False)]),
    ("a token twice", {"token"}, [use(1, 2, 7), use(3, 4, 7, called=0)]),
    ("a token twice, of readers", {"token"}, [reader(1, 5, 7), reader(2, 3, 7)]),
    ("shared grants need no order", set(), [permits(1, 1, 2, 7), permits(1, 3, 4, 6)]),
    ("overtaken by ticket", {"fifo"}, [use(1, 2, 7, called=0), use(3, 4, 6, called=0)]),
    ("it may barge", set(), [use(1, 2, 7, called=0, fair=False), use(3, 4, 6, called=0)]),
    ("both fit: it may be slow", set(), [permits(1, 1, 2, 7, called=0), permits(2, 3, 4, 6, called=0)]),
    ("both do not fit", {"fifo"}, [permits(2, 1, 2, 7, called=0), permits(2, 3, 4, 6, called=0)]),
]


@pytest.mark.parametrize(("guilty", "uses"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_a_history_is_guilty_of(guilty: set[str], uses: list[Use]) -> None:
    assert kinds(*uses) == guilty


def test_who_acts_after_its_own_deadline_is_counted_and_not_accused() -> None:
    late = use(1, 9, 1, deadline=2, told=8, acted=7, release_called=9)
    verdict = judge(History(uses=[late, use(3, 5, 2)]), within=5)
    assert (verdict.past, verdict.violations) == (1, [])
    alone = judge(History(uses=[late, use(7.5, 8, 2)]), within=5)
    assert (alone.past, alone.violations) == (0, [])


def test_overtaking_by_sight() -> None:
    """Tokens that come with the grant say nothing, but it was seen to stand there all the time."""
    waited, barged = use(9, 10, 2, called=0), use(4, 5, 1, called=3)
    seen = [Sight("a", at, at + 0.1, [(waited.id, 40)]) for at in (1, 6)]
    assert kinds(waited, barged, sights=seen) == {"fifo"}
    assert kinds(waited, barged, sights=seen[:1]) == set(), "it may have lost its place meanwhile"
    assert kinds(waited, use(4, 5, 1, called=1.05), sights=seen) == set(), "it may have joined before that look"
    moved = [seen[0], Sight("a", 6, 6.1, [(waited.id, 41)])]
    assert kinds(waited, barged, sights=moved) == set(), "it joined again, at the end"
    assert kinds(waited, barged, sights=[sight._replace(name="b") for sight in seen]) == set()


def test_who_gets_nothing_after_healing() -> None:
    served = use(11, 12, 1, proc="p1")
    born = {("p1", "t0"): 0.0, ("p2", "t0"): 0.0}
    assert kinds(served, born=born, healed=10.0, ended=16.0) == {"liveness"}
    assert kinds(served, born=born, healed=10.0, ended=12.0) == set(), "the run ended before the time was over"
    assert kinds(served, born=born, healed=10.0, ended=16.0, died={"p2": 3.0}) == set(), "the dead want nothing"
    assert kinds(use(15.5, 16, 1, proc="p1"), born={("p1", "t0"): 0.0}, healed=10.0, ended=16.0) == {"liveness"}


def test_what_is_left_and_what_crashed() -> None:
    assert kinds(left=["a row"]) == {"leak"}
    assert kinds(crashes=["KeyError"]) == {"error"}
    assert [v.kind for v in judge(History(), within=5, left=["a row"]).violations] == ["leak"]


def test_a_fence_that_lets_a_stale_token_through(tmp_path: Path) -> None:
    fenced = Fenced(tmp_path / "fenced")
    for token in (3, 5, 4):
        fenced.write(token, token)
    assert not judge(History(), within=5, fenced=[fenced.tally()]).violations, "it refused"
    fenced.journal.step(lambda last: Record(Step.WRITTEN, token=4, highest=5, value=9))
    (found,) = judge(History(), within=5, fenced=[tally(fenced.journal.records())]).violations
    assert found.kind == "fence"


lengths = st.integers(0, 5).map(float)


@given(st.sampled_from([1, 3, 100]), st.data())
def test_a_queue_that_keeps_the_rule_is_acquitted(capacity: int, data: st.DataObject) -> None:
    """Claims join, hold by the rule as long as they like, leave; what is recorded is later or earlier by a bit."""
    joined = 0.0
    queue: list[tuple[float, int]] = []
    uses: list[Use] = []
    sights: list[Sight] = []
    for token in range(1, data.draw(st.integers(1, 8)) + 1):
        joined += data.draw(lengths) + 0.5
        weight = data.draw(st.sampled_from([1, min(2, capacity), capacity]))
        granted = _granted(queue, joined, weight, capacity)
        left = granted + data.draw(lengths) + 3
        queue.append((left, weight))
        told = granted + data.draw(st.floats(0, 1))
        uses.append(
            permits(
                weight, told, left - data.draw(st.floats(0, 1)), token, capacity=capacity,
                called=joined - data.draw(lengths), deadline=left,
            )
        )  # fmt: skip
        for at in (joined, granted - 0.01):
            if joined <= at < granted:
                slop = data.draw(lengths)
                sights.append(Sight("a", at - slop, at + slop, [(uses[-1].id, token)]))
    assert kinds(*uses, sights=sights) == set()


def _granted(queue: list[tuple[float, int]], joined: float, weight: int, capacity: int) -> float:
    """The first instant at which the weight ahead lets it in."""
    for at in sorted({joined, *(left for left, _ in queue if left > joined)}):
        if sum(other for left, other in queue if left > at) + weight <= capacity:
            return at
    raise AssertionError("everybody leaves in the end")
