"""Few rows stay in the tables, however long somebody watches, and also of the dead."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

import dibs
from dibs.core.cells import CellKey
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from store.postgresql.rows import MICROSECONDS, Raw

pytestmark = pytest.mark.gate

ROUNDS = 4


def test_who_watches_for_long_leaves_one_row(raw: Raw, seat: Seat) -> None:
    """Each look is noted under another key; the last one's is over by then."""
    cells = seat.store.open_cells(seat.runtime, seat.me)
    cell_key = CellKey("cell", "dibs:a")
    seat.leave(seat.joined(name="dibs:warm")[0])
    step(cells.get(cell_key, seat.soon))  # it has connected by then
    for _ in range(ROUNDS):
        for watch in (
            lambda key, end: seat.queue.await_change("dibs:a", 0, key, end),
            lambda key, end: cells.watch(cell_key, 0, key, end),
        ):
            key = seat.runtime.fresh_id()
            seat.me.inbox.expect(key)
            with suppress(dibs.StoreUnavailable):  # a busy machine: the row may be there all the same
                step(watch(key, seat.now() + 0.3))
            seat.me.inbox.forget(key)
    cells.close()
    rows = raw("SELECT space, count(*) FROM {s}.dibs_watchers GROUP BY space ORDER BY space")
    assert [space for space, _ in rows] == ["cell", "line"]
    assert all(count <= 2 for _, count in rows), rows


def test_clients_that_only_lock_remove_what_the_dead_left(raw: Raw, seats: Callable[[], Seat]) -> None:
    """One leave of some thousands also sweeps; not only who comes new."""
    seat = seats()
    seat.leave(seat.joined(name="dibs:warm")[0])
    over = int(time.time() * MICROSECONDS) - 120 * MICROSECONDS
    raw.plant("dibs:dead", ticket=1, until=over)

    def swept() -> bool:
        for _ in range(50):
            step(seat.queue.leave_all([(seat.claim(name="dibs:a"), True)], seat.soon))  # type: ignore[attr-defined]
        return raw("SELECT * FROM {s}.dibs_claims") == []

    until(swept)
