"""Many claims given back at once: the effects of `leave` for each of them, in one round trip."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import dibs
from dibs.core.queue import UNFAIR
from dibs.core.rule import Claim
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from store.postgresql.rows import Raw


def leave_all(seat: Seat, *leaving: tuple[Claim, bool]) -> list[dibs.StoreError | None]:
    return list(step(seat.queue.leave_all(leaving, seat.soon)))  # type: ignore[attr-defined]


def test_exactly_those_who_are_freed_are_told(raw: Raw, seats: Callable[[], Seat]) -> None:
    """Also where those in between leave too; on several names, in any order, and twice."""
    ana, bob = seats(), seats()
    held = {name: ana.joined(name=name)[0] for name in ("dibs:b", "dibs:a", "dibs:c")}
    between = {name: ana.joined(name=name)[0] for name in held}
    waiting = {name: [bob.joined(name=name)[0] for _ in range(2)] for name in held}
    leaving = [(held["dibs:b"], True), (between["dibs:b"], True), (between["dibs:a"], True), (held["dibs:b"], True)]
    assert leave_all(ana, *leaving) == [None] * 4
    assert raw.claims("dibs:b") == [claim.id for claim in waiting["dibs:b"]]
    assert raw.claims("dibs:a") == [held["dibs:a"].id, *(claim.id for claim in waiting["dibs:a"])]
    assert bob.freed(waiting["dibs:b"][0])
    for claim in (waiting["dibs:b"][1], *waiting["dibs:a"], *waiting["dibs:c"]):
        assert bob.passed_over(claim)
    assert ana.told(between["dibs:b"]) is None, "nobody is told who leaves"


def test_what_is_not_there_is_done(seat: Seat) -> None:
    claim, _ = seat.joined(name="dibs:a")
    assert seat.leave(claim)
    assert leave_all(seat, (claim, True), (seat.claim(name="dibs:b"), True)) == [None, None]


def test_a_join_that_was_not_answered_leaves_a_tombstone(raw: Raw, seat: Seat) -> None:
    """Also if it found the claim; and none is left for who was answered."""
    seat.leave(seat.joined(name="dibs:warm")[0])
    there, _ = seat.joined(name="dibs:a")
    late, answered = seat.claim(name="dibs:b", by=60.0), seat.joined(name="dibs:c")[0]
    assert leave_all(seat, (there, False), (late, False), (answered, True)) == [None] * 3
    assert seat.join(late) is None
    assert {bytes(id) for (id,) in raw("SELECT id FROM {s}.dibs_tombs")} == {there.id, late.id}


def test_who_waits_outside_is_no_longer_noted(raw: Raw, seats: Callable[[], Seat]) -> None:
    ana, bob = seats(), seats()
    held, _ = ana.joined(name="dibs:a")
    outside, _ = bob.joined(UNFAIR, name="dibs:a")
    other, _ = bob.joined(UNFAIR, name="dibs:a")
    assert leave_all(bob, (outside, True)) == [None]
    assert [bytes(id) for (id,) in raw("SELECT id FROM {s}.dibs_outsiders")] == [other.id]
    leave_all(ana, (held, True))
    assert bob.hears(other) is not None
    assert raw("SELECT id FROM {s}.dibs_outsiders") == []


def test_one_that_is_refused_does_not_keep_the_others(raw: Raw, seat: Seat) -> None:
    claims = [seat.joined(name=name)[0] for name in ("dibs:a", "dibs:bad", "dibs:c")]
    raw("""CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF OLD.name = 'dibs:bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END IF; RETURN OLD;
           END $$""")
    raw("CREATE TRIGGER refuse BEFORE DELETE ON {s}.dibs_claims FOR EACH ROW EXECUTE PROCEDURE {s}.refuse()")
    first, second, third = leave_all(seat, *((claim, True) for claim in claims))
    assert (first, third) == (None, None)
    assert isinstance(second, dibs.StoreError)
    assert raw("SELECT name FROM {s}.dibs_claims") == [("dibs:bad",)]


def test_crowds_that_leave_in_opposite_orders(raw: Raw, seats: Callable[[], Seat]) -> None:
    """Beside joins and renewals of the same names: nobody waits in a circle."""
    names = [f"dibs:{number}" for number in range(20)]
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = raw(deadlocks)
    crowd, failed = [seats() for _ in range(3)], list[BaseException]()

    def work(seat: Seat, order: list[str]) -> None:
        try:
            for _ in range(4):
                claims = [seat.joined(name=name)[0] for name in order]
                seat.renew(*claims)
                assert leave_all(seat, *((claim, True) for claim in claims)) == [None] * len(claims)
        except BaseException as error:
            failed.append(error)

    orders = (names, names[::-1], names[10:] + names[:10])
    threads = [threading.Thread(target=work, args=pair) for pair in zip(crowd, orders, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert raw("SELECT count(*) FROM {s}.dibs_claims") == [(0,)]
    assert raw(deadlocks) == before


@pytest.mark.parametrize("answered", [True, False])
def test_in_session_mode(url: str, answered: bool, seats: Callable[[], Seat]) -> None:
    one, other = Seat(f"{url}&mode=session"), Seat(f"{url}&mode=session")
    try:
        held = [one.joined(name=f"dibs:{number}")[0] for number in range(3)]
        theirs, _ = other.joined(name="dibs:0")
        waiting = one.joined(name="dibs:0")[0]
        gone = one.claim(name="dibs:9")
        leaving = [(claim, answered) for claim in (*held, waiting, gone)]
        assert leave_all(one, *leaving) == [None] * len(leaving)
        assert other.freed(theirs)
        assert until(lambda: other.look(theirs)).holds
        for number in (1, 2):
            assert other.joined(name=f"dibs:{number}")[1].holds
        assert one.join(gone) is None or answered
    finally:
        one.close()
        other.close()
