"""Beside a transaction that stays open elsewhere nothing can be cleaned up: pairs must not become slow by that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from dibs.core.queue import NOWHERE
from dibs.testing.contract.seats import Seat
from store.postgresql.rows import Raw

pytestmark = pytest.mark.gate

PAIRS = 500
NAME = "dibs:hot"
_WALK = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ticket FROM {s}.dibs_claims WHERE name = %s AND ticket >= %s"


def pairs(seat: Seat, count: int) -> None:
    for _ in range(count):
        claim, _ = seat.joined(name=NAME)
        seat.leave(claim)


def pages(raw: Raw, since: int) -> int:
    """That a walk of the queue looks at, if it begins there."""
    plan: dict[str, Any] = raw(_WALK, NAME, since)[0][0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def fill(raw: Raw, name: str, count: int) -> None:
    """Claims of nobody's, nine on a page."""
    raw(
        f"""INSERT INTO {{s}}.dibs_claims
            SELECT {name}, n, '', '', 'mutex', 1, 1, 1, 1, {2**62}, 0, 0, false, repeat('x', 800)
            FROM generate_series(1, {count}) AS n"""
    )


def test_what_is_left_is_not_walked_over(url: str, raw: Raw, seats: Callable[[], Seat]) -> None:
    """A client begins where a claim may still stand. Counted in pages, not timed."""
    seat = seats()
    pairs(seat, 1)
    with closing(psycopg.connect(url.partition("?")[0])) as foreign:
        foreign.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign.execute("SELECT count(*) FROM pg_class")
        pairs(seat, PAIRS)
        raw("SET enable_seqscan = off")
        raw("SET enable_bitmapscan = off")
        floor = seat.queue._executor.floors.of(NAME)  # type: ignore[attr-defined]
        assert pages(raw, 0) > 12, "there is something to walk over"
        assert pages(raw, floor) < 8


def test_who_comes_new_begins_where_others_wrote_down(raw: Raw, seats: Callable[[], Seat]) -> None:
    """One join in 1024 writes it down. A planted claim below it is not seen: it shows where a walk begins."""
    seat = seats()
    pairs(seat, 2)
    assert raw("SELECT * FROM {s}.dibs_floors") == []
    clock = "date_part('epoch', clock_timestamp())::bigint * 1000000"
    raw(f"SELECT setval('{{s}}.dibs_tickets', ({clock} + 3600000000) / 1024 * 1024 + 1023)")
    claim, standing = seat.joined(name=NAME)
    assert standing.ticket % 1024 == 0
    assert raw("SELECT * FROM {s}.dibs_floors") == [(NAME, standing.ticket)]
    seat.leave(claim)
    raw.plant(NAME, ticket=1)
    newcomer = seats()
    assert newcomer.holders(NAME) == []
    claim, standing = newcomer.joined(name=NAME)
    assert standing.holds
    assert newcomer.holders(NAME) == [standing.ticket]
    newcomer.queue._executor.floors.forget()  # type: ignore[attr-defined]
    found = newcomer.look(claim)
    assert found is not None
    assert found.holds
    newcomer.queue._executor.floors.forget()  # type: ignore[attr-defined]
    assert newcomer.leave(claim)


def test_who_walked_for_long_writes_down_where_the_queue_begins(raw: Raw, seats: Callable[[], Seat], url: str) -> None:
    seat = seats()
    pairs(seat, 1)
    with closing(psycopg.connect(url.partition("?")[0])) as foreign:
        foreign.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign.execute("SELECT count(*) FROM pg_class")
        fill(raw, f"'{NAME}'", 1000)
        raw("DELETE FROM {s}.dibs_claims")
        _, first = seats().joined(name="dibs:another")
        assert raw("SELECT * FROM {s}.dibs_floors") == []
        standing = seats().joined(name=NAME)[1]
        assert raw("SELECT * FROM {s}.dibs_floors") == [(NAME, standing.ticket)]
        assert standing.ticket > first.ticket
        raw("DELETE FROM {s}.dibs_floors")
        assert not seats().joined(NOWHERE, name=NAME)[1].holds
        assert raw("SELECT * FROM {s}.dibs_floors") == [(NAME, standing.ticket)], "also who does not get it"


def test_a_floor_that_cannot_be_true_is_forgotten(raw: Raw, seat: Seat) -> None:
    pairs(seat, 1)
    raw("INSERT INTO {s}.dibs_floors VALUES (%s, %s)", NAME, 2**62)
    seat.queue._executor.floors.forget()  # type: ignore[attr-defined]
    claim = seat.claim(name=NAME)
    with pytest.raises(ConnectionError):
        seat.join(claim)
    standing = seat.join(claim)
    assert standing is not None
    assert standing.holds


def test_a_sweep_looks_at_a_part_of_what_is_left(raw: Raw, seat: Seat) -> None:
    """Counted in pages."""
    pairs(seat, 1)
    fill(raw, "'dibs:' || n", 5000)
    assert raw("SELECT pg_relation_size('{s}.dibs_claims') / 8192 > 500") == [(True,)]
    plan: dict[str, Any] = {}
    for _ in range(2):  # with the first one the session also reads what it needs to know
        plan = raw("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT {s}.dibs_2_sweep()")[0][0][0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 400


def test_tickets_rise_though_the_sequence_was_set_back(raw: Raw, seats: Callable[[], Seat]) -> None:
    """By a fail-over that lost data, or by new tables: tickets follow the clock. A new client knows no floor."""
    pairs(seats(), 1)
    raw("SELECT setval('{s}.dibs_tickets', floor(date_part('epoch', clock_timestamp()))::bigint * 1000000)")
    claim, before = seats().joined(name=NAME)
    raw("DELETE FROM {s}.dibs_claims")
    raw("SELECT setval('{s}.dibs_tickets', 1)")
    _, standing = seats().joined(name=NAME)
    assert standing.ticket > before.ticket, f"a fence would refuse the holder after {claim}"
