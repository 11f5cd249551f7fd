#!/usr/bin/env python3
"""Import: wall time of a fresh interpreter that imports dibs, against one that imports what dibs must have.

  bench/imports.py

Both are started in turn, 15 times each. Bar: at most 2 x `import sqlite3, asyncio`.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from measure import Report, Settings, interleaved, main, p50, percentile, timed

OURS, NEEDED, NOTHING = "import dibs", "import sqlite3, asyncio", "pass"


def imports(report: Report, settings: Settings) -> None:
    cases = {code: timed(partial(interpreter, code)) for code in (OURS, NEEDED, NOTHING)}
    times = interleaved(report, cases, 1, settings.choose(15, 5))
    for code, some in times.items():
        report.line(code, {"p50_ms": p50(some) * 1e3, "least_ms": percentile(some, 0.0) * 1e3})
    if OURS in times:
        peer = (NEEDED, p50(times[NEEDED]) * 1e3)
        report.against("p50 at most 2 x its needs", p50(times[OURS]) * 1e3, peer, "ms", most=2.0)


def interpreter(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)  # with a time-out it would poll, up to 50 ms late


ROWS = {"import": imports}

if __name__ == "__main__":
    main(__doc__, ROWS)
