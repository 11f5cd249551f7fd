"""`take_now` and `leave_now`: one statement each, in both modes and both APIs, and what sends a claim the long way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import dibs
from dibs.backends.postgresql.connection import PostgresqlConnection
from dibs.backends.postgresql.queue import PostgresqlQueue
from dibs.backends.postgresql.session import SessionQueue
from dibs.core.queue import NOWHERE, QUEUE, UNFAIR, YOURS, Replaced
from dibs.core.rule import RW_CAPACITY, Claim
from dibs.testing.contract.seats import Seat, until
from store.postgresql.rows import Raw

NAME = "dibs:a"
Made = Callable[[], Seat]


in_both_modes = pytest.mark.parametrize("mode", ["lease", "session"])
by_lease = pytest.mark.parametrize("mode", ["lease"])


@pytest.fixture
def made(mode: str, url: str) -> Iterator[Made]:
    """Makes clients that have taken and left the name twice: their statements are prepared, and messages arrive."""
    seats: list[Seat] = []

    def make() -> Seat:
        seat = Seat(f"{url}&mode={mode}")
        seats.append(seat)

        def is_warm() -> bool:
            for _ in range(2):
                seat.leave(seat.joined(name=NAME)[0])
            claim = seat.claim(NAME)
            return seat.queue.take_now(claim, QUEUE, seat.soon) is not None and seat.leave(claim)

        until(is_warm)
        return seat

    yield make
    for seat in seats:
        seat.close()


def take(seat: Seat, claim: Claim, place: Any = QUEUE) -> Any:
    return seat.queue.take_now(claim, place, seat.soon)


@in_both_modes
def test_a_free_name_is_taken_and_left(made: Made) -> None:
    seat = made()
    tokens = []
    for _ in range(3):
        claim = seat.claim(NAME)
        standing = take(seat, claim)
        assert standing.holds
        assert claim.asked
        assert seat.holders(NAME) == [standing.ticket]
        tokens.append(standing.ticket)
        assert seat.queue.leave_now(claim, seat.soon) is True
        assert seat.holders(NAME) == []
    assert tokens == sorted(set(tokens))


@in_both_modes
def test_a_repeated_join_only_reports(made: Made) -> None:
    seat = made()
    claim = seat.claim(NAME)
    standing = take(seat, claim)
    again = seat.join(claim)
    assert again is not None
    assert (again.ticket, again.holds) == (standing.ticket, True)
    assert again.left <= standing.left
    seat.leave(claim)


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


@in_both_modes
def test_a_lost_connection_is_no_answer(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome is unknown; the claim is asked for again, and stands once."""
    seat, usual = made(), PostgresqlConnection.ask_now

    def lost(self: PostgresqlConnection, *request: Any) -> list[bytes]:
        self.conn.send_query_prepared(request[0].name, request[1], request[0].formats)  # type: ignore[union-attr]
        self.conn.flush()  # type: ignore[union-attr]
        self.readiness.wait(30.0)  # the server has done it
        self.close()
        raise dibs.StoreUnavailable("lost")

    claim = seat.claim(NAME)
    monkeypatch.setattr(PostgresqlConnection, "ask_now", lost)
    with pytest.raises(dibs.StoreUnavailable):
        take(seat, claim)
    monkeypatch.setattr(PostgresqlConnection, "ask_now", usual)
    standing = until(lambda: (found := seat.join(claim)) is not None and found.holds and found)
    assert seat.holders(NAME) == [standing.ticket]
    assert seat.leave(claim)


