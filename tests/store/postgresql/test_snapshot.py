"""Beside a transaction that stays open elsewhere nothing can be cleaned up: pairs must not become slow by that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from dibs.testing.contract.seats import Seat
from store.postgresql.rows import Raw

PAIRS = 500
NAME = "dibs:hot"
_WALK = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT ticket FROM {s}.dibs_claims WHERE name = %s AND ticket >= %s"


def pairs(seat: Seat, count: int) -> None:
    for _ in range(count):
        claim, _ = seat.joined(name=NAME)
        seat.leave(claim)


def pages(raw: Raw, since: int) -> int:
    """That a walk of the line looks at, if it begins there."""
    plan: dict[str, Any] = raw(_WALK, NAME, since)[0][0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def test_what_is_left_is_not_walked_over(url: str, raw: Raw, seats: Callable[[], Seat]) -> None:
    """Whoever has been there begins where somebody may still stand. Counted in pages, not timed."""
    seat = seats()
    pairs(seat, 1)
    with closing(psycopg.connect(url.partition("?")[0])) as foreign:
        foreign.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign.execute("SELECT count(*) FROM pg_class")
        pairs(seat, PAIRS)
        raw("SET enable_seqscan = off")
        raw("SET enable_bitmapscan = off")
        floor = seat.line._port.floors.of(NAME)  # type: ignore[attr-defined]
        assert pages(raw, 0) > 12, "there is something to walk over"
        assert pages(raw, floor) < 8
        other = seats()  # who comes new walks over all of it, once
        pairs(other, 1)
        assert other.line._port.floors.of(NAME) > floor  # type: ignore[attr-defined]


def test_tickets_that_were_set_back_are_noticed(url: str, raw: Raw, seat: Seat) -> None:
    """What is known of a line is no longer true then: it is forgotten, and nobody holds beside anybody else."""
    pairs(seat, 2)
    raw("SELECT setval('{s}.dibs_tickets', date_part('epoch', clock_timestamp())::bigint * 1000000 + 3600000000)")
    pairs(seat, 2)
    raw("SELECT setval('{s}.dibs_tickets', date_part('epoch', clock_timestamp())::bigint * 1000000 + 1800000000)")
    raw.plant(NAME, ticket=raw("SELECT nextval('{s}.dibs_tickets')")[0][0])
    seats_claim = seat.claim(name=NAME)
    standing = None
    for _ in range(2):  # once it is noticed the outcome is unknown, and whoever asked asks again
        try:
            standing = seat.join(seats_claim)
        except ConnectionError:
            continue
    assert standing is not None
    assert not standing.holds


def test_tickets_rise_though_the_sequence_was_set_back(raw: Raw, seats: Callable[[], Seat]) -> None:
    """By a fail-over that lost data, or by new tables: tickets follow the clock. A new client knows no floor."""
    pairs(seats(), 1)
    raw("SELECT setval('{s}.dibs_tickets', floor(date_part('epoch', clock_timestamp()))::bigint * 1000000)")
    claim, before = seats().joined(name=NAME)
    raw("DELETE FROM {s}.dibs_claims")
    raw("SELECT setval('{s}.dibs_tickets', 1)")
    _, standing = seats().joined(name=NAME)
    assert standing.ticket > before.ticket, f"a fence would refuse the holder after {claim}"
