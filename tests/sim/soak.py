"""`scripts/soak sim SECONDS [SEED]`: explore on all cores until the time is over, and say what came of it.

Prints each violation with its trace and the command that shows it again; the last line is one JSON object. The exit
status is 1 if anything was violated.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import sys
import time
from functools import reduce
from operator import add
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from sim.explore import NOTHING, QUORUM, Sum, explore, told
from sim.schedule import CELLS, QUEUES

_CHUNK = 50
_SHARES = {QUEUES: 0.6, CELLS: 0.2, QUORUM: 0.2}
"""The share of the time for each kind."""


def explore_until(of: str, first: int, stride: int, seconds: float) -> Sum:
    """One core's share: every `stride`-th chunk of schedules."""
    total, end = NOTHING, time.monotonic() + seconds
    while time.monotonic() < end:
        part = explore(first, _CHUNK, of=of)
        for found in part.found:
            print(told(found), flush=True)
        total += part
        first += stride * _CHUNK
    return total


def soak(seconds: float, seed: int) -> int:
    """Gives the exit status."""
    cores = os.cpu_count() or 1
    print(f"simulator: {seconds:g} s from seed {seed} on {cores} cores", flush=True)
    report: dict[str, object] = {"what": "sim", "seed": seed, "python": sys.version.split()[0]}
    violations = 0
    with multiprocessing.Pool(cores) as pool:
        for of, share in _SHARES.items():
            began = time.monotonic()
            shares = [(of, seed + n * _CHUNK, cores, seconds * share) for n in range(cores)]
            total = reduce(add, pool.starmap(explore_until, shares), NOTHING)
            report[of] = _report(total, time.monotonic() - began, cores)
            violations += len(total.found)
    print(json.dumps({"violations": violations, **report}))
    return 1 if violations else 0


def _report(total: Sum, took: float, cores: int) -> dict[str, object]:
    return {
        "seconds": round(took, 1), "schedules": total.schedules,
        "schedules_per_second_and_core": round(total.schedules / took / cores, 1), "done": total.handed,
        "steps": total.steps, "faults": dict(sorted(total.faults.items())), "violations": len(total.found),
        "overlaps_after_clock_steps": total.overlaps_after_steps,
        "bound_95": None if total.found else f"fewer than {3 / total.handed:.1e} per acquisition or deed",
    }  # fmt: skip


if __name__ == "__main__":
    given = sys.argv[2] if len(sys.argv) > 2 else ""
    sys.exit(soak(float(sys.argv[1]), int(given) if given else secrets.randbelow(2**40)))
