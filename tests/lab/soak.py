"""Run the fault matrix of a store for as long as you like: `scripts/soak STORE SECONDS [SEED] [--json FILE]`.

Prints the report, appends it as one line of JSON, and ends with status 1 if anything was violated. The seed draws the
workload and the faults, not how threads interleave.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from lab.checkers import judge
from lab.crowd import Crowd
from lab.faults import Latency
from lab.matrix import PLANS, Plan, Site
from lab.nemesis import Nemesis, Place
from lab.proxy import Proxy
from lab.report import Report, report, versions
from lab.servers import ports

LEASE = 1.0
ROUND_TRIPS = 12
"""How many of them a lease lasts at least: workers that are stopped for a part of it must not lose it."""
WITHIN = 20.0
"""How long after healing everybody must have got something: several leases, and slack for a busy machine."""


def soak(
    store: str, plan: Plan, directory: Path, seconds: float, seed: str, lease: float = LEASE, each: float = 0.0,
    round_trip: float = 0.0,
) -> Report:  # fmt: skip
    """One run in an empty directory; `each`: how much longer it may last until each fault has happened. `round_trip`:
    seconds, to each server."""
    lease = max(lease, plan.least_lease, ROUND_TRIPS * round_trip)
    with plan.site(directory) as site, ExitStack() as stack:
        with Crowd(plan.specs(_far(site, round_trip, stack), directory, seed, lease)) as crowd:
            crowd.until(lambda: crowd.grants() > 0, "the first grant")
            place = Place(crowd, random.Random(f"{seed}/nemesis"), lease, site)
            Nemesis(place, plan.faults, plan.gap).rage(seconds, each)
            crowd.quiet(WITHIN)
            crowd.end()
            history, naive, fenced = crowd.history(), crowd.naive(), crowd.fenced()
        verdict = judge(history, within=WITHIN, fenced=fenced, left=site.left())
    return report(
        history, verdict, naive, fenced,
        store=store, seconds=seconds, seed=seed, lease=lease, versions=versions(site.versions),
        workers=f"{plan.procs} processes of {plan.threads} threads and {plan.tasks} tasks",
    )  # fmt: skip


def _far(site: Site, round_trip: float, stack: ExitStack) -> str:
    """The URL of the workers, with a proxy in front of each server."""

    def to(found: re.Match[str]) -> str:
        proxy = stack.enter_context(Proxy((ports.HOST, int(found[1]))))
        proxy.add(Latency(round_trip / 2))
        return f"{ports.HOST}:{proxy.port}"

    return re.sub(rf"{re.escape(ports.HOST)}:(\d+)", to, site.url) if round_trip else site.url


def main() -> int:
    options = _options()
    print(f"{options.store}: seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dibs-soak-") as directory:
        plan = PLANS[options.store]
        found = soak(
            options.store, plan, Path(directory), options.seconds, options.seed, round_trip=options.round_trip / 1000
        )
        if not found.clean and options.keep:
            Path(directory).rename(options.keep)
            Path(directory).mkdir()
    print(found)
    with options.json.open("a") as file:
        file.write(json.dumps({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **found.line()}) + "\n")
    return 0 if found.clean else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak")
    parser.add_argument("store", choices=sorted(PLANS))
    parser.add_argument("seconds", type=float)
    parser.add_argument("seed", nargs="?", default=secrets.token_hex(4))
    parser.add_argument("--round-trip", type=float, default=0.0, metavar="MS", help="to the store's servers")
    parser.add_argument("--json", type=Path, default=Path("soak.jsonl"), help="where the line goes")
    parser.add_argument("--keep", type=Path, help="where the histories of a guilty run go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
