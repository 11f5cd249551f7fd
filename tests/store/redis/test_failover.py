"""Valid grants around a fail-over, by a clock that the test moves; and the longest lease in use, on a real server.
Real fail-overs: test_faults_sentinel.py."""

from __future__ import annotations

from dibs.backends.redis import scripts
from dibs.backends.redis.failover import WINDOW, Failover, Term, lease_class
from dibs.backends.redis.scripts import MICROSECONDS
from dibs.core.rule import Standing
from store.redis.hashes import Raw

OURS, THEIRS = b"o" * 16, b"t" * 16


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def begun(clock: Clock, epoch: int, longest: float = 10.0) -> Failover:
    made = Failover(clock)
    made.term = Term(("h", 1), epoch)
    made.term.confirm(clock.now, clock.now)
    made.term.note(longest, longest, clock.now)
    return made


def standing(holds: bool = True) -> Standing:
    return Standing(7, holds, 10.0, 60.0, False)


def test_an_answer_counts_for_as_long_as_a_majority_was_asked_lately() -> None:
    clock = Clock()
    failover = begun(clock, epoch=1)
    term = failover.term
    assert term is not None
    assert failover.confirms(term)
    clock.now += WINDOW + 0.1
    assert not failover.confirms(term)
    term.confirm(clock.now, clock.now)
    assert failover.confirms(term)
    failover.term = Term(("h", 2), 2)
    assert not failover.confirms(term), "another one took over"


def test_nothing_new_is_granted_for_the_longest_lease() -> None:
    clock = Clock()
    failover = begun(clock, epoch=1)
    assert failover.grace() == 10.0 + WINDOW
    masked = failover.counted(THEIRS, standing())
    assert (masked.holds, masked.ticket, masked.left, masked.next) == (False, 7, 10.0, 10.0 + WINDOW)
    assert "nothing new is granted for 1" in str(masked.held_back)
    assert failover.counted(THEIRS, standing(holds=False)).held_back is None, "somebody else holds"
    assert not failover.grants_by_message(THEIRS)
    clock.now += 10.0 + WINDOW
    assert failover.term is not None
    failover.term.confirm(clock.now, clock.now)
    assert failover.grace() == 0.0
    assert failover.counted(THEIRS, standing()).holds
    assert failover.grants_by_message(THEIRS)


def test_what_was_granted_before_the_fail_over_is_kept() -> None:
    clock = Clock()
    failover = begun(clock, epoch=0)
    assert failover.counted(OURS, standing()).holds, "there was no fail-over yet"
    failover.term = begun(clock, epoch=1).term
    assert failover.counted(OURS, standing()).holds
    assert not failover.counted(OURS, standing(holds=False)).holds, "the new primary knows better"
    failover.forget(OURS)
    assert not failover.counted(OURS, standing()).holds


def test_nothing_is_granted_before_the_longest_lease_is_known() -> None:
    clock = Clock()
    failover = Failover(clock)
    assert failover.grace()
    failover.term = Term(("h", 1), 0)
    assert failover.grace()


def test_the_longest_lease_in_use(raw: Raw) -> None:
    def noted(lease: float) -> float:
        words = (int(lease * MICROSECONDS), lease_class(lease))
        _, longest = raw.client.eval(scripts.LEASES.text, 1, raw.prefix + "leases", *words)
        return float(longest) / MICROSECONDS

    assert [noted(lease) for lease in (4.0, 30.0, 0.5, 1e9, 17.0)] == [4.0, 30.0, 30.0, 1e9, 1e9]
    assert raw.client.pttl(raw.prefix + "leases") > 0
