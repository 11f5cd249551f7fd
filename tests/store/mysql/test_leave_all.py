"""Many claims given back in one call: as `leave` does with each, of whatever names, whoever has some of them locked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from dibs.backends.mysql import subscriber
from dibs.core.queue import ELECTION, QUEUE, UNFAIR, YOURS
from dibs.core.rule import Claim
from dibs.errors import StoreError
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from lab.servers.supervisor import Server
from store.mysql.rows import Raw

Made = Callable[[], Seat]


def leave_all(seat: Seat, *claims: Claim, answered: bool = True) -> list[StoreError | None]:
    return list(step(seat.queue.leave_all([(claim, answered) for claim in claims], seat.soon)))


def questions(raw: Raw) -> int:
    return int(raw.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def test_many_names_take_one_question(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"n{number}")[0] for number in range(100)]
    before = questions(raw)
    assert leave_all(seat, *claims, *claims) == [None] * 200
    assert questions(raw) - before <= 3  # with ours, and a sweep
    assert not [claim for claim in claims if raw.claims(claim.name)]


def test_those_who_waited_behind_are_told(seats: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this client and of others, in the queue and outside it; and nobody who does not hold."""
    monkeypatch.setattr(subscriber, "PATIENCE", 120)
    ana, bob = seats(), seats()
    held = [ana.joined(name=f"n{number}")[0] for number in range(3)]
    mine, _ = ana.joined(name="n0")
    theirs, _ = bob.joined(name="n1")
    last, _ = bob.joined(name="n1")
    outside, _ = bob.joined(UNFAIR, name="n2")
    gone, _ = bob.joined(name="n0")
    assert bob.told(last) is None  # it listens
    assert leave_all(bob, gone) == [None]
    assert leave_all(ana, *held) == [None] * 3
    assert ana.freed(mine)
    assert bob.hears(theirs) is YOURS
    assert bob.hears(outside) is not None
    assert bob.told(last) is None
    assert leave_all(bob, theirs, last, outside) == [None] * 3
    assert leave_all(ana, mine) == [None]


def test_followers_of_an_election_are_told(seats: Made) -> None:
    ana, bob = seats(), seats()
    leading, standing = ana.joined(name="e", kind=ELECTION)
    elsewhere, _ = ana.joined(name="n")
    key = bob.runtime.fresh_id()
    bob.me.inbox.expect(key)
    told = threading.Event()

    def follow() -> None:
        step(bob.queue.await_change("e", standing.ticket, key, bob.soon))
        told.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert leave_all(ana, elsewhere, leading) == [None, None]
    assert told.wait(60)
    thread.join(60)


def test_a_join_that_arrives_afterwards_makes_no_ghost(seat: Seat, raw: Raw) -> None:
    stood, late = seat.joined(name="n0")[0], seat.claim("n1", by=60.0)
    also = seat.claim("n2", by=60.0)
    assert leave_all(seat, stood, late, also, answered=False) == [None] * 3
    for claim in (stood, late, also):
        assert seat.join(claim) is None
        assert not raw.claims(claim.name)


def test_a_name_that_is_locked_keeps_no_other_waiting(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"n{number % 3}", capacity=5, kind="semaphore")[0] for number in range(9)]
    raw.lock("n1")
    found = list(step(seat.queue.leave_all([(claim, True) for claim in claims], seat.now() + 1.5)))
    assert [error is not None for error in found] == [number % 3 == 1 for number in range(9)]
    raw.unlock()
    assert leave_all(seat, *claims) == [None] * 9
    assert not [claim for claim in claims if raw.claims(claim.name)]


def test_a_refusal_is_said_of_each(server: Server) -> None:
    """Nothing but silence is raised."""
    with closing(Seat(server.url())) as seat, closing(Raw(server.port)) as raw:
        claims = [seat.joined(name=f"n{number}")[0] for number in range(2)]
        raw.ask("RENAME TABLE dibs_tombs TO kept_tombs")
        raw.ask("CREATE VIEW dibs_tombs AS SELECT 1 AS id, 2 AS until")  # which nobody can write to
        try:
            for some in (claims, claims[:1]):
                found = leave_all(seat, *some, answered=False)
                assert [isinstance(error, StoreError) for error in found] == [True] * len(some)
        finally:
            raw.ask("DROP VIEW dibs_tombs")
            raw.ask("RENAME TABLE kept_tombs TO dibs_tombs")
        assert leave_all(seat, *claims) == [None, None]


def test_no_deadlock_with_other_verbs(seats: Made, raw: Raw) -> None:
    """Two clients give back, two renew and join, on the same names in various orders."""
    one, other, busy = seats(), seats(), seats()
    before = deadlocks(raw)
    over = threading.Event()
    names = [f"n{number:02}" for number in range(12)]

    def renews() -> None:
        claims = [busy.joined(name=name)[0] for name in reversed(names)]
        while not over.is_set():
            busy.renew(*claims)
            claims += [busy.joined(name=names[len(claims) % 12])[0]]
            if len(claims) > 24:
                leave_all(busy, *claims[:12])
                del claims[:12]
        leave_all(busy, *claims)

    thread = threading.Thread(target=renews, daemon=True)
    thread.start()
    for _ in range(6):
        claims = [(seat, seat.joined(QUEUE, name=name)[0]) for name in names for seat in (one, other)]
        threads = [
            threading.Thread(target=leave_all, args=(seat, *[claim for at, claim in claims[::step_] if at is seat]))
            for seat, step_ in ((one, 1), (other, -1))
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
            assert not each.is_alive()
    over.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not [name for name in names if raw.claims(name)]
    print(f"figure: deadlocks while others renewed: {deadlocks(raw) - before}")
    assert deadlocks(raw) == before


def deadlocks(raw: Raw) -> int:
    return int(raw.ask("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")[0][1])


def test_sessions_are_given_back_together(url: str, raw: Raw) -> None:
    """Those that hold, those that wait, one that the server ended, one that was never there."""
    with closing(Seat(f"{url}&mode=session")) as ana, closing(Seat(f"{url}&mode=session")) as bob:
        held = [ana.joined(name=f"n{number}")[0] for number in range(5)]
        next_in_queue, _ = bob.joined(name="n0")
        waits = [ana.joined(name="n0")[0] for _ in range(3)]
        after, _ = bob.joined(name="n0")
        ((session,),) = raw.ask("SELECT session FROM dibs_sessions WHERE name = %s", raw.key("n4"))
        raw.ask(f"KILL {session}")
        with suppress(StoreError):
            ana.look(held[4])
        ana.holders("elsewhere")  # it is connected
        before = questions(raw)
        assert leave_all(ana, *held, *waits, ana.claim("n9")) == [None] * 9
        assert questions(raw) - before <= 8  # one for each that holds, one for all that waited, ours, a sweep
        assert bob.freed(next_in_queue)
        assert leave_all(bob, next_in_queue) == [None]
        assert bob.freed(after)
        assert leave_all(bob, after) == [None]
        calls = "SELECT 1 FROM information_schema.processlist WHERE info LIKE 'CALL dibs_2_take(%'"
        until(lambda: not raw.ask(calls))
        assert not raw.ask("SELECT 1 FROM dibs_sessions WHERE name LIKE %s AND IS_USED_LOCK(lock_name)", raw.key("n%"))
