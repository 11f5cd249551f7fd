"""Run pytest; and what failed while the host took the machine away, once more.

again.py WHERE... -- HOW...

The first run is `pytest HOW... WHERE...`. If tests failed in it, and the kernel counts that in its time at least
STOLEN of the machine was given to others (steal), those tests are run again, by `pytest HOW...`, with nothing beside
them: WHERE has the paths, the workers, and what only the first run measures. What fails again has failed. On a machine
of one's own nothing is stolen, and a failure is a failure at once.

Our tests hold real leases of a second or two: a machine that stands still for longer ends them, as it must.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STOLEN = 0.02
"""Of all cores' time. A quiet machine of ours shows less than half of that, a slow hour ten times as much."""
FAILED = 1
"""pytest's own status: tests failed. Any other one is not about tests."""


def stolen() -> float:
    """Seconds of one core, since the machine started."""
    ticks = int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])
    return ticks / os.sysconf("SC_CLK_TCK")


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def name_of(nodeid: str) -> str:
    """Without the group that pytest-xdist adds to it."""
    name, _, group = nodeid.rpartition("@")
    return name if name and "]" not in group else nodeid


def failed(cache: Path) -> list[str]:
    found = cache / "v" / "cache" / "lastfailed"
    return sorted({name_of(nodeid) for nodeid in json.loads(found.read_text())}) if found.exists() else []


def main(where: list[str], how: list[str], least: float = STOLEN) -> int:
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *how]
        began, before = uptime(), stolen()
        status = subprocess.run([*pytest, *where], check=False).returncode
        share = (stolen() - before) / max((uptime() - began) * (os.cpu_count() or 1), 0.01)
        tests = failed(Path(cache))
        if status != FAILED or not tests or share < least:
            return status
        print(f"\nThe host took {share:.1%} of the machine meanwhile. Once more, alone: {' '.join(tests)}", flush=True)
        return subprocess.run([*pytest, *tests], check=False).returncode


if __name__ == "__main__":
    border = sys.argv.index("--")
    sys.exit(main(sys.argv[1:border], sys.argv[border + 1 :]))
