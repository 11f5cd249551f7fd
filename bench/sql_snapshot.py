#!/usr/bin/env python3
"""Many pairs on one name while somebody else's transaction stays open, which keeps the server from tidying up.

  bench/sql_snapshot.py [--only postgresql_snapshot | --only mysql_snapshot]

100,000 free pairs beside a transaction that has its snapshot and does nothing (5,000 with --quick): what every pair
wrote stays where it was, as that transaction might still read it. Bar: a pair at the end, p50 of the last hundredth,
costs at most twice what one cost at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from measure import Report, Settings, main, microseconds, p50
from sql_peers import PLACES, dibs_lock, pair_of, serving

_OPEN = {
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"),
    "mysql": ("START TRANSACTION WITH CONSISTENT SNAPSHOT",),
}


def snapshot(kind: str, report: Report, settings: Settings) -> None:
    place, pairs = PLACES[kind], settings.choose(100_000, 5_000)
    with serving(place, settings) as url, ExitStack() as stack, report.or_left_out("dibs"):
        run = pair_of(dibs_lock(url, stack, "free"))
        run(100)  # connects, and makes what is missing
        execute = place.execute(url, stack)
        for statement in _OPEN[kind]:
            execute(statement)
        times = run(pairs)
        first, last = times[: pairs // 100], times[-pairs // 100 :]
        report.line("first hundredth", microseconds(first))
        report.line("last hundredth", microseconds(last))
        peer = ("first hundredth", p50(first) * 1e6)
        report.against(f"p50 of a pair after {pairs:,} of them", p50(last) * 1e6, peer, "us", most=2.0)


ROWS: dict[str, Callable[[Report, Settings], None]] = {f"{kind}_snapshot": partial(snapshot, kind) for kind in PLACES}

if __name__ == "__main__":
    main(__doc__, ROWS)
