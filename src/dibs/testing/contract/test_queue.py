"""The rules of the Queue interface (core/queue.py): joining, renewing, expiry, late requests."""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR, FOREIGN, LEASES, LOOK, NOWHERE, PERMITS, RECORDS, RW, UNFAIR, YOURS
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from dibs.testing.contract.worlds import needs, timed, without


@needs(FAIR)
def test_the_first_holds_and_the_second_waits(ana: Seat, bob: Seat) -> None:
    _, first = ana.joined()
    _, second = bob.joined()
    assert (first.holds, second.holds) == (True, False)
    assert ana.holders() == [first.ticket]
    until(lambda: ana.waiters() == [second.ticket])


@needs(FAIR, RECORDS)
def test_who_waits_has_its_ticket(ana: Seat, bob: Seat) -> None:
    _, first = ana.joined()
    _, second = bob.joined()
    assert second.ticket > first.ticket
    assert ana.waiters() == [second.ticket]


@needs(FAIR, LEASES)
@without(FOREIGN)
def test_a_holder_gets_its_lease_and_a_waiter_its_waiting_lease(ana: Seat, bob: Seat) -> None:
    _, first = ana.joined(lease=20)
    _, second = bob.joined(lease=20, waiting=3)
    assert 15 < first.left <= 20
    assert 0 < second.left <= 3


@needs(LEASES)
def test_a_waiter_learns_when_to_look(ana: Seat, bob: Seat) -> None:
    ana.joined(lease=20)
    _, second = bob.joined()
    assert second.next <= 20


@needs(FAIR)
def test_join_is_idempotent(ana: Seat, bob: Seat) -> None:
    claim, first = ana.joined()
    other, waits = bob.joined()
    for seat, mine, standing in ((ana, claim, first), (bob, other, waits)):
        again = seat.join(mine)
        assert again is not None
        assert again.holds is standing.holds
        assert again.ticket == standing.ticket or ana.form == "fair"
    assert (len(ana.holders()), len(ana.waiters())) == (1, 1)
    assert (ana.holders(), ana.waiters()) == ([first.ticket], [waits.ticket]) or ana.form == "fair"


@needs(LEASES)
def test_a_repeated_join_extends_nothing(ana: Seat) -> None:
    claim, first = ana.joined(lease=10)
    again = until(lambda: (seen := ana.join(claim)) is not None and seen.left < first.left and seen)
    third = ana.join(claim)
    assert third is not None
    assert third.left <= again.left


@needs(FAIR, RECORDS)
def test_a_repeated_join_reports_a_grant(ana: Seat, bob: Seat) -> None:
    """Not at once: on ZooKeeper bob learns of the leave by a message."""
    mine, _ = ana.joined()
    claim, _ = bob.joined()
    ana.leave(mine)
    until(lambda: (again := bob.join(claim)) is not None and again.holds)


