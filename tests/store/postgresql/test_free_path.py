"""`take_now` and `leave_now`: one statement each, in both modes and both APIs, and what sends a claim the long way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import dibs
from dibs.backends.postgresql.queue import PostgresqlQueue
from dibs.backends.postgresql.session import SessionQueue
from dibs.core.queue import NOWHERE, QUEUE, UNFAIR, YOURS, Replaced
from dibs.core.rule import RW_CAPACITY, Claim
from dibs.testing.contract.seats import Seat, until
from store.postgresql.rows import Raw

NAME = "dibs:a"
Made = Callable[[], Seat]


by_lease = pytest.mark.parametrize("mode", ["lease"])
in_both_modes = pytest.mark.parametrize("mode", ["lease", pytest.param("session", marks=pytest.mark.gate)])


@pytest.fixture
def made(mode: str, url: str) -> Iterator[Made]:
    """Makes clients that have taken and left the name twice: their statements are prepared, and messages arrive."""
    stack = ExitStack()

    def make() -> Seat:
        seat = stack.enter_context(closing(Seat(f"{url}&mode={mode}")))

        def is_warm() -> bool:
            for _ in range(2):
                seat.leave(seat.joined(name=NAME)[0])
            claim = seat.claim(NAME)
            return seat.queue.take_now(claim, QUEUE, seat.soon) is not None and seat.leave(claim)

        until(is_warm)
        return seat

    with stack:
        yield make


def take(seat: Seat, claim: Claim, place: Any = QUEUE) -> Any:
    return seat.queue.take_now(claim, place, seat.soon)


@pytest.mark.parametrize("mode", ["lease", "session"])
def test_a_free_name_is_taken_and_left(made: Made) -> None:
    """A join that repeats it only reports."""
    seat = made()
    tokens = []
    for _ in range(3):
        claim = seat.claim(NAME)
        standing = take(seat, claim)
        assert standing.holds
        assert claim.asked
        again = seat.join(claim)
        assert again is not None
        assert (again.ticket, again.holds) == (standing.ticket, True)
        assert again.left <= standing.left
        assert seat.holders(NAME) == [standing.ticket]
        tokens.append(standing.ticket)
        assert seat.queue.leave_now(claim, seat.soon) is True
        assert seat.holders(NAME) == []
    assert tokens == sorted(set(tokens))


@in_both_modes
def test_a_busy_name_is_waited_for_and_its_release_tells(made: Made) -> None:
    ana, bob = made(), made()
    held, waiting, trying = ana.claim(NAME), bob.claim(NAME), bob.claim(NAME)
    assert take(ana, held).holds
    assert not take(bob, trying, NOWHERE).holds
    assert not take(bob, waiting).holds
    assert ana.queue.leave_now(held, ana.soon) is True
    assert bob.freed(waiting)
    assert bob.queue.leave_now(waiting, bob.soon) is True


@by_lease
def test_successors_that_share_are_all_told(made: Made) -> None:
    ana, bob = made(), made()
    rw: dict[str, Any] = {"kind": "rw", "capacity": RW_CAPACITY}
    writer = ana.claim(NAME, weight=RW_CAPACITY, **rw)
    readers = [bob.claim(NAME, **rw) for _ in range(2)]
    assert take(ana, writer).holds
    assert not any(take(bob, reader).holds for reader in readers)
    assert ana.queue.leave_now(writer, ana.soon) is True
    assert all(bob.freed(reader) for reader in readers)


@in_both_modes
def test_a_claim_that_was_removed_did_not_stand(made: Made) -> None:
    ana, bob = made(), made()
    claim = ana.claim(NAME)
    token = take(ana, claim).ticket
    assert bob.evict(token, NAME)
    assert (ana.queue.leave_now(claim, ana.soon) or ana.leave(claim)) is False


@by_lease
def test_a_claim_that_was_given_up_or_is_late_does_not_stand(made: Made) -> None:
    seat = made()
    late, given_up = seat.claim(NAME, by=-1.0), seat.claim(NAME, by=60.0)
    seat.leave(given_up, answered=False)
    assert take(seat, late) is None
    assert take(seat, given_up) is None
    assert seat.join(given_up) is None
    assert seat.holders(NAME) == []


@by_lease
def test_a_damaged_or_expired_claim_in_front_is_not_a_free_queue(made: Made, raw: Raw) -> None:
    seat = made()
    ((ticket,),) = raw("SELECT nextval('{s}.dibs_tickets')")
    raw.plant(NAME, ticket=ticket, kind="rw", capacity=1_000_000, weight=1_000_000)
    with pytest.raises(dibs.Mismatch):
        take(seat, seat.claim(NAME))
    raw("UPDATE {s}.dibs_claims SET until = 1 WHERE name = %s", NAME)
    claim = seat.claim(NAME)
    assert take(seat, claim).holds
    assert raw.claims(NAME) == [claim.id]
    seat.leave(claim)


@by_lease
def test_those_outside_are_told_by_a_claim_that_was_alone(made: Made) -> None:
    ana, bob = made(), made()
    held, outside = ana.claim(NAME), bob.claim(NAME)
    assert take(ana, held).holds
    assert take(bob, outside, UNFAIR).ticket == 0
    assert ana.queue.leave_now(held, ana.soon) is True
    assert bob.hears(outside) not in (None, YOURS)


@by_lease
def test_tables_that_were_replaced_are_not_written_to(made: Made, raw: Raw) -> None:
    seat = made()
    raw("UPDATE {s}.dibs_store SET id = 'another'")
    claim = seat.claim(NAME)
    assert take(seat, claim) is None
    assert not claim.asked
    with pytest.raises(Replaced):
        seat.join(claim)
    assert raw.claims(NAME) == []


@by_lease
def test_a_sequence_that_was_set_back_gives_no_lower_token(made: Made, raw: Raw) -> None:
    """By less than what the clock shows: the client has seen a higher token."""
    seat = made()
    raw("SELECT setval('{s}.dibs_tickets', last_value + 3600000000) FROM {s}.dibs_tickets")
    claim = seat.claim(NAME)
    highest = take(seat, claim).ticket
    assert seat.queue.leave_now(claim, seat.soon) is True
    raw("SELECT setval('{s}.dibs_tickets', %s)", highest - 10)
    with pytest.raises(Replaced):
        take(seat, seat.claim(NAME))
    assert seat.holders(NAME) == []


@in_both_modes
def test_a_client_of_another_layout_is_refused_before_it_writes(url: str, raw: Raw, mode: str) -> None:
    with dibs.connect(f"{url}&mode={mode}") as old, dibs.connect(f"{url}&mode={mode}") as new:
        for _ in range(3):
            old.lock("a").acquire(timeout=60).release()  # type: ignore[union-attr]
        set_layout(raw, 2)
        before = written(raw)
        for client in (old, new):
            with pytest.raises(dibs.Mismatch, match="layout 2"):
                client.lock("a").acquire(timeout=60)
            with pytest.raises(dibs.Mismatch):
                client.cell("a").set(b"x", 0)
        assert written(raw) == before


def set_layout(raw: Raw, layout: int) -> None:
    body = f"RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT {layout}'"
    raw(f"CREATE OR REPLACE FUNCTION {{s}}.dibs_layout() {body}")


def written(raw: Raw) -> list[Any]:
    tables = ("dibs_claims", "dibs_tombs", "dibs_cells", "dibs_writes", "dibs_keys", "dibs_outsiders", "dibs_watchers")
    return [raw(f"SELECT * FROM {{s}}.{table} ORDER BY 1") for table in tables]


@in_both_modes
def test_in_asyncio_a_free_name_is_asked_for_at_once(url: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is sent by the call itself, and its reply awaited."""
    seen: list[Any] = []

    def noting(verb: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*request: Any) -> Any:
            seen.append(verb(*request))
            return seen[-1]

        return noted

    for queue in (PostgresqlQueue, SessionQueue):
        for verb in ("take_now", "leave_now"):
            monkeypatch.setattr(queue, verb, noting(getattr(queue, verb)))

    async def pairs() -> bool:
        async with dibs.aio.connect(f"{url}&mode={mode}") as client:
            lock = client.lock("a", timeout=60)
            for _ in range(100):  # until statements are prepared, and messages arrive
                del seen[:]
                async with lock:
                    pass
                if len(seen) == 2 and all(asyncio.iscoroutine(answer) for answer in seen):
                    return True
        return False

    assert asyncio.run(pairs())
