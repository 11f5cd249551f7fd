#!/usr/bin/env python3
"""Many waiters on one name, in one process: 1,000 asyncio tasks, 200 threads.

  bench/waiters.py

waiters  On memory, sqlite and Redis. Hand-offs: every waiter takes its turn in `with` and joins again at the end. The
         time per hand-off over 1,000 of them, against the same with 10 waiters, in turns. Bars: 1.1 x with 1,000 tasks,
         1.5 x with 200 threads.
         Idle: the holder never releases and the waiters only wait. CPU time of the process as a share of one core.
         Bar: 1 %.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from crew import apart, checked
from measure import Report, Settings, main, p50
from servers import serving

FEW, HANDOFFS = 10, 1000
MANY = {"asyncio": 1000, "threads": 200}
MOST = {"asyncio": 1.1, "threads": 1.5}
Case = tuple[str, str, str, int]
"""Its name, the API, the URL, and how many wait."""


def waiters(report: Report, settings: Settings) -> None:
    with serving("redis", settings.directory) as store:
        cases = []
        for api, many in MANY.items():
            urls = {"memory": "memory://waiters", "sqlite": settings.sqlite(f"waiters-{api}")}
            urls["redis"] = f"{store.url}?prefix={api}:"
            cases += [(f"{api} on {kind}", api, url, many) for kind, url in urls.items()]
        _hand_offs(report, settings, cases)
        _idle(report, settings, cases)


def _hand_offs(report: Report, settings: Settings, cases: Sequence[Case]) -> None:
    counts, rounds = settings.choose((HANDOFFS, 3 * settings.rounds), (300, settings.rounds))
    results = apart(pass_on, [(*case[1:], counts, rounds) for case in cases], at_once=False)
    for (name, api, _, many), result in zip(cases, results, strict=True):
        with report.or_left_out(name):
            times = checked(result)
            few, all_ = p50(times[FEW]) * 1e6, p50(times[many]) * 1e6
            report.line(f"hand-off, {name}", {f"of {FEW}_us": few, f"of {many}_us": all_})
            what = f"hand-off, {name}: {many} at most {MOST[api]:g} x {FEW}"
            report.against(what, all_, (f"{FEW} waiters", few), "us", most=MOST[api])


def _idle(report: Report, settings: Settings, cases: Sequence[Case]) -> None:
    results = apart(only_wait, [(*case[1:], settings.choose(10.0, 4.0)) for case in cases], at_once=settings.quick)
    for (name, _, _, many), result in zip(cases, results, strict=True):
        with report.or_left_out(f"{name}, idle"):
            share = checked(result)
            report.line(f"{many} waiting, {name}", {"cpu_pct": share})
            report.limit(f"CPU of {many} waiting, {name}: at most 1 %", share, "pct", most=1.0)


def pass_on(
    start: Callable[[], None], api: str, url: str, many: int, counts: int, rounds: int
) -> dict[int, list[float]]:
    """Seconds per hand-off, by number of waiters."""
    start()
    sizes = [FEW, many] * rounds
    return many_threads(url, sizes, counts) if api == "threads" else asyncio.run(many_tasks(url, sizes, counts))


def only_wait(start: Callable[[], None], api: str, url: str, many: int, seconds: float) -> float:
    """CPU in per cent of a core."""
    if api == "threads":
        return idle_threads(start, url, many, seconds)
    return asyncio.run(idle_tasks(start, url, many, seconds))


class Turns:
    """Counts hand-offs down to 0; only the holder touches it."""

    def __init__(self, enough: int) -> None:
        self.left = enough
        self.began = self.ended = 0.0

    def take(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.ended = time.perf_counter()


def many_threads(url: str, sizes: list[int], counts: int) -> dict[int, list[float]]:
    import dibs

    times: dict[int, list[float]] = {n: [] for n in sizes}
    with dibs.connect(url) as client:
        for turn, n in enumerate(sizes):
            turns = Turns(counts)
            first, threads = _waiting_threads(client, f"queue-{turn}", n, turns)
            turns.began = time.perf_counter()
            first.release()
            for thread in threads:
                thread.join()
            times[n].append((turns.ended - turns.began) / counts)
    return times


def idle_threads(start: Callable[[], None], url: str, many: int, seconds: float) -> float:
    import dibs

    with dibs.connect(url) as client:
        first, threads = _waiting_threads(client, "queue", many, Turns(1))
        start()
        began, used = time.perf_counter(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        first.release()
        for thread in threads:
            thread.join()
    return share * 100.0


def _waiting_threads(client: Any, name: str, n: int, turns: Turns) -> tuple[Any, list[threading.Thread]]:
    """One holds, and n threads wait."""

    def wait() -> None:
        lock = client.lock(name)
        while turns.left > 0:
            with lock:
                turns.take()

    first = client.lock(name).acquire()
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(n)]
    for thread in threads:
        thread.start()
    while len(client.inspect(name).waiters) < n:
        time.sleep(0.05)
    return first, threads


async def many_tasks(url: str, sizes: list[int], counts: int) -> dict[int, list[float]]:
    import dibs.aio

    times: dict[int, list[float]] = {n: [] for n in sizes}
    async with dibs.aio.connect(url) as client:
        for turn, n in enumerate(sizes):
            turns = Turns(counts)
            first, tasks = await _waiting_tasks(client, f"queue-{turn}", n, turns)
            turns.began = time.perf_counter()
            await first.release()
            await asyncio.gather(*tasks)
            times[n].append((turns.ended - turns.began) / counts)
    return times


async def idle_tasks(start: Callable[[], None], url: str, many: int, seconds: float) -> float:
    import dibs.aio

    async with dibs.aio.connect(url) as client:
        first, tasks = await _waiting_tasks(client, "queue", many, Turns(1))
        await asyncio.to_thread(start)
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        await first.release()
        await asyncio.gather(*tasks)
    return share * 100.0


async def _waiting_tasks(client: Any, name: str, n: int, turns: Turns) -> tuple[Any, list[asyncio.Task[None]]]:
    async def wait() -> None:
        lock = client.lock(name)
        while turns.left > 0:
            async with lock:
                turns.take()

    first = await client.lock(name).acquire()
    tasks = [asyncio.create_task(wait()) for _ in range(n)]
    while len((await client.inspect(name)).waiters) < n:  # noqa: ASYNC110  (nobody tells how many wait)
        await asyncio.sleep(0.05)
    return first, tasks


ROWS = {"waiters": waiters}

if __name__ == "__main__":
    main(__doc__, ROWS)
