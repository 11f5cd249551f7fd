"""The free path: a queue that is not free, or may not be, is not taken by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from dibs.core.queue import QUEUE
from dibs.core.rule import Claim, Prepared, Standing
from dibs.testing.contract.seats import until
from lab.clock import Clock
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.mysql.rows import Raw
from store.mysql.side import FreeSeat, meanwhile_taking

SWEEP = "CALL dibs_2_sweep()"


@pytest.fixture
def seat(url: str) -> Iterator[FreeSeat]:
    with closing(FreeSeat(url)) as made:
        yield made


def taken(seat: FreeSeat, claim: Claim) -> Standing | None:
    found = seat.queue.take_now(claim, QUEUE, seat.soon)
    assert found is None or isinstance(found, Standing)
    return found


def free(seat: FreeSeat, raw: Raw, name: str = "a") -> None:
    """A queue that was used before, and is warm."""
    seat.leave(seat.joined(name=f"{name} before")[0])
    raw.ask("REPLACE INTO dibs_queues (name, special, apart) VALUES (%s, 0, 0)", raw.key(name))


def test_a_pair_is_two_statements(seat: FreeSeat, raw: Raw) -> None:
    free(seat, raw)
    prepared, tickets = Prepared(), []
    for _ in range(3):
        claim = seat.claim("a")
        claim.prepared = prepared
        standing = taken(seat, claim)
        assert standing is not None
        assert standing.holds
        assert raw.claims("a") == [(standing.ticket, claim.id)]
        tickets.append(standing.ticket)
        assert seat.queue.leave_now(claim, seat.soon) is True
        assert raw.claims("a") == []
    assert tickets == sorted(set(tickets))
    assert seat.queue.leave_now(claim, seat.soon) is None, "it does not stand: `leave` says so"


@pytest.mark.gate
def test_a_take_that_waited_for_too_long_does_nothing(seat: FreeSeat, raw: Raw) -> None:
    """The clock is read after the lock of the row."""
    free(seat, raw)
    raw.lock("a")
    claim = seat.claim("a", by=0.2)
    with meanwhile_taking(seat, claim) as found:
        until(lambda: seat.now() > claim.by)
        raw.unlock()
    assert found == [None]
    assert raw.claims("a") == []
    assert seat.join(claim) is None


def test_a_take_that_was_given_up_does_nothing(seat: FreeSeat, raw: Raw) -> None:
    """It is late: a leave came before it, and left a tombstone."""
    free(seat, raw)
    claim = seat.claim("a")
    claim.asked = True
    seat.leave(claim, answered=False)
    assert taken(seat, claim) is None
    assert raw.claims("a") == []
    assert seat.join(claim) is None


@pytest.mark.parametrize("damage", ["special = 7", "id = 'x'", "ticket = ~0", "ticket = 1 << 60"])
def test_a_damaged_head_is_not_free(seat: FreeSeat, raw: Raw, damage: str) -> None:
    free(seat, raw)
    raw.ask(f"UPDATE dibs_queues SET {damage} WHERE name = %s", raw.key("a"))
    assert taken(seat, seat.claim("a")) is None
    raw.ask("DELETE FROM dibs_queues WHERE name = %s", raw.key("a"))


@pytest.mark.gate
def test_a_clock_that_was_set_back_goes_the_long_way(stepped: Server, hands: Clock) -> None:
    """Tickets rise, also of a name that was forgotten meanwhile."""
    with closing(FreeSeat(stepped.url())) as seat, closing(Raw(stepped.port)) as raw:
        free(seat, raw)
        tickets = []
        for back in (0, 60, 120):
            hands.step(-back)
            seat.evict(0, "elsewhere")  # says what the time is
            claim = seat.claim("a")
            standing = taken(seat, claim)
            assert (standing is None) == bool(back)
            standing = standing or seat.join(claim)
            assert standing is not None
            tickets.append(standing.ticket)
            seat.leave(claim)
        hands.step(30)
        until(lambda: raw.ask(SWEEP) and not raw.ask("SELECT 1 FROM dibs_queues WHERE name = 'a'"))
        hands.step(-30)
        seat.evict(0, "elsewhere")
        tickets.append(seat.joined()[1].ticket)
        assert tickets == sorted(set(tickets))


@pytest.mark.gate
def test_a_server_whose_sysdate_is_now_has_no_free_path() -> None:
    """There a statement reads the clock before it waits for a lock."""
    require("mariadb")
    with ExitStack() as stack:
        server = stack.enter_context(Server(MariaDB("--sysdate-is-now")))
        seat, raw = (stack.enter_context(closing(made)) for made in (FreeSeat(server.url()), Raw(server.port)))
        free(seat, raw)
        assert taken(seat, seat.claim("a")) is None
        claim, standing = seat.joined()
        assert standing.holds
        assert seat.leave(claim)
