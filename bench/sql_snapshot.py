#!/usr/bin/env python3
"""Many pairs on one name while another transaction stays open, which keeps the server from removing old rows.

  bench/sql_snapshot.py [--only postgresql_snapshot | --only mysql_snapshot]

100,000 free pairs (5,000 with --quick) beside a transaction that keeps its snapshot and does nothing: the server keeps
every old row version for it. Bar: the p50 of the last hundredth is at most twice that of the first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from measure import Report, Settings, dibs_lock, main, microseconds, p50, pair_of
from servers import serving
from sql_peers import DIALECTS

_OPEN = {
    "postgresql": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1"),
    "mysql": ("START TRANSACTION WITH CONSISTENT SNAPSHOT",),
}


def snapshot(kind: str, report: Report, settings: Settings) -> None:
    pairs = settings.choose(100_000, 5_000)
    with serving(kind, settings.directory) as store, ExitStack() as stack, report.or_left_out("dibs"):
        run = pair_of(dibs_lock(store.url, stack, "free"))
        run(100)  # connects
        execute = DIALECTS[kind].execute(store.url, stack)
        for statement in _OPEN[kind]:
            execute(statement)
        times = run(pairs)
        first, last = times[: pairs // 100], times[-pairs // 100 :]
        report.line("first hundredth", microseconds(first))
        report.line("last hundredth", microseconds(last))
        peer = ("first hundredth", p50(first) * 1e6)
        report.against(f"p50 of a pair after {pairs:,} of them", p50(last) * 1e6, peer, "us", most=2.0)


ROWS: dict[str, Callable[[Report, Settings], None]] = {f"{kind}_snapshot": partial(snapshot, kind) for kind in DIALECTS}

if __name__ == "__main__":
    main(__doc__, ROWS)
