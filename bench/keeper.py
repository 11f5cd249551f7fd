#!/usr/bin/env python3
"""Many locks: one process holds 10,000 of them and does nothing else.

  bench/keeper.py

keeper_10000  CPU time of the whole process while it sleeps for 20 s, as a share of one core: that is what renewing
              costs. A lease of 30 s is renewed every 10 s and the sleep begins 5 s after the locks were taken, so it
              sees two rounds of renewals whole (one in the 8 s of --quick) and does not end amidst one. Memory: how
              much the process grew by taking them, less what 10,000 plain dicts with the fields of a hold take. Each
              in a fresh interpreter. `memory://` keeps the store in the process too. Bars, on sqlite: 5 %, 40 MB.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from crew import apart, checked
from measure import Report, Settings, main

LOCKS = 10_000
LEASE = 30.0


def keeper_10000(report: Report, settings: Settings) -> None:
    seconds = settings.choose(20.0, 8.0)
    places = {"dicts": "", "memory": "memory://keeper", "sqlite": settings.sqlite("keeper")}
    results = apart(hold_all, [(url, seconds) for url in places.values()], at_once=settings.quick)
    figures = {}
    for name, result in zip(places, results, strict=True):
        with report.or_left_out(name):
            grown, cpu, lost, took = checked(result)
            figures[name], figures[f"{name} mb"] = cpu, grown
            if name == "dicts":
                report.line(f"{LOCKS} dicts", {"grown_MB": grown})
            else:
                about = {"cpu_pct": cpu, "grown_MB": grown, "taken in_s": took, "lost_n": lost}
                report.line(f"dibs on {name}", about)
    if "sqlite" in figures and "dicts" in figures:
        report.limit("CPU while idle under 5 % of a core", figures["sqlite"], "pct", under=5.0)
        more = figures["sqlite mb"] - figures["dicts mb"]
        peer = (f"{LOCKS} dicts", figures["dicts mb"])
        report.limit("memory at most 40 MB more than dicts", more, "MB", most=40.0, peer=peer)


def hold_all(start: Callable[[], None], url: str, seconds: float) -> tuple[float, float, int, float]:
    """MB grown, CPU in per cent of a core, holds lost, seconds that taking all took."""
    return hold_locks(start, url, seconds, LOCKS) if url else hold_dicts(start)


def hold_locks(start: Callable[[], None], url: str, seconds: float, count: int) -> tuple[float, float, int, float]:
    import dibs

    with dibs.connect(url, lease=LEASE) as client:
        with client.lock("first"):
            start()
        before, began = resident(), time.perf_counter()
        holds = [client.lock(f"lock:{number:05d}").acquire() for number in range(count)]
        took, grown = time.perf_counter() - began, resident() - before
        time.sleep(LEASE / 6)
        began, used = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        lost = sum(hold is None or hold.lost.is_set() for hold in holds)
        return grown, share * 100.0, lost, took


def hold_dicts(start: Callable[[], None]) -> tuple[float, float, int, float]:
    start()
    before, began = resident(), time.perf_counter()
    dicts = [
        {
            "name": f"lock:{number:05d}",
            "token": 1000 + number,
            "mode": "exclusive",
            "owner": "me",
            "acquired_at": datetime.now(UTC),
            "remaining": 30.0 - number / LOCKS,
            "claim": os.urandom(16),
        }
        for number in range(LOCKS)
    ]
    took, grown = time.perf_counter() - began, resident() - before
    assert len(dicts) == LOCKS
    return grown, 0.0, 0, took


def resident() -> float:
    """MB of memory that the process has in RAM."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


ROWS = {"keeper_10000": keeper_10000}

if __name__ == "__main__":
    main(__doc__, ROWS)
