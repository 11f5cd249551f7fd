"""Two scans of a store, compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import dibs
from dibs.info import LockInfo, Participant
from dibs.monitor.changes import Changes, Follower
from dibs.monitor.scan import Scan, scan

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def seen(second: float, *, complete: bool = True, took: float = 0.1, **names: dict[int, float]) -> Scan:
    """A scan with the tokens of holders and the seconds that remain of them, by name."""
    locks = [
        LockInfo(name=name, holders=tuple(Participant(token=token, remaining=left) for token, left in holds.items()))
        for name, holds in names.items()
    ]
    return Scan(NOON + timedelta(seconds=second), took, locks, complete)


def told(*scans: Scan) -> dict[str, list[tuple[str, int]]]:
    """The changes that the last scan shows, without empty lists."""
    follower = Follower()
    *_, last = (follower.changes(one) for one in scans)
    return {
        what: [(name, one.token) for name, one in found]
        for what, found in zip(Changes._fields, last, strict=True)
        if found
    }


CASES = {
    "the first scan": ([seen(0, a={1: 30})], {}),
    "a new token": ([seen(0, a={1: 30}), seen(10, a={2: 30})], {"taken": [("a", 2)], "released": [("a", 1)]}),
    "another name": ([seen(0, a={1: 30}), seen(10, a={1: 25, 2: 30}, b={9: 30})], {"taken": [("a", 2), ("b", 9)]}),
    "a running lease": ([seen(0, a={1: 30}), seen(20)], {"released": [("a", 1)]}),
    "overdue renewals": ([seen(0, a={1: 18}), seen(10, a={1: 8}), seen(20)], {"expired": [("a", 1)]}),
    "a short lease and rare scans": ([seen(0, a={1: 8}), seen(15, a={1: 9}), seen(30)], {"ended": [("a", 1)]}),
    "no lease": ([seen(0, a={1: 0}), seen(10, a={1: 0}), seen(20)], {"ended": [("a", 1)]}),
    "a slow scan, which may have read the holder early": (
        [seen(0, a={1: 20}), seen(18, took=5)],
        {"ended": [("a", 1)]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_changes_that_the_last_scan_proves(case: str) -> None:
    scans, changes = CASES[case]
    assert told(*scans) == changes


def test_an_incomplete_scan_does_not_end_a_hold_that_it_cut_off() -> None:
    cut = seen(10, complete=False, a={2: 30})
    assert told(seen(0, a={1: 30}, z={5: 30}), cut) == {"taken": [("a", 2)], "released": [("a", 1)]}
    assert told(cut, seen(20, a={2: 20}, z={5: 30})) == {}


def test_holds_of_a_real_store() -> None:
    follower = Follower()
    with dibs.connect("memory://") as client:
        first = client.semaphore("a", 2).acquire()
        follower.changes(scan(client))
        second = client.semaphore("a", 2).acquire()
        assert [one.token for _, one in follower.changes(scan(client)).taken] == [second.token]
        first.release()
        assert [one.token for _, one in follower.changes(scan(client)).released] == [first.token]
        second.release()
