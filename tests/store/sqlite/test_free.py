"""The free path: one statement takes an empty queue, one gives it back. It agrees with the rule whatever was done
before, and anything unusual sends it to the general path with nothing changed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from dibs.backends.common import atomic_queue
from dibs.backends.common.atomic_queue import Wake
from dibs.backends.memory import World
from dibs.backends.sqlite.queue import SqliteQueue
from dibs.backends.sqlite.store import SqliteStore
from dibs.core.queue import ELECTION, LOOK, NOWHERE, QUEUE, UNFAIR, YOURS, Place, Replaced
from dibs.core.rule import Claim, Entry, Standing
from dibs.runtime.threads import boottime, step
from dibs.testing.contract.seats import Seat
from store.both import SLACK, Both, Pair, Side, deeds, on_a_server
from store.sqlite.places import beside, change, rows, standstill, url_of

PLANTED = "INSERT INTO claims VALUES ('a', {ticket}, x'bb', x'aa', 'mutex', 1, {weight}, {until}, 0, 0, 0, '{{}}')"
MUTEX = {"kind": "mutex", "capacity": 1, "weight": 1, "lease": 65.0, "waiting": 25.0}


class FreeSeat(Seat):
    """A client that asks the free path first."""

    queue: SqliteQueue
    store: SqliteStore

    def join(self, claim: Claim, place: Place | None = None) -> Standing | None:
        standing = None if claim.asked else self.take(claim, place or QUEUE)
        return super().join(claim, place) if standing is None else standing

    def leave(self, claim: Claim, *, answered: bool = True) -> bool:
        stood = self.queue.leave_now(claim, self.soon) if answered else None
        return super().leave(claim, answered=answered) if stood is None else stood

    def take(self, claim: Claim, place: Place = QUEUE) -> Standing | None:
        return self.queue.take_now(claim, place, self.soon)

    def renew(self, *claims: Claim) -> list[Standing | None]:
        """As ledger.py has it, without the look that may save the write."""
        return step(self.queue._tell(lambda table, now: atomic_queue.renew(table, claims, now), self.soon))

    def told(self) -> list[tuple[bytes, bytes]]:
        assert self.store.registration.presence is not None
        return self.store.registration.presence.read()


class Stepped:
    """One clock for the store and its clients. It stands still but for `step` and for an instant at each look."""

    offset = 0
    """No client's clock differs from the store's."""

    def __init__(self) -> None:
        self._now = boottime()

    def now(self) -> float:
        self._now += 1e-5
        return self._now

    def step(self, seconds: float) -> None:
        self._now += seconds


class Twice(Both):
    """A queue in the file, and in memory."""

    def step(self, seconds: int) -> None:
        self._clock.step(seconds)

    def evict(self, number: int) -> None:
        self._by_ticket(number, atomic_queue.evict, Seat.evict)


class SqliteSide(Side):
    """The rows of a queue, and the messages that its clients got."""

    def __init__(self, path: Path, seats: list[FreeSeat], name: str, world: World) -> None:
        self._path, self._seats, self._name = path, seats, name

    def same_next(self, found: Standing, expected: Standing, after: Standing) -> bool:
        """Clients can die here, so those who wait look once a second."""
        return found.holds or found.next <= 1.0 or abs(found.next - expected.next) < SLACK

    def check(self, stand: list[Entry], now: float) -> None:
        query = f"SELECT id, weight, held IS NULL FROM claims WHERE name = '{self._name}' ORDER BY ticket"
        found = rows(self._path, query)
        assert found == [(entry.id, entry.weight, entry.held is None) for entry in stand]

    def woken(self, wakes: list[Wake] | None, pairs: list[Pair], world: World, now: float) -> None:
        told = {(key, message) for seat in self._seats for key, message in seat.told()}
        for seat, ours, _ in pairs:
            if (message := step(seat.me.inbox.wait(ours.id, 0.0))) is not None:
                told.add((ours.id, message))
        if wakes is None:
            return
        expected = {(wake.id, wake.signal.value) for wake in wakes}
        assert {one for one in told if one[1] != LOOK.value} == {one for one in expected if one[1] != LOOK.value}
        assert told >= expected
        assert all(world.outside or key in {id for id, _ in expected} for key, _ in told)


@contextmanager
def seated(path: Path, count: int, clock: Stepped | None = None) -> Iterator[list[FreeSeat]]:
    with ExitStack() as stack:
        made = [stack.enter_context(closing(FreeSeat(url_of(path)))) for _ in range(count)]
        for seat in made:
            if clock is not None:
                seat.now = seat.store.registration.now = seat.store.registration.others._now = clock.now  # type: ignore[method-assign]
                seat.queue = seat.store.open(seat.runtime, seat.me)  # type: ignore[assignment]
            seat.leave(seat.joined(name="warm")[0])
        yield made


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Both]]:
    path, clock = tmp_path_factory.mktemp("free") / "locks.db", Stepped()
    with seated(path, 2, clock) as seats:
        yield lambda: Twice(list(seats), clock, lambda name, world: SqliteSide(path, seats, name, world))  # type: ignore[arg-type]


@on_a_server
@given(deeds())
@example([("join", 0, QUEUE, MUTEX), ("join", 1, QUEUE, MUTEX), ("leave", 0, True), ("leave", 1, True)])
@example([("join", 0, QUEUE, MUTEX), ("join", 1, UNFAIR, MUTEX), ("leave", 0, True), ("rejoin", 1), ("leave", 1, True)])
@example([("join", 0, QUEUE, MUTEX), ("step", 600), ("join", 1, QUEUE, MUTEX), ("leave", 0, True), ("leave", 1, True)])
def test_the_free_path_and_the_rule_say_the_same(both: Callable[[], Both], done: list[tuple[Any, ...]]) -> None:
    both().play(done)


@pytest.fixture
def seat(path: Path) -> Iterator[FreeSeat]:
    with seated(path, 1) as (made,):
        yield made


def refused(seat: FreeSeat, claim: Claim, place: Place = QUEUE) -> None:
    """Nothing was changed, and the general path is free to ask for the first time."""
    before = rows(seat.store.registration.path, "SELECT * FROM claims")
    assert seat.take(claim, place) is None
    assert not claim.asked
    assert rows(seat.store.registration.path, "SELECT * FROM claims") == before


def test_an_empty_queue_is_taken_and_left(seat: FreeSeat, path: Path) -> None:
    tickets = []
    for place in (QUEUE, UNFAIR, NOWHERE):
        claim = seat.claim()
        standing = seat.take(claim, place)
        assert standing is not None
        assert (standing.holds, standing.left, standing.ticket) == (True, claim.lease, claim.ticket)
        again = seat.join(claim)
        assert again is not None
        assert (again.holds, again.ticket) == (True, claim.ticket), "a repeated join only reports"
        assert again.left <= claim.lease
        assert seat.queue.leave_now(claim, seat.soon) is True
        assert rows(path, "SELECT * FROM claims") == []
        assert seat.queue.leave_now(claim, seat.soon) is None
        tickets.append(standing.ticket)
    assert tickets == sorted(set(tickets))


def test_a_queue_with_anything_in_it_is_not_free(seat: FreeSeat, path: Path) -> None:
    """A holder, one without weight, a damaged one, one that has expired."""
    for ticket, weight, until in ((1, 1, 1e12), (0, 0, 1e12), (-1, -5, 0), (2**62, 1, 0)):
        change(path, PLANTED.format(ticket=ticket, weight=weight, until=until))
        refused(seat, seat.claim())
        change(path, "DELETE FROM claims")


def test_an_unusual_claim_is_left_to_join(seat: FreeSeat) -> None:
    left, election = seat.claim(), seat.claim(kind=ELECTION)
    seat.leave(left, answered=False)
    for claim in (left, election, seat.claim(by=-0.001), seat.claim(kind="semaphore", capacity=2, weight=3)):
        refused(seat, claim)
    seat.join(election)
    assert seat.queue.leave_now(election, seat.soon) is None


def test_tickets_that_are_not_reserved_or_were_given_before_are_not_given(seat: FreeSeat) -> None:
    table = seat.queue._db.table
    reserved, table.reserved = table.reserved, table.base + int(seat.now() * 1e6)
    refused(seat, seat.claim())
    table.reserved = reserved
    table.last += 3_600_000_000  # as if the clock had been set back
    refused(seat, seat.claim())


def test_neither_a_busy_file_nor_the_disk_is_waited_for(seat: FreeSeat, path: Path) -> None:
    held, claim = seat.joined(name="b")[0], seat.claim()
    with standstill(path):
        refused(seat, claim)
        assert seat.queue.leave_now(held, seat.soon) is None
    turn = os.open(beside(path) / "turn", os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        refused(seat, claim)
        assert seat.queue.leave_now(held, seat.soon) is None
    finally:
        os.close(turn)
    assert seat.leave(held)
    step(seat.queue._step(lambda table, now: None, seat.soon, durable=True))
    refused(seat, claim)


def test_a_file_that_was_replaced_is_noticed(seat: FreeSeat, path: Path) -> None:
    held = seat.joined(name="b")[0]
    path.rename(path.with_name("away"))
    assert seat.take(seat.claim()) is None
    assert seat.queue.leave_now(held, seat.soon) is None
    with pytest.raises(Replaced):
        seat.leave(held)


def acquainted(ana: FreeSeat, bob: FreeSeat) -> None:
    """Each has just seen that the other one is alive."""
    for one, other in ((ana, bob), (bob, ana)):
        one.store.registration.others.alive_until[other.me.id] = one.now() + 60


def joined_at_once(seat: FreeSeat, **options: Any) -> Claim:
    claim = seat.claim(**options)
    assert seat.take(claim) is not None
    return claim


def test_a_claim_waits_behind_a_holder_and_is_told_when_it_leaves(path: Path) -> None:
    with seated(path, 2) as (ana, bob):
        acquainted(ana, bob)
        held, waiting = joined_at_once(ana), bob.claim()
        standing = bob.take(waiting)
        assert standing is not None
        assert (standing.holds, standing.left, standing.next) == (False, waiting.waiting, 1.0)
        assert standing.ticket == waiting.ticket > held.ticket  # type: ignore[operator]
        assert rows(path, "SELECT held IS NULL, round(until - asked) FROM claims ORDER BY ticket") == [(0, 30), (1, 30)]
        behind = joined_at_once(ana)
        assert ana.queue.leave_now(held, ana.soon) is True
        assert bob.told() == [(waiting.id, YOURS.value)]
        standing = bob.look(waiting)
        assert standing is not None
        assert standing.holds
        assert bob.queue.leave_now(waiting, bob.soon) is True
        assert ana.told() == [(behind.id, YOURS.value)]
        assert ana.queue.leave_now(behind, ana.soon) is True


def test_the_rule_decides_about_a_newcomer(path: Path) -> None:
    """Another kind, another capacity, room for both, a holder that is soon over or may be dead, another place."""
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"kind": "semaphore"}),
        ({"kind": "semaphore", "capacity": 2}, {"kind": "semaphore", "capacity": 3, "weight": 2}),
        ({"kind": "semaphore", "capacity": 2}, {"kind": "semaphore", "capacity": 2}),
        ({"lease": 1.0}, {}),
    ]
    with seated(path, 2) as (ana, bob):
        for number, (holder, newcomer) in enumerate(cases):
            acquainted(ana, bob)
            joined_at_once(ana, name=f"n{number}", **holder)
            refused(bob, bob.claim(name=f"n{number}", **newcomer))
        joined_at_once(ana)
        for place in (UNFAIR, NOWHERE):
            refused(bob, bob.claim(), place)
        bob.store.registration.others.alive_until.pop(ana.me.id, None)
        refused(bob, bob.claim())


@pytest.mark.parametrize("why", ["unseen", "expired", "outside", "shared", "not-first", "a-reader"])
def test_the_rule_decides_whom_a_claim_frees(path: Path, why: str) -> None:
    with seated(path, 2) as (ana, bob):
        acquainted(ana, bob)
        if why in ("shared", "a-reader"):
            mine, theirs = (1, 4) if why == "shared" else (4, 1)
            leaving = joined_at_once(ana, kind="rw", capacity=4, weight=mine)
            bob.joined(kind="rw", capacity=4, weight=theirs)
        elif why == "not-first":
            bob.joined()
            leaving = ana.joined()[0]
        else:
            leaving = joined_at_once(ana)
            bob.joined(UNFAIR if why == "outside" else QUEUE)
        if why == "unseen":
            ana.store.registration.others.alive_until.pop(bob.me.id)
        if why == "expired":
            change(path, "UPDATE claims SET until = 0 WHERE held IS NULL")
        before = rows(path, "SELECT * FROM claims")
        assert ana.queue.leave_now(leaving, ana.soon) is None
        assert rows(path, "SELECT * FROM claims") == before
        assert bob.told() == []
        assert ana.leave(leaving)


def test_only_its_own_id_ends_a_claim(seat: FreeSeat) -> None:
    held, stranger = seat.joined()[0], seat.claim()
    stranger.ticket, stranger.asked = held.ticket, True
    assert seat.queue.leave_now(stranger, seat.soon) is None
    assert seat.queue.leave_now(held, seat.soon) is True


def test_the_ticket_is_read_under_the_write_lock(seat: FreeSeat, path: Path) -> None:
    """A process that stands still between its look at the clock and the lock must not bring an old ticket."""
    claim, table = seat.claim(), seat.queue._db.table
    table.clock[0] = 1.0  # what an earlier statement saw
    before = seat.now()
    standing = seat.take(claim)
    assert standing is not None
    assert standing.ticket >= table.base + int(before * 1e6)
    ((ticket, until, asked, held),) = rows(path, "SELECT ticket, until, asked, held FROM claims")
    assert (ticket, asked, held) == (standing.ticket, until - claim.lease, until - claim.lease)
