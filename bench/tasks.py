#!/usr/bin/env python3
"""asyncio: pairs/s of 100 tasks that share one client, on 100 names.

  bench/tasks.py [--only redis_tasks | --only zookeeper_tasks]

redis_tasks      Beside redis.asyncio's Lock. Bar: 6 x.
zookeeper_tasks  Beside one task. Bar: 4 x.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from measure import Report, Settings, main, p50
from redis_peers import LEASE, address
from servers import serving

TASKS = 100
DIBS_AIO, REDIS_AIO, ONE = "dibs.aio, 100 tasks", "redis.asyncio Lock, 100 tasks", "dibs.aio, one task"
Locks = Callable[[str, AsyncExitStack], Awaitable[list[Any]]]


def tasks(
    kind: str, peer: str, theirs: Locks, least: float, counts: tuple[int, int], report: Report, settings: Settings
) -> None:
    found: dict[str, list[float]] = {}
    with serving(kind, settings.directory, quick=settings.quick) as store:
        some = {DIBS_AIO: dibs_locks, peer: theirs}
        asyncio.run(_rates(report, store.url, some, settings.choose(*counts), settings.rounds * 2, found))
    figures = {name: p50(rates) for name, rates in found.items() if rates}
    for name, rate in figures.items():
        report.line(name, {"pairs_per-s": rate})
    report.beside("pairs/s", figures, DIBS_AIO, peer, "per-s", least=least)


async def _rates(
    report: Report, url: str, contenders: dict[str, Locks], count: int, rounds: int, found: dict[str, list[float]]
) -> None:
    """Pairs/s of each contender, in turns."""
    async with AsyncExitStack() as stack:
        locks = {}
        for name, make in contenders.items():
            with report.or_left_out(name):
                locks[name] = await make(url, stack)
                await _rate(locks[name], 300)  # connects
                found[name] = []
        for _ in range(rounds):
            for name in list(found):
                with report.or_left_out(name):
                    found[name].append(await _rate(locks[name], count))


async def _rate(locks: list[Any], count: int) -> float:
    """`count` pairs, shared by a task for each lock."""

    async def pairs(lock: Any) -> None:
        for _ in range(count // len(locks)):
            await lock.acquire()
            await lock.release()

    began = time.perf_counter()
    await asyncio.gather(*map(pairs, locks))
    return count / (time.perf_counter() - began)


async def dibs_locks(url: str, stack: AsyncExitStack, count: int = TASKS) -> list[Any]:
    import dibs.aio

    client = await stack.enter_async_context(dibs.aio.connect(url))
    return [client.lock(f"task-{number}") for number in range(count)]


async def one_dibs_lock(url: str, stack: AsyncExitStack) -> list[Any]:
    return await dibs_locks(url, stack, 1)


async def redis_locks(url: str, stack: AsyncExitStack) -> list[Any]:
    import redis.asyncio

    host, port = address(url)
    client = await stack.enter_async_context(redis.asyncio.Redis(host=host, port=port))
    return [client.lock(f"their-task-{number}", timeout=LEASE) for number in range(TASKS)]


def redis_tasks(report: Report, settings: Settings) -> None:
    tasks("redis", REDIS_AIO, redis_locks, 6.0, (5000, 1000), report, settings)


def zookeeper_tasks(report: Report, settings: Settings) -> None:
    tasks("zookeeper", ONE, one_dibs_lock, 4.0, (2000, 300), report, settings)


ROWS = {"redis_tasks": redis_tasks, "zookeeper_tasks": zookeeper_tasks}

if __name__ == "__main__":
    main(__doc__, ROWS)
