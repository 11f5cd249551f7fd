#!/usr/bin/env python3
"""What PostgreSQL and MariaDB servers are asked to do, by their own counts. Counts are exact; they are no timings.

  bench/sql_counts.py [--only postgresql_statements | --only mysql_statements]

A free pair, beside the floor's: two statements show that the counting is right. 10 and then 200 tasks wait in one line
(lines.py): statements that clients send per hand-off, from calling `release` until the next one has the lock, and per
claim that joins the end; what their routines do inside the server is not counted. Bar: 200 waiters cost what 10 cost.
Claims are renewed meanwhile, as time goes by: of many short spells the middle one counts, and what waiting costs is
shown as statements per second while all only wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import lines
from crew import apart, checked
from lines import Counts
from measure import Report, Settings, Timed, main, p50
from sql_peers import FLOOR, PLACES, Place, dibs_lock, pair_of, serving, two_commits

PAIRS = 20
FEW, MANY = 10, 200


def statements(kind: str, report: Report, settings: Settings) -> None:
    place, spells = PLACES[kind], settings.choose(40, 5)
    with serving(place, settings) as url, ExitStack() as stack:
        pairs: dict[str, Callable[[], Timed]] = {
            FLOOR: lambda: two_commits(place, url, stack),
            "dibs": lambda: pair_of(dibs_lock(url, stack, "free")),
        }
        for name, make in pairs.items():
            with report.or_left_out(f"free pair, {name}"):
                report.line(f"free pair, {name}", {"sent_": _per_pair(place, url, make(), stack)})
    found: dict[str, dict[int, float]] = {"hand-off": {}, "join": {}}
    for size in (FEW, MANY):
        with serving(place, settings) as url, report.or_left_out(f"{size} waiters"):
            passing, joining, idle, share = checked(
                *apart(in_line, [(kind, url, size, spells, settings.choose(10.0, 3.0))], at_once=True)
            )
            for what, some in (("hand-off", passing), ("join", joining)):
                sent = [one.sent for one in some]
                found[what][size] = p50(sent)
                report.line(f"{what}, {size} waiters", {"sent_": p50(sent), "sent at most_": max(sent)})
            report.line(f"{size} only wait", {"sent_per-s": idle.sent, "cpu_pct": share * 100.0})
    for what, of in found.items():
        with report.or_left_out(f"the bar on a {what}"):
            peer = (f"{FEW} waiters", of[FEW])
            report.against(f"{what}: sent, {MANY} waiters as {FEW}", of[MANY], peer, "", most=1.0)


def _per_pair(place: Place, url: str, run: Timed, stack: ExitStack) -> float:
    run(3)  # connects, and makes what is missing
    counted = place.counter(url, stack)
    before = counted()
    run(PAIRS)
    return (counted() - before) / PAIRS


def in_line(
    start: Callable[[], None], kind: str, url: str, size: int, spells: int, seconds: float
) -> tuple[list[Counts], list[Counts], Counts, float]:
    start()
    with ExitStack() as stack:
        counter = PLACES[kind].counter(url, stack)
        return asyncio.run(lines.spells(url, lambda: Counts(counter(), 0), size, spells, seconds))


ROWS: dict[str, Callable[[Report, Settings], None]] = {
    f"{kind}_statements": partial(statements, kind) for kind in PLACES
}

if __name__ == "__main__":
    main(__doc__, ROWS)
