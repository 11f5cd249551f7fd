"""Operators change the tables while clients live: never two holders of one name, never a token that came before.

The interleavings, with F the floor of a name as an old client knows it ("no ticket below F stands there any more"):

1. `DROP SCHEMA`; new clients make the tables; the sequence begins at 1. A raises it to the clock, under a lock; B, on
   another name, does not get that lock and keeps ticket 2. An old client joins B's name with its floor F: it does not
   see ticket 2, and its own ticket is above F. Two holders, and B's token is below all earlier ones.
2. The same after `ALTER SEQUENCE ... RESTART`.
3. The sequence is set back below a claim that stands: the next claim gets a lower ticket, stands before the holder, and
   its first renewal says that it holds.
4. Tables made anew, or restored from an older dump: an old client goes on with holds that stand nowhere until it next
   renews them, whatever else it asks in between.

So the sequence begins at the clock, and a ticket that is behind the clock is never used (1, 2). A ticket that is not
above all that stands is not used either (3); one that is not above all that its client was given shows that the
sequence was set back, which makes another epoch: floors may be wrong. Every verb carries the epoch that the client saw
first; a verb of another epoch does nothing, and all holds of that client are lost (4).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import dibs
from dibs.core.queue import Replaced
from dibs.core.rule import Standing
from dibs.testing.contract.seats import Seat, until
from dibs.testing.contract.test_cells import CellsClient
from store.postgresql.rows import Raw

pytestmark = pytest.mark.gate

NAME = "dibs:hot"
_HOUR = 3_600_000_000
DROP, RESTART = 'DROP SCHEMA "{schema}" CASCADE', "ALTER SEQUENCE {s}.dibs_tickets RESTART"


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(url.partition("?")[0])) as made:
        yield made


def used(seat: Seat, name: str = NAME) -> int:
    """It was here, and knows where the queue begins; its token."""
    claim, standing = seat.joined(name=name)
    seat.leave(claim)
    return standing.ticket


def insisting(seat: Seat, name: str = NAME) -> Standing:
    """As whoever waits does: what was refused is asked again."""
    claim = seat.claim(name=name, by=60.0)

    def asked() -> Standing | None:
        try:
            return seat.join(claim)
        except dibs.StoreUnavailable:
            return None

    standing: Standing = until(asked)
    return standing


def harmed(raw: Raw, sql: str) -> None:
    raw(sql.replace("{schema}", raw.schema))


@pytest.mark.parametrize("harm", [DROP, RESTART], ids=["dropped", "restarted"])
def test_who_does_not_get_to_raise_the_tickets_keeps_no_low_one(
    raw: Raw, seats: Callable[[], Seat], other: psycopg.Connection[Any], harm: str
) -> None:
    """Interleavings 1 and 2, with the lock under which tickets are raised held by hand."""
    old, new = seats(), seats()
    before = used(old)
    ((key,),) = raw("SELECT {s}.dibs_2_key('tickets', '')")
    harmed(raw, harm)
    found: list[Standing] = []
    with other.transaction():
        other.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
        late = threading.Thread(target=lambda: found.append(insisting(new)))
        late.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: found or raw(waiting)[0][0])
    late.join()
    used(seats(), "dibs:another")
    assert found[0].holds
    assert found[0].ticket > before, "a token that is below an earlier one"
    assert not insisting(old).holds, "two holders"


def test_a_claim_never_comes_to_stand_before_others(raw: Raw, seats: Callable[[], Seat]) -> None:
    """Interleaving 3: the sequence is ahead of the clock, and set back, to where the clock does not show it."""
    clock = "date_part('epoch', clock_timestamp())::bigint * 1000000"
    used(seats(), "dibs:another")
    raw(f"SELECT setval('{{s}}.dibs_tickets', {clock} + {_HOUR})")
    holder = seats()
    claim, standing = holder.joined(name=NAME, lease=60)
    assert standing.holds
    raw(f"SELECT setval('{{s}}.dibs_tickets', {clock} + {_HOUR // 2})")
    newcomer = seats()
    late, behind = newcomer.joined(name=NAME)
    assert behind.ticket > standing.ticket
    for seat, one, holds in ((newcomer, late, False), (holder, claim, True)):
        found = seat.look(one)
        assert found is not None
        assert found.holds is holds


def test_tickets_that_were_set_back_a_little_are_noticed(raw: Raw, seats: Callable[[], Seat]) -> None:
    """By too little for the clock to show it: by whoever has seen a higher one, on whichever name."""
    seat = seats()
    before = used(seat)
    raw("SELECT setval('{s}.dibs_tickets', date_part('epoch', clock_timestamp())::bigint * 1000000 + %s)", _HOUR)
    high = used(seat)
    raw("SELECT setval('{s}.dibs_tickets', %s)", high - 5)
    with pytest.raises(Replaced):
        used(seat, "dibs:another")
    assert used(seat, "dibs:another") > high > before


@pytest.mark.parametrize("harm", [DROP, "DROP TABLE {s}.dibs_claims"], ids=["schema", "table"])
def test_whatever_is_asked_next_shows_that_all_is_lost(raw: Raw, url: str, harm: str) -> None:
    """Interleaving 4: with a long lease the next renewal is far away."""
    with dibs.connect(url, lease=600) as client, dibs.connect(url, lease=600) as rival:
        hold = client.lock("a").acquire(timeout=30)
        assert hold is not None
        harmed(raw, harm)
        assert rival.lock("b").acquire(timeout=30)
        with client.lock("c", timeout=30):
            assert hold.lost.wait(60)
            assert rival.lock("a").acquire(timeout=30).token > hold.token


def test_an_old_client_does_nothing_to_new_tables(raw: Raw, seats: Callable[[], Seat]) -> None:
    old = CellsClient(seats())
    assert old.set(b"old", 0) == 1
    harmed(raw, DROP)
    used(seats(), "dibs:another")
    with pytest.raises(Replaced):
        old.set(b"new", 0)
    assert old.get().version == 0


@pytest.mark.parametrize("table", ["dibs_claims", "dibs_cells", "dibs_store"])
def test_tables_are_not_truncated(raw: Raw, seat: Seat, table: str) -> None:
    used(seat)
    with pytest.raises(psycopg.errors.RaiseException, match="locks may be held"):
        raw(f"TRUNCATE {{s}}.{table}")
