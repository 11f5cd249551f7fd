#!/usr/bin/env python3
"""Locks on a real ZooKeeper server, beside kazoo's Lock and Curator's InterProcessMutex (in Java).

  bench/zookeeper.py [--only zookeeper_free | ...]

zookeeper_free     Free pair. The floor is a sequential node made and deleted on a bare socket, each waited for.
                   Bars: blocking 1.25 x the floor and 0.75 x Curator; asyncio at most Curator's.
zookeeper_contend  Four clients take and give back as fast as they can: acquisitions/s. Bars: 3 x kazoo's, 1.3 x
                   Curator's, no token falls.
zookeeper_handoff  Four clients, each holds for 5 ms: from calling `release` to the next one having it. Bar: p50 at most
                   0.7 x kazoo's.
zookeeper_tasks    asyncio, one client: 100 tasks on 100 names beside one task. Bar: 4 x its pairs/s.

The clients of dibs and kazoo are a process each. Curator's are four threads of one JVM, and then four JVMs, warm before
they are measured: whichever is faster is the peer. See zookeeper_wire.py for what is said on the wire.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from contend import PROCESSES, Outcome, compare, handoffs, in_order, processes, rates
from free import AIO, PAIR, dibs_cases
from measure import Report, Settings, Timed, interleaved, main, microseconds, p50
from zookeeper_peers import (
    CURATOR,
    FLOOR,
    KAZOO,
    create_delete,
    curator_contender,
    curator_pair,
    kazoo_lock,
    kazoo_pair,
    serving,
    url,
)
from zookeeper_wire import zookeeper_wire

DIBS, CURATORS = "dibs", f"{CURATOR}, {PROCESSES} JVMs"
TASKS = 100


def zookeeper_free(report: Report, settings: Settings) -> None:
    makers: dict[str, Callable[[int, ExitStack], Timed]] = {
        FLOOR: create_delete,
        KAZOO: kazoo_pair,
        CURATOR: lambda port, stack: curator_pair(port, stack, settings.choose(5000, 200)),
    }
    with serving(settings) as server, ExitStack() as stack:
        cases: dict[str, Timed] = {}
        for name, make in makers.items():
            with report.or_left_out(name):
                cases[name] = make(server.port, stack)
        with report.or_left_out(DIBS):
            cases |= dibs_cases(url(server.port), stack)
        times = interleaved(report, cases, settings.choose(400, 60), settings.rounds)
    figures = {name: p50(some) * 1e6 for name, some in times.items()}
    for name, some in times.items():
        report.line(name, {**microseconds(some), "to floor_x": figures[name] / figures.get(FLOOR, math.nan)})
    for ours, peer, most in ((PAIR, FLOOR, 1.25), (PAIR, CURATOR, 0.75), (AIO, CURATOR, 1.0)):
        report.beside(f"p50 of a free pair: at most {most:g} x", figures, ours, peer, "us", most=most)


def zookeeper_contend(report: Report, settings: Settings) -> None:
    outcomes = contest(report, settings, hold=0.0)
    for name, outcome in outcomes.items():
        report.line(name, rates(outcome))
    figures = {name: outcome.rate() for name, outcome in outcomes.items()}
    curators = [name for name in (CURATOR, CURATORS) if name in figures]
    best = max(curators, key=lambda name: figures[name], default=CURATOR)
    for peer, least in ((KAZOO, 3.0), (best, 1.3)):
        report.beside(f"acquisitions/s at least {least:g} x", figures, DIBS, peer, "per-s", least=least)
    in_order(report, outcomes, DIBS)


def zookeeper_handoff(report: Report, settings: Settings) -> None:
    outcomes = contest(report, settings, hold=0.005)
    for name, outcome in outcomes.items():
        report.line(name, handoffs(outcome))
    figures = {name: p50(outcome.gaps) * 1e6 for name, outcome in outcomes.items()}
    report.beside("p50 of a hand-off at most 0.7 x", figures, DIBS, KAZOO, "us", most=0.7)
    in_order(report, outcomes, DIBS)


def contest(report: Report, settings: Settings, *, hold: float) -> dict[str, Outcome]:
    with serving(settings) as server, ExitStack() as stack:
        contenders = {
            DIBS: processes(lambda stack: _dibs_lock(server.port, stack)),
            KAZOO: processes(lambda stack: kazoo_lock(server.port, stack, "/kazoo-contend")),
        }
        javas_of = {CURATOR: 1} | settings.choose({CURATORS: PROCESSES}, {})  # to start and warm up four takes long
        for name, javas in javas_of.items():
            with report.or_left_out(name):
                contenders[name] = curator_contender(server.port, stack, javas, settings.choose(5.0, 0.5))
        return compare(report, settings, contenders, hold=hold)


def _dibs_lock(port: int, stack: ExitStack) -> Any:
    import dibs

    return stack.enter_context(dibs.connect(url(port))).lock("contend")


def zookeeper_tasks(report: Report, settings: Settings) -> None:
    with serving(settings) as server:
        few, many = asyncio.run(pairs_per_second(server.port, settings))
    report.line("one task", {"pairs_per-s": p50(few)})
    report.line(f"{TASKS} tasks on {TASKS} names", {"pairs_per-s": p50(many)})
    what = f"pairs/s of {TASKS} tasks at least 4 x one task's"
    report.against(what, p50(many), ("one task", p50(few)), "per-s", least=4.0)


async def pairs_per_second(port: int, settings: Settings) -> tuple[list[float], list[float]]:
    """Of one task and of many, in turns."""
    import dibs.aio

    async with dibs.aio.connect(url(port)) as client:

        async def pairs(number: int, count: int) -> None:
            lock = client.lock(f"task-{number}")
            for _ in range(count):
                await lock.acquire()
                await lock.release()

        async def rate(tasks: int, count: int) -> float:
            began = time.perf_counter()
            await asyncio.gather(*(pairs(number, count) for number in range(tasks)))
            return tasks * count / (time.perf_counter() - began)

        await rate(TASKS, 2)  # connects, and makes the directories
        few, many = [], []
        for _ in range(settings.rounds):
            few.append(await rate(1, settings.choose(500, 50)))
            many.append(await rate(TASKS, settings.choose(30, 3)))
    return few, many


ROWS = {
    "zookeeper_free": zookeeper_free,
    "zookeeper_contend": zookeeper_contend,
    "zookeeper_handoff": zookeeper_handoff,
    "zookeeper_wire": zookeeper_wire,
    "zookeeper_tasks": zookeeper_tasks,
}

if __name__ == "__main__":
    main(__doc__, ROWS)
