"""What a hand-over and a renewal cost: the same however many wait, and one call for all claims."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from dibs.backends.mysql import queue
from dibs.core.queue import YOURS
from dibs.testing.contract.seats import Seat
from store.mysql.rows import Raw


def calls(raw: Raw) -> int:
    return int(raw.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def test_a_hand_off_costs_the_same_however_many_wait(
    seats: Callable[[], Seat], raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SWEEPS", 0.0)  # a sweep removes the rows of earlier tests, hundreds of statements
    figures = {}
    for waiters in (10, 100):
        giver, caller = seats(), seats()
        name = f"line of {waiters}"
        held, _ = giver.joined(name=name)
        first, _ = caller.joined(name=name)
        with ExitStack() as stack:
            others = [caller.joined(name=name)[0] for _ in range(waiters)]
            stack.callback(lambda others=others, caller=caller: [caller.leave(claim) for claim in others])
            caller.told(first)  # it listens
            before = statements(raw)
            giver.leave(held)
            assert caller.hears(first) is YOURS
            figures[waiters] = statements(raw) - before
            caller.leave(first)
    print(f"figure: statements for one hand-off, within routines too: {figures}")
    assert abs(figures[10] - figures[100]) <= 12


def statements(raw: Raw) -> int:
    """Those within routines, too."""
    return int(raw.ask("SHOW GLOBAL STATUS LIKE 'Queries'")[0][1])


def test_claims_are_renewed_together(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"n{number}")[0] for number in range(100)]
    before = calls(raw)
    assert all(standing is not None and standing.holds for standing in seat.renew(*claims))
    assert calls(raw) - before <= 3
    for claim in claims:
        seat.leave(claim)
