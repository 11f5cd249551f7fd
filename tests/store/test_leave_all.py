"""Many claims given back in one request: each as `leave` does it. The fate of one says nothing about the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from dibs.backends.common.atomic_queue import Tombs
from dibs.core.queue import ELECTION
from dibs.core.rule import Claim
from dibs.errors import StoreError
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from lab.servers import shared
from store.postgresql.rows import Raw

PATIENCE = 60.0
STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: f"memory://{shared.unique()}",
    "sqlite": lambda path: f"sqlite:///{path}/locks.db",
    "postgresql": shared.fresh_postgresql,
    "mysql": shared.fresh_mariadb,
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(params=STORES)
def seats(request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack) -> Callable[[], Seat]:
    url = STORES[request.param](tmp_path)
    return lambda: stack.enter_context(closing(Seat(url)))


def leave_all(seat: Seat, *claims: Claim, answered: bool = True) -> list[StoreError | None]:
    return list(step(seat.queue.leave_all([(claim, answered) for claim in claims], seat.soon)))


def test_exactly_those_who_are_freed_are_told(seats: Callable[[], Seat]) -> None:
    """Several names, in any order, some twice; a claim between the holder and the waiters leaves, too."""
    ana, bob = seats(), seats()
    held = {name: ana.joined(name=name)[0] for name in "bac"}
    between = {name: ana.joined(name=name)[0] for name in held}
    waiting = {name: [bob.joined(name=name)[0] for _ in range(2)] for name in held}
    leaving = [held["b"], between["b"], between["a"], held["b"], ana.claim("b"), ana.claim("nobody's")]
    assert leave_all(ana, *leaving) == [None] * 6
    assert bob.freed(waiting["b"][0])
    for claim in (waiting["b"][1], *waiting["a"], *waiting["c"]):
        assert bob.passed_over(claim)
    assert ana.told(between["b"]) is None, "nobody is told who leaves"
    assert ana.holders("a") == [held["a"].ticket]
    assert ana.waiters("a") == [claim.ticket for claim in waiting["a"]]
    assert (ana.holders("b"), ana.waiters("b")) == ([waiting["b"][0].ticket], [waiting["b"][1].ticket])


def test_hundreds_of_names_are_given_back_at_once(seats: Callable[[], Seat]) -> None:
    seat = seats()
    claims = [seat.joined(name=f"n{number:03}")[0] for number in range(300)]
    assert leave_all(seat, *claims, *claims) == [None] * 600
    assert seat.names() == []


def test_followers_of_an_election_are_told(seats: Callable[[], Seat]) -> None:
    ana, bob = seats(), seats()
    leading, standing = ana.joined(name="e", kind=ELECTION)
    elsewhere, _ = ana.joined(name="n")
    key = bob.runtime.fresh_id()
    bob.me.inbox.expect(key)
    following = threading.Thread(
        target=lambda: step(bob.queue.await_change("e", standing.ticket, key, bob.now() + 2 * PATIENCE)), daemon=True
    )
    following.start()
    assert leave_all(ana, elsewhere, leading) == [None, None]
    following.join(PATIENCE)
    assert not following.is_alive()


def test_one_that_is_refused_does_not_keep_the_others(tmp_path: Path, stack: ExitStack) -> None:
    place, _, schema = (url := shared.fresh_postgresql(tmp_path)).partition("?schema=")
    seat = stack.enter_context(closing(Seat(url)))
    raw = Raw(stack.enter_context(closing(psycopg.connect(place, autocommit=True))), schema)
    claims = [seat.joined(name=name)[0] for name in ("a", "bad", "c")]
    raw("""CREATE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF OLD.name = 'bad' THEN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END IF; RETURN OLD;
           END $$""")
    raw("CREATE TRIGGER refuse BEFORE DELETE ON {s}.dibs_claims FOR EACH ROW EXECUTE PROCEDURE {s}.refuse()")
    first, second, third = leave_all(seat, *claims)
    assert (first, third) == (None, None)
    assert isinstance(second, StoreError)
    assert raw("SELECT name FROM {s}.dibs_claims") == [("bad",)]


@pytest.mark.parametrize("store", [pytest.param("postgresql", marks=pytest.mark.gate), "mysql"])
@pytest.mark.parametrize("answered", [True, pytest.param(False, marks=pytest.mark.gate)])
def test_sessions_are_given_back_together(tmp_path: Path, stack: ExitStack, store: str, answered: bool) -> None:
    """Holders, waiters, and a claim that never came."""
    url = f"{STORES[store](tmp_path)}&mode=session"
    ana, bob = (stack.enter_context(closing(Seat(url))) for _ in range(2))
    held = [ana.joined(name=f"n{number}")[0] for number in range(3)]
    next_one, _ = bob.joined(name="n0")
    waiting = [ana.joined(name="n0")[0] for _ in range(2)]
    last, _ = bob.joined(name="n0")
    gone = ana.claim("n9")
    assert leave_all(ana, *held, *waiting, gone, answered=answered) == [None] * 6
    for claim in (next_one, last):
        assert bob.freed(claim)
        assert until(lambda claim=claim: bob.look(claim)).holds
        assert leave_all(bob, claim) == [None]
    for number in (1, 2):
        assert bob.joined(name=f"n{number}")[1].holds
    assert answered or ana.join(gone) is None


def test_a_claim_that_left_is_known_for_as_long_as_its_join_can_come() -> None:
    tombs = Tombs()
    for instant in range(1000):
        tombs.bury(b"%d" % instant, instant + 5.0, float(instant))
    assert sorted(tombs) == [b"%d" % instant for instant in range(995, 1000)]
