#!/usr/bin/env python3
"""How long a queue on Redis stands still when one of its processes is killed (kill -9).

  bench/redis_bounds.py

redis_killed  The holder is killed: from its death until the next waiter has the lock. Bar: its lease + 2 s.
              A waiter is killed, and then the holder releases: from there until the waiter behind the dead one has
              the lock. Bar: the waiting lease, which is min(5 s, lease), + 2 s.
              Several queues at once, whose victims die at different points between two renewals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from measure import Report, Settings, main
from servers import serving

from process.children import Child, Crew, clock, until

WAITING = 5.0
"""The longest lease of a claim that waits, in seconds."""
LATE = 2.0
LEASES = (2.0, 10.0)
_PATIENCE = 60.0


def redis_killed(report: Report, settings: Settings) -> None:
    tries = settings.choose(3, 1)
    with serving("redis", settings.directory) as store:
        for what, trial, bound in (
            ("holder", killed_holder, lambda lease: lease),
            ("waiter", killed_waiter, lambda lease: min(WAITING, lease)),
        ):
            with report.or_left_out(f"a killed {what}"):
                delays = _delays(settings, store.url, what, trial, tries)
                for lease, some in delays.items():
                    kept = bound(lease)
                    report.line(f"killed {what}, lease {lease:g} s", {"least_s": min(some), "most_s": max(some)})
                    words = f"a killed {what}, lease {lease:g} s: at most {kept:g} + {LATE:g} s"
                    report.limit(words, max(some), "s", most=kept + LATE)


def _delays(
    settings: Settings, url: str, what: str, trial: Callable[[Crew, str, float], float], tries: int
) -> dict[float, list[float]]:
    """How long each queue stood still, by lease."""
    cases = list(product(LEASES, range(tries)))
    crews = [Crew(settings.directory, url, lease=lease) for lease, _ in cases]
    try:
        with ThreadPoolExecutor(len(cases)) as pool:
            pauses = [lease / 3 * number / tries for lease, number in cases]
            names = [f"{what}-{lease:g}-{number}" for lease, number in cases]
            delays = list(pool.map(trial, crews, names, pauses))
    finally:
        for crew in crews:
            crew.disband()
    return {lease: [delay for (of, _), delay in zip(cases, delays, strict=True) if of == lease] for lease in LEASES}


def killed_holder(crew: Crew, name: str, pause: float) -> float:
    holder, waiter = crew.worker(), crew.worker()
    holder.take(name)
    waiter.tell("take", name, _PATIENCE)
    _in_queue(holder, name, 1)
    time.sleep(pause)  # the point of its life at which it dies
    dead = holder.kill()
    return _granted(waiter) - dead


def killed_waiter(crew: Crew, name: str, pause: float) -> float:
    holder, victim, behind = (crew.worker() for _ in range(3))
    holder.take(name)
    for number, waiter in enumerate((victim, behind), 1):
        waiter.tell("take", name, _PATIENCE)
        _in_queue(holder, name, number)
    time.sleep(pause)  # as above
    victim.kill()
    given = clock()
    holder.ask("give", name, hear="gave")
    return _granted(behind) - given


def _in_queue(holder: Child, name: str, waiters: int) -> None:
    until(lambda: holder.ask("line", name, hear="line") == ["1", str(waiters)], what=f"{waiters} wait")


def _granted(waiter: Child) -> float:
    """By the machine's monotonic clock."""
    _, _, now = waiter.hear("took", _PATIENCE)
    return float(now)


ROWS = {"redis_killed": redis_killed}

if __name__ == "__main__":
    main(__doc__, ROWS)
