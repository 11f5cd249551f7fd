#!/usr/bin/env python3
"""Throughput: 1 to 16 processes take one lock and release it, as fast as they can.

  bench/throughput.py [--only throughput_redis | ...]

One row for each store. Acquisitions/s of all processes together, by their number, beside the locks that people use on
the same server. No bars: contend.py has those of four processes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from contest import compare, processes
from measure import Report, Settings, dibs_lock, main
from peers import PEERS, makers
from servers import serving
from sql_peers import DIALECTS, DLOCK, TOOZ

SIZES = (1, 2, 4, 8, 16)
SECONDS = (1.5, 0.3)
_LIKE_BY_HAND = (TOOZ, DLOCK)
"""Peers on SQL servers that wrap the lock by hand."""


def throughput(kind: str, report: Report, settings: Settings) -> None:
    with serving(kind, settings.directory, quick=settings.quick) as store:
        locks = {name: make for name, make in makers(kind, store.url).items() if name not in _LIKE_BY_HAND}
        if kind in DIALECTS:
            in_session = f"{store.url}?mode=session"
            locks["dibs fair, session mode"] = lambda stack: dibs_lock(in_session, stack, "in-session")
        for size in settings.choose(SIZES, SIZES[:2]):
            contenders = {name: processes(make, size) for name, make in locks.items()}
            for name, outcome in compare(report, settings, contenders, hold=0.0, seconds=SECONDS).items():
                report.line(f"{name}, {size} processes", {"rate_per-s": outcome.rate(), "jain_": outcome.jain()})


ROWS: dict[str, Callable[[Report, Settings], None]] = {
    f"throughput_{kind}": partial(throughput, kind) for kind in PEERS
}

if __name__ == "__main__":
    main(__doc__, ROWS)
