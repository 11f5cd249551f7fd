"""Costs that stay bounded: of a hand-over, of renewals, beside a long snapshot. Tables that are dropped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

import dibs
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.mysql import queue
from dibs.backends.mysql.address import Address
from dibs.backends.mysql.connection import Dialler
from dibs.core.queue import YOURS
from dibs.runtime.threads import ThreadRuntime
from dibs.testing.contract.seats import Seat
from dibs.url import parse
from lab.servers.supervisor import Server
from store.mysql.rows import Raw

pytestmark = pytest.mark.gate


def test_a_long_snapshot_elsewhere_keeps_nobody_waiting(server: Server, name: str) -> None:
    """It keeps old rows in the tables; the walk does not pass over them."""
    with dibs.connect(server.url()) as client, closing(Raw(server.port)) as raw, closing(Raw(server.port)) as looks:
        lock = client.lock(name)
        lock.acquire().release()
        raw.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        raw.ask("SELECT COUNT(*) FROM dibs_claims")
        for _ in range(150):
            lock.acquire().release()
        before = status(looks, "Handler_read%")
        for _ in range(10):
            lock.acquire().release()
        each = (status(looks, "Handler_read%") - before) / 10
        print(f"figure: rows that a pair reads behind 150 others that cannot be purged: {each:.0f}")
        assert each < 60


def status(raw: Raw, like: str) -> int:
    """The sum of these counters of the server; its `Queries` are statements within routines, too."""
    return sum(int(value) for _, value in raw.ask("SHOW GLOBAL STATUS LIKE %s", like))


def test_tables_that_were_made_anew_have_none_of_our_claims(server: Server, name: str) -> None:
    """The next request tells a client so: all it holds is lost, long before a renewal is due."""
    with dibs.connect(server.url(), lease=60) as client, dibs.connect(server.url(), lease=60) as other:
        old = [client.lock(f"{name}-{number}").acquire() for number in range(3)]
        with closing(Raw(server.port)) as raw:
            raw.ask("DROP DATABASE dibs")
            raw.ask("CREATE DATABASE dibs")
        with other.lock(f"{name}-0", timeout=0) as new:
            assert new.token > max(hold.token for hold in old)
            with client.lock(f"{name}-elsewhere") as again:  # asked again, and then of the new store
                assert not [hold for hold in old if not hold.lost.is_set()]
                for hold in old:
                    with pytest.raises(dibs.LockLost):
                        hold.release()
                again.check()
                assert client.lock(f"{name}-0").acquire(timeout=0) is None
            new.check()


def test_a_dial_whose_deadline_has_passed_is_tried_all_the_same() -> None:
    """A negative timeout would fail inside PyMySQL, which leaves its socket open then."""
    now = ThreadRuntime().now
    dialler = Dialler(Address.of(parse("mysql://127.0.0.1:1/dibs")), now, RoundTrip())
    with pytest.raises(dibs.StoreUnavailable, match="Connection refused"):
        dialler.connect(now() - 1)


def test_a_hand_off_costs_the_same_however_many_wait(
    seats: Callable[[], Seat], raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SWEEPS", 0.0)  # a sweep removes the rows of earlier tests, hundreds of statements
    figures = {}
    for waiters in (10, 100):
        giver, caller = seats(), seats()
        name = f"queue of {waiters}"
        held, _ = giver.joined(name=name)
        first, _ = caller.joined(name=name)
        with ExitStack() as stack:
            others = [caller.joined(name=name)[0] for _ in range(waiters)]
            stack.callback(lambda others=others, caller=caller: [caller.leave(claim) for claim in others])
            caller.told(first)  # it listens
            before = status(raw, "Queries")
            giver.leave(held)
            assert caller.hears(first) is YOURS
            figures[waiters] = status(raw, "Queries") - before
            caller.leave(first)
    print(f"figure: statements for one hand-off, within routines too: {figures}")
    assert abs(figures[10] - figures[100]) <= 12


def test_claims_are_renewed_together(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"n{number}")[0] for number in range(100)]
    before = status(raw, "Questions")
    assert all(standing is not None and standing.holds for standing in seat.renew(*claims))
    assert status(raw, "Questions") - before <= 3
    for claim in claims:
        seat.leave(claim)
