"""Counting together what several stores say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.core.quorum.votes import findings, is_clear, merged, page, reached, together
from dibs.core.rule import Standing
from dibs.info import Finding, LockInfo, Participant

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def one(token: int, owner: str = "ana", *, remaining: float = 10.0, asked: float = 0.0) -> Participant:
    since = NOW - timedelta(seconds=asked)
    return Participant(owner=owner, host="web", pid=1, thread="t", since=since, remaining=remaining, token=token)


def queue(*holders: Participant, name: str = "a", waiters: tuple[Participant, ...] = ()) -> LockInfo:
    return LockInfo(name=name, holders=holders, waiters=waiters)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9), st.data())
def test_reached_is_the_highest_that_so_many_reach(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    found = reached(values, count)
    assert sum(value >= found for value in values) >= count
    assert sum(value > found for value in values) < count


def test_a_claim_lasts_as_long_as_a_majority_says() -> None:
    said = [Standing(7, True, left, 5.0, left == 3.0) for left in (30.0, 3.0, 20.0, 10.0)]
    standing = together(said, 3, 9)
    assert (standing.ticket, standing.holds, standing.left, standing.revoked) == (9, True, 10.0, True)


def test_merged_holders_and_waiters() -> None:
    queues = [*(queue(one(7, remaining=left)) for left in (4, 9, 6)), queue(), queue(one(3, "bob"))]
    info = merged("a", queues, 3)
    (holder,) = info.holders
    assert (holder.token, holder.owner, holder.remaining) == (7, "ana", 4)
    assert [waiter.owner for waiter in info.waiters] == ["bob"]
    # A claim without a majority is shown once, as a waiter, with its highest ticket.
    claims = one(5, "bob", asked=1), one(8, "bob", asked=1), one(2, "eve", asked=2)
    queues = [*map(queue, claims), queue(), queue()]
    info = merged("a", queues, 3)
    assert info.holders == ()
    assert [(waiter.owner, waiter.token) for waiter in info.waiters] == [("eve", 2), ("bob", 8)]
    # A member missed the second round: the holder is not shown as a waiter, too.
    info = merged("a", [queue(one(7)), queue(one(7)), queue(one(4))], 2)
    assert ([holder.token for holder in info.holders], info.waiters) == ([7], ())
    assert merged("a", [queue(), queue(), queue()], 2) == LockInfo(name="a")


def test_it_is_clear_once_nothing_that_is_missing_could_change_who_holds() -> None:
    held, free = queue(one(7)), queue()
    assert is_clear([held, held, held], 2, 3), "it holds"
    assert not is_clear([held, free, free], 2, 3), "it may"
    assert is_clear([held, free, free, free], 1, 3), "it does not"
    assert not is_clear([held, held, free, queue(one(3, "bob"))], 1, 3), "one of them may"
    assert is_clear([held, queue(one(7), name="b")], 1, 3), "another name has votes of its own"
    assert is_clear([], 2, 3)


def test_a_page_goes_as_far_as_all_of_them_go() -> None:
    pages = [[queue(one(1), name=name) for name in names] for names in ("abd", "ab", "acde", "")]
    assert [(info.name, len(info.holders)) for info in page(pages, 2)] == [("a", 1), ("b", 1)]
    assert page([[], []], 2) == []


@pytest.mark.parametrize(("told", "shown"), [(2, "x, y: full"), (3, "every member: full")])
def test_what_members_say_alike_is_said_once(told: int, shown: str) -> None:
    full, fine = Finding("danger", "full", "make room"), Finding("promise", "all is well")
    said = [(name, [fine, full] if number < told else [fine]) for number, name in enumerate("xyz")]
    assert findings(said) == [Finding("danger", shown, "make room")]
