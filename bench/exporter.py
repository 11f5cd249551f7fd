#!/usr/bin/env python3
"""The exporter: a scrape of `dibs exporter`, a process of its own, while this process holds 10,000 locks.

  bench/exporter.py [--only exporter_sqlite | --only exporter_redis | --only exporter_postgresql]

Seconds from the request to the end of the reply, with a new scan of the store each time; and the scans that 20 scrapes
at the same time cost. 1,000 locks with --quick. Bars: p50 1 s; 1 scan.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from urllib.request import urlopen

from measure import Report, Settings, main, p50, percentile
from servers import serving

LEASE = 600.0
SCRAPERS = 20
_SHARED_FOR = 1.1
"""Seconds after which a scrape needs a new scan."""


def exporter(kind: str, report: Report, settings: Settings) -> None:
    import dibs

    locks = settings.choose(10_000, 1000)
    with (
        serving(kind, settings.directory, quick=settings.quick) as store,
        dibs.connect(store.url, lease=LEASE) as client,
    ):
        holds = [client.lock(f"job:{number:05d}").acquire() for number in range(locks)]
        with _exporter(store.url) as address:
            times = []
            for _ in range(settings.choose(7, 3)):
                time.sleep(_SHARED_FOR)
                began = time.perf_counter()
                text = _scrape(address)
                times.append(time.perf_counter() - began)
                if _figure(text, "held") != locks:
                    raise RuntimeError(f"the scrape shows {_figure(text, 'held')} of {locks} locks")
            scans = _figure(text, "scans_total")
            time.sleep(_SHARED_FOR)
            with ThreadPoolExecutor(SCRAPERS) as scrapers:
                texts = list(scrapers.map(_scrape, [address] * SCRAPERS))
            more = max(_figure(one, "scans_total") for one in texts) - scans
        lost = sum(hold is None or hold.lost.is_set() for hold in holds)
    about = {"p50_ms": p50(times) * 1e3, "most_ms": percentile(times, 1.0) * 1e3, "scans_n": more, "lost_n": lost}
    report.line(f"scrape of {locks} names on {kind}", about)
    report.limit(f"p50 of a scrape of {locks} names", p50(times), "s", most=1.0)
    report.limit(f"scans of {SCRAPERS} scrapes at the same time", more, "", most=1.0)


@contextmanager
def _exporter(url: str) -> Iterator[str]:
    words = [sys.executable, "-m", "dibs", "exporter", "--port", "0", "--url", url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()


def _scrape(address: str) -> str:
    with urlopen(address, timeout=30) as reply:
        return str(reply.read(), "utf-8")


def _figure(text: str, name: str) -> int:
    return sum(int(value) for value in re.findall(rf"^dibs_store_{name}\{{.*\}} (\d+)$", text, re.MULTILINE))


ROWS = {f"exporter_{kind}": partial(exporter, kind) for kind in ("sqlite", "redis", "postgresql")}

if __name__ == "__main__":
    main(__doc__, ROWS)