@needs(FAIR, LEASES)
@without(FOREIGN)
def test_a_repeated_join_that_reports_a_grant_does_not_make_the_waiting_lease_longer(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    claim, _ = bob.joined(lease=10, waiting=3)
    ana.leave(mine)
    again = bob.join(claim)
    assert again is not None
    assert again.holds
    assert again.left <= 3


@needs(FAIR, RECORDS)
def test_tickets_rise_along_the_queue_and_after_it_was_empty(ana: Seat, bob: Seat) -> None:
    tickets = []
    for _ in range(3):
        mine, first = ana.joined()
        theirs, second = bob.joined()
        tickets += [first.ticket, second.ticket]
        ana.leave(mine)
        bob.leave(theirs)
        assert ana.names() == []
    assert tickets == sorted(set(tickets))


def test_tickets_rise_after_an_eviction(ana: Seat) -> None:
    _, first = ana.joined()
    assert ana.evict(first.ticket)
    _, second = ana.joined()
    assert second.ticket > first.ticket


@needs(LEASES)
def test_renew_extends(ana: Seat) -> None:
    claim, first = ana.joined(lease=20)
    before = until(lambda: (seen := ana.join(claim)) is not None and seen.left < 19.9 and seen.left)
    again = ana.look(claim)
    assert again is not None
    assert before < again.left <= first.left


@needs(LEASES)
def test_renew_never_shortens(ana: Seat) -> None:
    claim, _ = ana.joined(lease=20)
    late = copy(claim)
    late.lease = late.waiting = 1.0
    standing = ana.look(late)
    assert standing is not None
    assert standing.left > 15


@needs(FAIR)
def test_renew_is_a_batch_over_names_in_the_order_asked(ana: Seat, bob: Seat) -> None:
    held, _ = ana.joined(name="a")
    bob.joined(name="b")
    waits, _ = ana.joined(name="b")
    unknown = ana.claim(name="c")
    other, _ = ana.joined(name="d")
    first, second, third, fourth = ana.renew(held, waits, unknown, other)
    assert first is not None
    assert second is not None
    assert fourth is not None
    assert third is None
    assert (first.holds, second.holds, fourth.holds) == (True, False, True)


@timed
@needs(LEASES)
def test_renew_never_revives_and_leaves_a_successor_alone(ana: Seat, bob: Seat) -> None:
    claim, _ = ana.joined(lease=ana.brief)
    passed_on, _ = ana.joined(name="b", lease=ana.brief)
    until(lambda: not ana.holders() and not ana.holders("b"))
    assert ana.look(claim) is None
    assert ana.look(claim) is None
    assert "a" not in ana.names()
    _, second = bob.joined(name="b")
    assert second.holds
    assert ana.look(passed_on) is None
    assert ana.holders("b") == [second.ticket]


@needs(FAIR)
def test_renew_of_a_waiter_that_left_is_refused(ana: Seat, bob: Seat) -> None:
    """The renewal of a waiter that times out may be overtaken by its leave."""
    mine, first = ana.joined()
    waits, _ = bob.joined()
    bob.leave(waits)
    assert bob.look(waits) is None
    assert (ana.holders(), ana.waiters()) == ([first.ticket], [])
    ana.leave(mine)
    assert bob.look(waits) is None
    assert ana.names() == []


@timed
@needs(FAIR, LEASES)
@without(FOREIGN)
def test_renew_of_an_expired_claim_is_refused_also_behind_others(ana: Seat, bob: Seat) -> None:
    ana.joined(lease=30)
    bob.joined(lease=30, waiting=30)
    third, _ = ana.joined(waiting=ana.brief)
    shared: dict[str, Any] = {"name": "b", "kind": "semaphore", "capacity": 2}
    bob.joined(**shared, lease=30)
    second, _ = ana.joined(**shared, lease=ana.brief)
    until(lambda: len(ana.waiters()) == 1 == len(ana.holders("b")))
    assert ana.look(third) is None
    assert ana.look(second) is None


@timed
@needs(FAIR, LEASES)
def test_an_expired_holder_frees_its_successor_by_the_successors_renewal(ana: Seat, bob: Seat) -> None:
    ana.joined(lease=ana.brief)
    claim, second = bob.joined(lease=30, waiting=30)
    standing = until(lambda: (seen := bob.look(claim)) is not None and seen.holds and seen)
    assert standing.ticket == second.ticket or bob.form == "fair"
    assert standing.left > 5


@timed
@needs(FAIR, LEASES)
@without(FOREIGN)
def test_expiry_is_a_write_that_signals(ana: Seat, bob: Seat) -> None:
    _, first = ana.joined(lease=ana.brief)
    waits, _ = bob.joined(lease=30, waiting=30)
    until(lambda: ana.holders() != [first.ticket])
    far, _ = ana.joined()  # every operation evicts expired claims of its queue, and signals their successors
    assert bob.hears(waits) is YOURS
    assert ana.told(far) is None


def test_looking_on_removes_nothing_that_lives(ana: Seat, bob: Seat) -> None:
    claim, first = ana.joined()
    for _ in range(3):
        assert bob.holders() == [first.ticket]
    assert ana.look(claim) is not None


def test_a_join_after_its_time_is_void(ana: Seat) -> None:
    late = ana.claim(by=-0.01)
    assert ana.join(late) is None
    assert ana.names() == []


@timed
def test_a_repeated_join_after_its_time_is_void_and_makes_no_ghost(ana: Seat) -> None:
    claim, _ = ana.joined(by=ana.brief, lease=10)
    ana.leave(claim)
    until(lambda: ana.now() > claim.by)
    assert ana.join(claim) is None
    assert ana.names() == []


def test_a_join_that_comes_after_its_leave_is_void(ana: Seat) -> None:
    claim = ana.claim()
    ana.leave(claim, answered=False)
    assert ana.join(claim) is None
    assert ana.names() == []
    _, standing = ana.joined()
    assert standing.holds, "that is for one id only"


def test_a_join_that_comes_after_its_leave_on_another_connection_is_void(ana: Seat) -> None:
    claim = ana.claim()
    ana.queue, ana.other_queue = ana.other_queue, ana.queue
    ana.leave(claim, answered=False)
    ana.queue, ana.other_queue = ana.other_queue, ana.queue
    assert ana.join(claim, NOWHERE) is None
    assert ana.names() == []


def test_a_join_that_was_repeated_and_left_does_not_stand_again(ana: Seat) -> None:
    """The repeated join got a reply; the first copy may arrive after the claim left."""
    claim, _ = ana.joined()
    ana.leave(claim, answered=False)
    assert ana.join(claim) is None
    assert ana.names() == []


def test_leave_is_idempotent(ana: Seat, bob: Seat) -> None:
    claim, _ = ana.joined()
    assert ana.leave(claim)
    _, second = bob.joined()
    ana.leave(claim)
    assert bob.holders() == [second.ticket]


def test_leave_says_whether_the_claim_stood_until_then(ana: Seat) -> None:
    claim, standing = ana.joined()
    assert ana.evict(standing.ticket)
    assert ana.leave(claim) is False


@needs(FAIR)
def test_many_leave_at_once_and_those_they_kept_waiting_are_woken(ana: Seat, bob: Seat) -> None:
    mine = [ana.joined(name=name)[0] for name in ("c", "a", "b")]
    waits, _ = bob.joined()
    ana.leave_all(*mine, mine[0])
    assert bob.freed(waits)
    assert [ana.holders(name) for name in ("b", "c")] == [[], []]
    ana.leave_all(*mine)
    assert bob.holders() != [], "the second time it changes nothing"


def test_what_leaves_at_once_unanswered_does_not_stand_again(ana: Seat) -> None:
    claims = [ana.joined(name="a")[0], ana.claim(name="b")]
    ana.leave_all(*claims, answered=False)
    assert [ana.join(claim) for claim in claims] == [None, None]
    assert ana.names() == []


@needs(FAIR)
def test_who_leaves_at_once_with_another_id_changes_nothing(ana: Seat, bob: Seat) -> None:
    claim, first = ana.joined()
    forged, waits = copy(claim), bob.joined()[0]
    forged.id = bytes(byte ^ 1 for byte in claim.id)
    step(bob.queue.leave_all([(forged, True), (waits, True)], bob.soon))
    assert (bob.holders(), bob.waiters()) == ([first.ticket], [])


def test_a_queue_connects_and_knows_its_round_trip(ana: Seat) -> None:
    step(ana.queue.connect(ana.soon))
    ana.joined()
    assert 0.0 <= ana.queue.round_trip() < 30.0


def test_a_leave_with_another_id_changes_nothing(ana: Seat, bob: Seat) -> None:
    claim, first = ana.joined()
    forged = copy(claim)
    forged.id = bytes(byte ^ 1 for byte in claim.id)
    bob.leave(forged)
    forged.id = claim.id[:-1]
    bob.leave(forged)
    assert bob.holders() == [first.ticket]


def test_a_renewal_with_another_id_is_refused(ana: Seat, bob: Seat) -> None:
    claim, _ = ana.joined()
    forged = copy(claim)
    forged.id = bytes(16)
    assert bob.look(forged) is None


@needs(PERMITS)
@without(FOREIGN)
def test_an_amendment_with_another_id_changes_nothing(ana: Seat, bob: Seat) -> None:
    claim, _ = ana.joined(capacity=3, weight=3, kind="semaphore")
    forged = copy(claim)
    forged.id = bytes(16)
    bob.amend(forged, 1)
    _, second = bob.joined(capacity=3, kind="semaphore")
    assert not second.holds


@pytest.mark.parametrize(
    ("kind", "capacity"),
    [
        pytest.param("semaphore", 1, marks=needs(PERMITS)),
        pytest.param("mutex", 2, marks=without(FOREIGN)),
        pytest.param("rw", 1, marks=needs(RW)),
    ],
)
def test_another_kind_or_size_is_a_mismatch_and_changes_nothing(ana: Seat, bob: Seat, kind: str, capacity: int) -> None:
    mine, first = ana.joined()
    for place in (bob.usual, UNFAIR, NOWHERE):
        with pytest.raises(dibs.Mismatch):
            bob.join(bob.claim(kind=kind, capacity=capacity), place)
    assert (ana.holders(), ana.waiters()) == ([first.ticket], [])
    ana.leave(mine)
    assert bob.join(bob.claim(kind=kind, capacity=capacity)) is not None


def test_nothing_stays_behind(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined()
    waits, _ = bob.joined()
    third, _ = bob.joined()
    bob.join(bob.claim(), NOWHERE)
    outside = bob.claim()
    bob.join(outside, UNFAIR)
    assert ana.names() == ["a"]
    for seat, claim in ((bob, outside), (bob, waits), (bob, third), (ana, mine)):
        seat.leave(claim)
    assert ana.names() == []
    assert ana.holders() == ana.waiters() == []


@timed
@needs(FAIR, LEASES)
@without(FOREIGN)
def test_a_message_is_not_for_a_waiter_whose_claim_expired(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined(lease=30)
    dead, _ = bob.joined(waiting=bob.brief)
    alive, standing = bob.joined(lease=30, waiting=30)
    until(lambda: bob.waiters() == [standing.ticket])
    ana.leave(mine)
    assert bob.hears(alive) is YOURS
    assert bob.told(dead) is None
    assert bob.look(dead) is None
    assert bob.holders() == [standing.ticket]


def test_a_message_that_nobody_expects_is_dropped(ana: Seat) -> None:
    claim, _ = ana.joined()
    ana.me.inbox.deliver(bytes(16), YOURS.value)
    ana.me.inbox.deliver(claim.id[:8], YOURS.value)
    assert ana.told(claim) is None
    ana.me.inbox.deliver(claim.id, LOOK.value)
    assert ana.hears(claim) is LOOK