@in_both_modes
def test_a_foreign_exception_closes_the_connection_and_is_raised_as_it_is(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    seat = made()
    closed: list[PostgresqlConnection] = []
    usual = PostgresqlConnection.close

    def close(self: PostgresqlConnection) -> None:
        closed.append(self)
        usual(self)

    monkeypatch.setattr(PostgresqlConnection, "close", close)

    class Interrupt(BaseException):
        pass

    class Poll:
        def poll(self, _: float) -> list[Any]:
            raise Interrupt

    queues: Any = seat.queue
    idle = queues._executor._transport.idle if hasattr(queues, "_polling") else queues._claims.pool._idle
    before = [connection.readiness for connection in idle]
    for readiness in before:
        readiness.readable = Poll()
    claim = seat.claim(NAME)
    with pytest.raises(Interrupt):
        take(seat, claim)
    assert closed
    assert not any(connection in closed for connection in idle)


@by_lease
def test_a_claim_that_was_given_up_does_not_stand(made: Made) -> None:
    seat = made()
    claim = seat.claim(NAME, by=60.0)
    seat.leave(claim, answered=False)
    assert take(seat, claim) is None
    assert seat.join(claim) is None
    assert seat.holders(NAME) == []


@by_lease
def test_a_late_request_does_nothing(made: Made) -> None:
    seat = made()
    claim = seat.claim(NAME, by=-1.0)
    assert take(seat, claim) is None
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
def test_the_two_modes_exclude_each_other(url: str, made: Made) -> None:
    """Also where both are taken by one statement."""
    seat = made()
    with dibs.connect(url) as ana, dibs.connect(f"{url}&mode=session") as bob:
        for client in (ana, bob) * 2:
            client.lock("a").acquire(timeout=60).release()  # type: ignore[union-attr]
        claim = seat.claim(NAME)
        assert take(seat, claim).holds
        other = bob if seat.queue.__class__.__name__ == "PostgresqlQueue" else ana
        with pytest.raises(dibs.Mismatch):
            other.lock("a").acquire(timeout=0)
        assert seat.queue.leave_now(claim, seat.soon) is True
        with other.lock("a", timeout=60), pytest.raises(dibs.Mismatch):
            # In session mode the reason is left to `join`.
            take(seat, refused := seat.claim(NAME)) or seat.join(refused)


@in_both_modes
@pytest.mark.parametrize("layout", [0, 2], ids=["older", "newer"])
def test_a_client_of_another_layout_is_refused_before_it_writes(url: str, raw: Raw, mode: str, layout: int) -> None:
    with dibs.connect(f"{url}&mode={mode}") as old, dibs.connect(f"{url}&mode={mode}") as new:
        for _ in range(3):
            old.lock("a").acquire(timeout=60).release()  # type: ignore[union-attr]
        set_layout(raw, layout)
        before = written(raw)
        for client in (old, new):
            with pytest.raises(dibs.Mismatch, match=f"layout {layout}"):
                client.lock("a").acquire(timeout=60)
            with pytest.raises(dibs.Mismatch):
                client.cell("a").set(b"x", 0)
        assert written(raw) == before


@pytest.mark.parametrize("layout", [0, 2], ids=["older", "newer"])
def test_tables_of_another_layout_are_not_made_anew(url: str, raw: Raw, layout: int) -> None:
    """A client that finds its routines missing makes them, but not beside tables that they do not fit."""
    raw("DROP SCHEMA IF EXISTS {s} CASCADE")
    raw("CREATE SCHEMA {s}")
    set_layout(raw, layout)
    with dibs.connect(url) as client, pytest.raises(dibs.Mismatch, match=f"layout {layout}"):
        client.lock("a").acquire(timeout=60)
    assert raw("SELECT count(*) FROM pg_tables WHERE schemaname = %s", raw.schema) == [(0,)]


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
    for line in (PostgresqlQueue, SessionQueue):
        for verb in ("take_now", "leave_now"):
            monkeypatch.setattr(line, verb, noting(getattr(line, verb), seen))

    async def pairs() -> None:
        async with dibs.aio.connect(f"{url}&mode={mode}") as client:
            lock = client.lock("a", timeout=60)
            for _ in range(100):  # until statements are prepared, and messages arrive
                del seen[:]
                async with lock:
                    pass
                if len(seen) == 2 and all(asyncio.iscoroutine(answer) for answer in seen):
                    return

    asyncio.run(pairs())
    assert len(seen) == 2
    assert all(asyncio.iscoroutine(answer) for answer in seen)


def noting(verb: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    def noted(*request: Any) -> Any:
        seen.append(verb(*request))
        return seen[-1]

    return noted
