#!/usr/bin/env python3
"""Calls of a free pair on a kept lock object, by `sys.setprofile`. Counts are exact; they are not timings.

  bench/calls.py

calls  On each store: Python calls and C calls, and the Python files that they touch. Bars: 20 Python calls on memory,
       30 on sqlite, 25 on Redis, 40 on PostgreSQL and MySQL in lease mode, 45 on ZooKeeper; 8 files of dibs on memory
       and sqlite, 9 on Redis and SQL servers, 12 on ZooKeeper. A pair is `with lock`; bench/trace shows its calls.
"""

from __future__ import annotations

from collections.abc import Callable

from measure import Report, Settings, main
from road import travelled
from servers import serving

MOST = {
    "memory": (20, 8),
    "sqlite": (30, 8),
    "redis": (25, 9),
    "postgresql": (40, 9),
    "mysql": (40, 9),
    "zookeeper": (45, 12),
}
"""Python calls, files of dibs."""


def calls(report: Report, settings: Settings) -> None:
    for kind, (most_calls, most_files) in MOST.items():
        with report.or_left_out(kind), serving(kind, settings.directory, quick=True) as store:
            road = travelled(store.url)[0]
            python, files, others = road.python(), len(road.files()), len(road.files(ours=False))
            report.line(kind, {"Python_n": python, "C_n": road.c(), "files of dibs_n": files, "others_n": others})
            report.limit(f"{kind}: at most {most_calls} Python calls", python, "n", most=most_calls)
            report.limit(f"{kind}: at most {most_files} files", files, "n", most=most_files)


ROWS: dict[str, Callable[[Report, Settings], None]] = {"calls": calls}

if __name__ == "__main__":
    main(__doc__, ROWS)
