"""The rules of the Queue interface (core/queue.py): wake-ups, lighter claims, unfair waiters, operations by token."""

from __future__ import annotations

from typing import Any

from dibs.core.queue import FAIR, FOREIGN, LEASES, LOOK, NOWHERE, PERMITS, QUEUE, RECORDS, RW, UNFAIR
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from dibs.testing.contract.worlds import needs, timed, without


@needs(FAIR)
def test_leave_wakes_exactly_the_next(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    waiting = [seat.joined()[0] for seat in (bob, ana, bob)]
    ana.leave(mine)
    assert bob.granted(waiting[0])
    assert [ana.told(waiting[1]), bob.told(waiting[2])] == [None, None]


@needs(FAIR, PERMITS)
@without(FOREIGN)
def test_leave_wakes_all_whom_it_frees(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "semaphore", "capacity": 4}
    mine, _ = ana.joined(weight=3, **options)
    keeps, _ = ana.joined(weight=1, **options)
    waiting = [bob.joined(weight=weight, **options)[0] for weight in (2, 1, 2)]
    ana.leave(mine)
    assert [bob.freed(waiting[0]), bob.freed(waiting[1])] == [True, True]
    assert bob.passed_over(waiting[2])
    assert ana.told(keeps) is None


@needs(PERMITS)
def test_who_holds_already_is_not_told_again(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "semaphore", "capacity": 2}
    mine, _ = ana.joined(**options)
    theirs, _ = bob.joined(**options)
    ana.leave(mine)
    assert bob.told(theirs) is None


@needs(FAIR, PERMITS)
@without(FOREIGN)
def test_a_waiter_that_leaves_frees_those_behind_it(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "semaphore", "capacity": 3}
    ana.joined(weight=2, **options)
    big, _ = bob.joined(weight=3, **options)
    small, _ = bob.joined(weight=1, **options)
    bob.leave(big)
    assert bob.freed(small)
    standing = bob.look(small)
    assert standing is not None
    assert standing.holds


@needs(FAIR)
def test_a_waiter_that_leaves_from_the_middle_wakes_nobody(ana: Seat, bob: Seat) -> None:
    ana.joined()
    first, _ = bob.joined()
    second, _ = ana.joined()
    third, standing = bob.joined()
    ana.leave(second)
    assert bob.told(first) is None
    assert bob.told(third) is None
    assert standing.ticket in bob.waiters()


def test_a_try_that_fails_leaves_nothing_and_is_told_nothing(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    claim = bob.claim()
    standing = bob.join(claim, NOWHERE)
    assert standing is not None
    assert not standing.holds
    assert ana.waiters() == []
    ana.leave(mine)
    assert bob.told(claim) is None


@needs(FAIR, PERMITS)
@without(FOREIGN)
def test_an_unfair_waiter_does_not_pass_the_queue(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "semaphore", "capacity": 2}
    ana.joined(weight=1, **options)
    bob.joined(weight=2, **options)
    for place in (NOWHERE, UNFAIR):
        standing = ana.join(ana.claim(weight=1, **options), place)
        assert standing is not None
        assert not standing.holds


@needs(RECORDS)
def test_unfair_waiters_are_told_to_look_when_nobody_in_the_queue_is_freed(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    outside = [seat.claim() for seat in (ana, bob)]
    for seat, claim in zip((ana, bob), outside, strict=True):
        standing = seat.join(claim, UNFAIR)
        assert standing is not None
        assert not standing.holds
    assert ana.waiters() == []
    ana.leave(mine)
    assert [ana.hears(outside[0]), bob.hears(outside[1])] == [LOOK, LOOK]
    standing = bob.join(outside[1], UNFAIR)
    assert standing is not None
    assert standing.holds


@needs(FAIR, RECORDS)
def test_unfair_waiters_are_not_told_while_the_queue_moves(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    outside = bob.claim()
    bob.join(outside, UNFAIR)
    waits, _ = bob.joined()
    ana.leave(mine)
    assert bob.freed(waits)
    assert bob.passed_over(outside)


@timed
@needs(LEASES, RECORDS)
def test_unfair_waiters_who_are_gone_keep_nobody_from_being_told(ana: Seat, bob: Seat) -> None:
    """A store that wakes only some unfair waiters wakes those that still wait."""
    mine, _ = ana.joined()
    *gone, waits = sorted((bob.claim() for _ in range(10)), key=lambda claim: claim.id)
    for claim in gone:
        claim.waiting = bob.brief
        bob.join(claim, UNFAIR)
    bob.joined(name="b", lease=bob.brief)
    until(lambda: not bob.holders("b"))
    bob.join(waits, UNFAIR)
    ana.leave(mine)
    assert bob.hears(waits) is LOOK


def test_an_unfair_waiter_that_left_is_told_nothing(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    outside = bob.claim()
    bob.join(outside, UNFAIR)
    bob.leave(outside)
    ana.leave(mine)
    assert bob.told(outside) is None


@needs(RECORDS)
def test_an_unfair_waiter_that_came_in_is_told_nothing_more(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    outside = bob.claim()
    bob.join(outside, UNFAIR)
    ana.leave(mine)
    assert bob.hears(outside) is LOOK
    standing = bob.join(outside, UNFAIR)
    assert standing is not None
    assert standing.holds
    assert bob.told(outside) in (None, LOOK), "a message that was sent twice may be read now"
    bob.leave(outside)
    assert bob.told(outside) is None


@timed
@needs(LEASES)
def test_an_expired_holder_wakes_unfair_waiters_when_somebody_looks(ana: Seat, bob: Seat) -> None:
    bob.joined(name="b")  # connect first: the next join must arrive before the lease is over
    ana.joined(lease=ana.brief)
    outside = bob.claim()
    bob.join(outside, UNFAIR)
    until(lambda: not ana.holders())
    standing = bob.join(outside, UNFAIR)
    assert standing is not None
    assert standing.holds


@needs(FAIR, RW)
def test_amend_lowers_and_wakes_whom_it_frees(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "rw", "capacity": 1_000_000}
    writer, first = ana.joined(weight=1_000_000, **options)
    readers = [bob.joined(weight=1, **options)[0] for _ in range(2)]
    ana.amend(writer, 1)
    assert all(bob.freed(claim) for claim in readers)
    first_ones = ana.holders() if FOREIGN in ana.store.capabilities else ana.holders()[:1]
    assert first.ticket in first_ones
    assert len(ana.holders()) == 3


@needs(PERMITS)
@without(FOREIGN)
def test_amend_only_lowers(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "semaphore", "capacity": 3}
    claim, _ = ana.joined(weight=1, **options)
    ana.amend(claim, 3)
    _, standing = bob.joined(weight=2, **options)
    assert standing.holds


@needs(PERMITS)
@without(FOREIGN)
def test_amend_is_idempotent(ana: Seat) -> None:
    claim, first = ana.joined(weight=3, kind="semaphore", capacity=3)
    for _ in range(2):
        ana.amend(claim, 1)
    again = ana.join(claim)
    assert again is not None
    assert (again.ticket, again.holds) == (first.ticket, True)


@needs(LEASES, PERMITS)
@without(FOREIGN)
def test_amend_keeps_the_lease(ana: Seat) -> None:
    claim, first = ana.joined(weight=3, kind="semaphore", capacity=3, lease=10)
    for _ in range(2):
        ana.amend(claim, 1)
    again = ana.join(claim)
    assert again is not None
    assert again.left <= first.left


@needs(PERMITS)
@without(FOREIGN)
def test_amend_of_what_is_gone_changes_nothing(ana: Seat, bob: Seat) -> None:
    claim, _ = ana.joined(weight=3, kind="semaphore", capacity=3)
    ana.leave(claim)
    _, standing = bob.joined(weight=3, kind="semaphore", capacity=3)
    ana.amend(claim, 1)
    assert bob.holders() == [standing.ticket]


@needs(PERMITS)
@without(FOREIGN)
def test_weight_nothing_always_fits_at_the_head(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "striped", "capacity": 4, "weight": 0}
    standings = [seat.joined(**options)[1] for seat in (ana, bob, ana)]
    assert all(standing.holds for standing in standings)


def test_evict_by_token_only(ana: Seat, bob: Seat) -> None:
    claim, first = ana.joined()
    for wrong in (first.ticket + 1, first.ticket - 1, 0, -1):
        assert not bob.evict(wrong)
    assert bob.holders() == [first.ticket]
    assert not bob.evict(first.ticket, "b")
    assert bob.evict(first.ticket)
    assert not bob.evict(first.ticket)
    assert ana.look(claim) is None


@needs(FAIR)
def test_evict_wakes_whom_it_frees(ana: Seat, bob: Seat) -> None:
    _, first = ana.joined()
    waits, _ = bob.joined()
    assert ana.evict(first.ticket)
    assert bob.granted(waits)


@timed
@needs(FAIR, LEASES, RECORDS)
def test_revoke_tells_who_holds_since_another_expired(ana: Seat, bob: Seat) -> None:
    _, over = ana.joined(lease=ana.brief)
    waits, standing = bob.joined(waiting=10.0)
    until(lambda: ana.holders() == [standing.ticket])
    assert not ana.revoke(over.ticket)
    assert bob.freed(waits)


@without(FOREIGN)
def test_revoke_by_token_only(ana: Seat, bob: Seat) -> None:
    claim, first = ana.joined()
    for wrong in (first.ticket + 1, first.ticket - 1, 0):
        assert not bob.revoke(wrong)
    standing = ana.look(claim)
    assert standing is not None
    assert not standing.revoked
    assert bob.revoke(first.ticket)
    standing = ana.look(claim)
    assert standing is not None
    assert standing.revoked
    assert standing.holds


def test_lines_are_pages_in_order_of_their_names(ana: Seat) -> None:
    for name in ("b", "a", "c", "ab"):
        ana.joined(name=name)
    assert ana.names() == ["a", "ab", "b", "c"]


def test_lines_by_prefix_and_behind_a_name(ana: Seat) -> None:
    for name in ("a1", "a2", "a%", "b1"):
        ana.joined(name=name)
    assert ana.names("a") == ["a%", "a1", "a2"]
    assert ana.names("a", "a1") == ["a2"]
    assert ana.names("a%") == ["a%"]
    assert ana.names("zz") == []


@needs(FAIR)
def test_a_queue_on_a_page_is_the_queue_itself(ana: Seat, bob: Seat) -> None:
    _, first = ana.joined(name="a")
    _, second = bob.joined(QUEUE, name="a")
    _, third = bob.joined(name="b")
    one, other = step(ana.queue.page("", "", ana.soon))
    assert ana.tickets(one.holders) == [first.ticket]
    assert ana.tickets(one.waiters) == [second.ticket]
    assert ana.tickets(other.holders) == [third.ticket]
    seen = step(ana.queue.inspect("a", ana.soon))
    assert (one.name, one.kind, one.capacity) == (seen.name, seen.kind, seen.capacity)
    assert one.holders[0].info == seen.holders[0].info


def test_identity_is_the_stores_own(ana: Seat, bob: Seat) -> None:
    assert step(ana.queue.identity(ana.soon)) == step(bob.queue.identity(bob.soon)) != ""
