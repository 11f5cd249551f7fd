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

from sim.explore import NOTHING, Sum, explore, told

_CHUNK = 200


def explore_until(first: int, stride: int, end: float) -> Sum:
    """One core's share: every `stride`-th chunk of schedules."""
    total = NOTHING
    while time.monotonic() < end:
        part = explore(first, _CHUNK)
        for found in part.found:
            print(told(found), flush=True)
        total += part
        first += stride * _CHUNK
    return total


def soak(seconds: float, seed: int) -> int:
    """Gives the exit status."""
    cores = os.cpu_count() or 1
    print(f"simulator: {seconds:g} s from seed {seed} on {cores} cores", flush=True)
    began = time.monotonic()
    with multiprocessing.Pool(cores) as pool:
        shares = [(seed + n * _CHUNK, cores, began + seconds) for n in range(cores)]
        total = reduce(add, pool.starmap(explore_until, shares), NOTHING)
    took = time.monotonic() - began
    report = {
        "what": "sim", "seed": seed, "seconds": round(took, 1), "schedules": total.schedules,
        "schedules_per_second_and_core": round(total.schedules / took / cores, 1), "acquisitions": total.handed,
        "steps": total.steps, "faults": dict(sorted(total.faults.items())), "violations": len(total.found),
        "overlaps_after_clock_steps": total.overlaps_after_steps,
        "bound_95": None if total.found else f"fewer than {3 / total.handed:.1e} per acquisition",
        "python": sys.version.split()[0],
    }  # fmt: skip
    print(json.dumps(report))
    return 1 if total.found else 0


if __name__ == "__main__":
    given = sys.argv[2] if len(sys.argv) > 2 else ""
    sys.exit(soak(float(sys.argv[1]), int(given) if given else secrets.randbelow(2**40)))
