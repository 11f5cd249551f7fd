#!/usr/bin/env python3
"""Locks on a real Redis server, beside redis-py's Lock, python-redis-lock, tooz and Redisson (Java).

  bench/redis_locks.py [--only redis_free | ...]

redis_free     Free pair, blocking. The floor is two scripts on a bare socket, each waited for. Bars: 1.45 x the floor,
               half of redis-py's Lock. Some of it again with client and server on cores of their own.
redis_tasks    asyncio, one client: pairs/s of 100 tasks on 100 names. Bar: 4 x redis.asyncio's Lock.
redis_contend  Four processes take and give back as fast as they can: acquisitions/s. Bars: 2.5 x python-redis-lock's,
               no token falls.
redis_handoff  Four processes, each holds for 5 ms: from calling `release` to the next one having it. Bars: p50 at most
               half of python-redis-lock's, and 2 x a message that one process publishes to another.
redis_quorum   Free pair on five independent servers, beside five floors one after the other. No bar.

See redis_counts.py for what the server is asked to do, redis_bounds.py for what happens when somebody is killed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any

import redisson
from contend import FAIR, UNFAIR, Contender, compare, handoffs, in_order, processes, rates
from free import PAIR, dibs_cases
from measure import Report, Settings, Timed, interleaved, main, microseconds, p50
from redis_peers import (
    FLOOR,
    LEASE,
    MESSAGE,
    POTTERY,
    REDIS_LOCK,
    REDIS_PY,
    TOOZ,
    a_core_each,
    bare_messages,
    dibs_lock,
    pair_of,
    ports,
    pottery_lock,
    python_redis_lock,
    redis_py_lock,
    serving,
    tooz_lock,
    two_scripts,
    url,
)

from lab.servers.redis_groups import independent

TASKS = 100
DIBS_AIO, REDIS_AIO = "dibs.aio", "redis.asyncio Lock"
FLOORS = "five floors in a row"


def redis_free(report: Report, settings: Settings) -> None:
    makers: dict[str, Callable[[int, ExitStack], Timed]] = {
        FLOOR: two_scripts,
        REDIS_PY: lambda port, stack: pair_of(redis_py_lock(port, stack)),
        REDIS_LOCK: lambda port, stack: pair_of(python_redis_lock(port, stack)),
        TOOZ: lambda port, stack: pair_of(tooz_lock(port, stack)),
        redisson.LOCK: lambda port, stack: redisson.pair(redisson.LOCK, url(port), settings, stack),
    }
    with serving() as server, ExitStack() as stack:
        cases: dict[str, Timed] = {}
        for name, make in makers.items():
            with report.or_left_out(name):
                cases[name] = make(server.port, stack)
        with report.or_left_out("dibs"):
            cases |= dibs_cases(url(server.port), stack)
        # Short turns, many of them: both sides of a ratio see the same weather.
        times = interleaved(report, cases, settings.choose(200, 60), settings.rounds * 4)
        figures = _lines(report, times, FLOOR)
        some = {name: run for name, run in cases.items() if name in (FLOOR, REDIS_PY, PAIR)}
        with report.or_left_out("a core each"), a_core_each(server):
            times = interleaved(report, some, settings.choose(200, 60), settings.rounds * 4)
            _lines(report, times, FLOOR, ", a core each")
    for peer, most in ((FLOOR, 1.45), (REDIS_PY, 0.5)):
        report.beside(f"p50 of a free pair: at most {most:g} x", figures, PAIR, peer, "us", most=most)


def redis_quorum(report: Report, settings: Settings) -> None:
    with independent(5) as servers, ExitStack() as stack:
        places = [server.port for server in servers]
        floors = [two_scripts(port, stack) for port in places]
        cases: dict[str, Timed] = {
            FLOORS: lambda n: [sum(at_each) for at_each in zip(*(floor(n) for floor in floors), strict=True)]
        }
        with report.or_left_out(POTTERY):
            cases[POTTERY] = pair_of(pottery_lock(places, stack))
        with report.or_left_out("dibs"):
            members = ",".join(f"{ports.HOST}:{port}" for port in places)
            cases |= dibs_cases(f"quorum+redis://{members}?guard=0", stack)  # they are new: they have lost nothing
        times = interleaved(report, cases, settings.choose(100, 30), settings.rounds * 2)
    _lines(report, times, FLOORS)


def _lines(report: Report, times: Mapping[str, list[float]], floor: str, how: str = "") -> dict[str, float]:
    """The p50 of each, in us."""
    figures = {name: p50(some) * 1e6 for name, some in times.items()}
    for name, some in times.items():
        report.line(name + how, {**microseconds(some), "to floor_x": figures[name] / figures.get(floor, math.nan)})
    return figures


def redis_contend(report: Report, settings: Settings) -> None:
    with contenders(report, settings) as (_, some):
        outcomes = compare(report, settings, some, hold=0.0)
    for name, outcome in outcomes.items():
        report.line(name, rates(outcome))
    figures = {name: outcome.rate() for name, outcome in outcomes.items()}
    report.beside("acquisitions/s at least 2.5 x", figures, FAIR, REDIS_LOCK, "per-s", least=2.5)
    in_order(report, outcomes, FAIR)


def redis_handoff(report: Report, settings: Settings) -> None:
    messages: list[float] = []
    turns = settings.choose(150, 50)
    with contenders(report, settings) as (port, some):
        outcomes = compare(
            report, settings, some, hold=0.005, before=lambda: messages.extend(bare_messages(port, turns))
        )
    report.line(MESSAGE, microseconds(messages))
    figures = {MESSAGE: p50(messages) * 1e6}
    for name, outcome in outcomes.items():
        report.line(name, handoffs(outcome))
        figures[name] = p50(outcome.gaps) * 1e6
    for peer, most in ((REDIS_LOCK, 0.5), (MESSAGE, 2.0)):
        report.beside(f"p50 of a hand-off at most {most:g} x", figures, FAIR, peer, "us", most=most)
    in_order(report, outcomes, FAIR)


@contextmanager
def contenders(report: Report, settings: Settings) -> Iterator[tuple[int, dict[str, Contender]]]:
    """A server's port and who contends on it. tooz waits as redis-py's Lock does, in naps: it is that lock."""
    with serving() as server, ExitStack() as stack:
        port = server.port
        some = {
            FAIR: processes(lambda stack: dibs_lock(port, stack, "fair")),
            UNFAIR: processes(lambda stack: dibs_lock(port, stack, "unfair", fair=False)),
            REDIS_LOCK: processes(lambda stack: python_redis_lock(port, stack)),
            REDIS_PY: processes(lambda stack: redis_py_lock(port, stack)),
        }
        for kind in redisson.KINDS:
            with report.or_left_out(kind):
                some[kind] = redisson.contender(kind, url(port), settings, stack)
        yield port, some


def redis_tasks(report: Report, settings: Settings) -> None:
    rates_of: dict[str, list[float]] = {}
    with serving() as server:
        asyncio.run(_task_rates(report, server.port, settings, rates_of))
    figures = {name: p50(some) for name, some in rates_of.items() if some}
    for name, rate in figures.items():
        report.line(f"{name}, {TASKS} tasks", {"pairs_per-s": rate})
    report.beside("pairs/s at least 4 x", figures, DIBS_AIO, REDIS_AIO, "per-s", least=4.0)


async def _task_rates(report: Report, port: int, settings: Settings, found: dict[str, list[float]]) -> None:
    """Pairs/s of each contender, in turns."""
    async with AsyncExitStack() as stack:
        contenders = {}
        for name, connect in ((DIBS_AIO, _dibs_tasks), (REDIS_AIO, _redis_tasks)):
            with report.or_left_out(name):
                contenders[name] = await connect(port, stack)
                await _rate(contenders[name], 3)  # connects
                found[name] = []
        for _ in range(settings.rounds * 2):
            for name in list(found):
                with report.or_left_out(name):
                    found[name].append(await _rate(contenders[name], settings.choose(50, 10)))


async def _rate(locks: list[Any], count: int) -> float:
    async def pairs(lock: Any) -> None:
        for _ in range(count):
            await lock.acquire()
            await lock.release()

    began = time.perf_counter()
    await asyncio.gather(*map(pairs, locks))
    return len(locks) * count / (time.perf_counter() - began)


async def _dibs_tasks(port: int, stack: AsyncExitStack) -> list[Any]:
    import dibs.aio

    client = await stack.enter_async_context(dibs.aio.connect(url(port)))
    return [client.lock(f"task-{number}") for number in range(TASKS)]


async def _redis_tasks(port: int, stack: AsyncExitStack) -> list[Any]:
    import redis.asyncio

    client = await stack.enter_async_context(redis.asyncio.Redis(host=ports.HOST, port=port))
    return [client.lock(f"their-task-{number}", timeout=LEASE) for number in range(TASKS)]


ROWS = {
    "redis_free": redis_free,
    "redis_tasks": redis_tasks,
    "redis_contend": redis_contend,
    "redis_handoff": redis_handoff,
    "redis_quorum": redis_quorum,
}

if __name__ == "__main__":
    main(__doc__, ROWS)
