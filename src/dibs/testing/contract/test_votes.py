"""The operations that a store needs to be a member of a quorum: `Voter` in core/queue.py."""

from __future__ import annotations

import time
from typing import cast

from dibs.core.queue import FAIR, LEASES, NOWHERE, VOTES, Voter
from dibs.core.rule import Claim
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from dibs.testing.contract.worlds import needs, timed

pytestmark = needs(VOTES)


def voter(seat: Seat) -> Voter:
    return cast("Voter", seat.queue)  # the capability VOTES says so


def stamp(seat: Seat, claim: Claim, token: int) -> bool:
    return step(voter(seat).stamp(claim, token, seat.soon))


def test_a_stamp_takes_the_place_of_the_ticket(ana: Seat) -> None:
    claim, standing = ana.joined(NOWHERE)
    token = standing.ticket + 1000
    assert stamp(ana, claim, standing.ticket)
    assert ana.holders() == [standing.ticket], "its own ticket changes nothing"
    for _ in range(3):  # it is idempotent
        assert stamp(ana, claim, token)
        assert ana.holders() == [token]
    again = ana.look(claim)
    assert again is not None
    assert (again.ticket, again.holds) == (token, True)
    assert not ana.evict(standing.ticket)
    assert ana.evict(token)


def test_all_tickets_to_come_are_higher(ana: Seat) -> None:
    """Also when the queue is empty."""
    claim, standing = ana.joined(NOWHERE)
    token = standing.ticket + 10**9
    assert stamp(ana, claim, token)
    ana.leave(claim)
    _, next_one = ana.joined(NOWHERE)
    assert next_one.ticket > token


def test_a_stamp_extends_nothing(ana: Seat) -> None:
    claim, standing = ana.joined(NOWHERE, lease=10)
    until(lambda: (ana.join(claim) or standing).left < 9.95)
    stamp(ana, claim, standing.ticket + 1)
    again = ana.join(claim)
    assert again is not None
    assert again.left < 9.95


def test_a_claim_that_left_is_not_stamped_and_raises_nothing(ana: Seat) -> None:
    """A client that stalled between its rounds must not raise the counter of the claims after it (TRAPS, B11)."""
    claim, standing = ana.joined(NOWHERE)
    ana.leave(claim)
    theirs, next_one = ana.joined(NOWHERE)
    assert not stamp(ana, claim, next_one.ticket + 10**9)
    assert ana.holders() == [next_one.ticket]
    ana.leave(theirs)
    assert ana.joined(NOWHERE)[1].ticket < standing.ticket + 10**9


@timed
@needs(LEASES)
def test_a_claim_that_expired_is_not_stamped(ana: Seat) -> None:
    claim, standing = ana.joined(NOWHERE, lease=1.0)
    until(lambda: ana.holders() == [])
    assert not stamp(ana, claim, standing.ticket + 1)


def test_a_ticket_is_never_lowered(ana: Seat) -> None:
    claim, standing = ana.joined(NOWHERE)
    assert not stamp(ana, claim, standing.ticket - 1)
    assert ana.holders() == [standing.ticket]


@needs(FAIR)
def test_a_claim_that_is_not_alone_is_not_stamped(ana: Seat, bob: Seat) -> None:
    """Tickets must rise along the queue; a higher one at its head would break that."""
    claim, standing = ana.joined()
    other, waits = bob.joined()
    assert not stamp(ana, claim, waits.ticket + 1)
    assert not stamp(bob, other, waits.ticket + 1)
    assert (ana.holders(), ana.waiters()) == ([standing.ticket], [waits.ticket])


def test_for_how_long_it_has_had_everything_and_what_its_clock_shows(ana: Seat) -> None:
    claim, _ = ana.joined(NOWHERE)
    assert step(voter(ana).settled(claim, 30.0, ana.soon)) >= 0.0
    assert abs(step(voter(ana).clock(ana.soon)) - time.time()) < 3600
