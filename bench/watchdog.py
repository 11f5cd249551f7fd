#!/usr/bin/env python3
"""The watchdog: one process holds many locks and does nothing else.

  bench/watchdog.py [--only watchdog_10000 | ...]

CPU time of the whole process while it sleeps, as a share of one core: the cost of renewals. A lease of 30 s is renewed
every 10 s and the sleep begins 5 s after the locks were taken, so it covers two rounds of renewals (one with --quick)
and does not end amid one. Each process is a fresh interpreter.

watchdog_10000                          10,000 locks on memory and sqlite. Memory: how much the process grew by taking
                                        them, less 10,000 plain dicts with the fields of a hold. Bars, on sqlite: 5 %,
                                        40 MB.
redis_watchdog                          10,000 locks, and the commands of a round. Bars: 5 %, none is lost.
postgresql_watchdog, mysql_watchdog     5,000 locks. Bars: 5 %, none is lost.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from counts import Commands, Counts
from crew import Failed, apart, checked
from measure import Report, Settings, main
from servers import serving

LEASE = 30.0
MOST_CPU = 5.0


class Held(NamedTuple):
    """A process and its locks."""

    cpu: float
    """Per cent of a core."""
    grown: float
    """MB."""
    took: float
    """Seconds to take all."""
    lost: int
    asked: Counts = Counts(0, 0)
    """Commands of a round of renewals, on Redis."""

    def figures(self) -> dict[str, float]:
        return {"cpu_pct": self.cpu, "grown_MB": self.grown, "taken in_s": self.took, "lost_n": self.lost}


def watchdog_10000(report: Report, settings: Settings) -> None:
    count, rounds = 10_000, settings.choose(2, 1)
    places = {"dicts": "", "memory": "memory://watchdog", "sqlite": settings.sqlite("watchdog")}
    results = apart(hold, [(url, count, rounds) for url in places.values()], at_once=settings.quick)
    found: dict[str, Held] = {}
    for name, result in zip(places, results, strict=True):
        with report.or_left_out(name):
            found[name] = checked(result)
            report.line(f"dibs on {name}" if name != "dicts" else f"{count} dicts", found[name].figures())
    if "sqlite" in found and "dicts" in found:
        report.limit("CPU while idle at most 5 % of a core", found["sqlite"].cpu, "pct", most=MOST_CPU)
        more, peer = found["sqlite"].grown - found["dicts"].grown, (f"{count} dicts", found["dicts"].grown)
        report.limit("memory at most 40 MB more than dicts", more, "MB", most=40.0, peer=peer)


def on_server(kind: str, count: int, report: Report, settings: Settings) -> None:
    rounds = settings.choose(2, 1)
    with serving(kind, settings.directory, quick=settings.quick) as store:
        held: Held = checked(*apart(hold, [(store.url, count, rounds)], at_once=True))
    report.line(f"{count} holds", held.figures())
    if kind == "redis":
        if held.asked.inside < count:
            raise Failed(
                f"a round of renewals was {held.asked.inside:.0f} commands for {count} locks: it was not whole"
            )
        report.line("a round of renewals", {"sent_n": held.asked.sent, "inside the scripts_n": held.asked.inside})
    report.limit("CPU while idle at most 5 % of a core", held.cpu, "pct", most=MOST_CPU)
    report.limit("none is lost", held.lost, "n", most=0)


def hold(start: Callable[[], None], url: str, count: int, rounds: int) -> Held:
    return hold_locks(start, url, count, rounds) if url else hold_dicts(start, count)


def hold_locks(start: Callable[[], None], url: str, count: int, rounds: int) -> Held:
    import dibs

    with dibs.connect(url, lease=LEASE) as client:
        with client.lock("first"):
            start()
        before, began = resident(), time.perf_counter()
        holds = [client.lock(f"lock:{number:05d}").acquire() for number in range(count)]
        took, grown = time.perf_counter() - began, resident() - before
        time.sleep(LEASE / 6)
        before_round, began, used = counted(url), time.perf_counter(), time.process_time()
        time.sleep(rounds * LEASE / 3)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        asked = (counted(url) - before_round).per(rounds)
        lost = sum(hold is None or hold.lost.is_set() for hold in holds)
        return Held(share * 100.0, grown, took, lost, asked)


def counted(url: str) -> Counts:
    """Commands so far, on Redis."""
    if not url.startswith("redis:"):
        return Counts(0, 0)
    with closing(Commands(url)) as server:
        return server.counts()


def hold_dicts(start: Callable[[], None], count: int) -> Held:
    start()
    before, began = resident(), time.perf_counter()
    dicts = [
        {
            "name": f"lock:{number:05d}",
            "token": 1000 + number,
            "mode": "exclusive",
            "owner": "me",
            "acquired_at": datetime.now(UTC),
            "remaining": 30.0 - number / count,
            "claim": os.urandom(16),
        }
        for number in range(count)
    ]
    took, grown = time.perf_counter() - began, resident() - before
    assert len(dicts) == count
    return Held(0.0, grown, took, 0)


def resident() -> float:
    """MB of memory that the process has in RAM."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


ROWS: dict[str, Callable[[Report, Settings], None]] = {
    "watchdog_10000": watchdog_10000,
    "redis_watchdog": partial(on_server, "redis", 10_000),
    "postgresql_watchdog": partial(on_server, "postgresql", 5000),
    "mysql_watchdog": partial(on_server, "mysql", 5000),
}

if __name__ == "__main__":
    main(__doc__, ROWS)
