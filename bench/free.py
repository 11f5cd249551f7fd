#!/usr/bin/env python3
"""Free pair: what one acquire + release costs while nobody else wants the lock.

  bench/free.py [--only redis_free | ...]

free_memory                  The core and the API alone: `memory://` does no I/O. Beside it stands version 0.1.0, in
                             turns, each turn in a fresh process. Bar: 0.4 x.
free_sqlite, redis_free, postgresql_free, mysql_free, zookeeper_free
                             Bars: 2.0, 1.6, 1.3, 1.5 and 1.25 x the floor; below filelock and, on MariaDB, tooz; 0.55 x
                             redis-py's Lock and 0.6 x Redisson's RLock; 0.9 x Curator, and its own in asyncio.
postgresql_session_free, mysql_session_free
                             Session mode. Bar: 1.35 x the server's session lock, by hand.
redis_quorum                 A free pair on five independent servers, beside five floors one after the other. No bar.

On Redis some of it runs again with client and server on cores of their own.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import redis_peers
import redisson
import sql_peers
import zookeeper_peers
from crew import Failed
from measure import Report, Settings, Timed, in_loop, interleaved, main, microseconds, p50, pair_of, timed
from peers import FILELOCK, PEERS
from servers import a_core_each, serving

from lab.servers.redis_groups import independent

PAIR, WITH, AIO = "dibs pair", "dibs with", "dibs.aio pair"
OLD, NOW = "dibs 0.1.0, fresh process", "dibs pair, fresh process"
FLOORS = "five floors in a row"
FIRST_VERSION = "c248a0426d0e"
_FRESH = """
import sys, time, dibs
assert dibs.__file__.startswith(sys.argv[1]), dibs.__file__
clock, times, count = time.perf_counter, [], int(sys.argv[2])
with dibs.connect("memory://fresh") as client:
    lock = client.lock("pair")
    for _ in range(count):
        start = clock()
        lock.acquire()
        lock.release()
        times.append(clock() - start)
print(sorted(times[count // 4:])[count * 3 // 8])
"""


def free_memory(report: Report, settings: Settings) -> None:
    count = settings.choose(4000, 1000)
    with serving("memory", settings.directory) as store, ExitStack() as stack:
        times = interleaved(report, dibs_cases(store.url, stack), count, settings.rounds)
    lines(report, times)
    with report.or_left_out("version 0.1.0"):
        old, new = old_source(settings), Path(__file__).resolve().parents[1]
        cases: dict[str, Timed] = {
            OLD: lambda n: [in_fresh_process(old, count) for _ in range(n)],
            NOW: lambda n: [in_fresh_process(new, count) for _ in range(n)],
        }
        figures = lines(report, interleaved(report, cases, 1, settings.rounds * settings.choose(8, 2)))
        report.beside("p50 of a free pair", figures, NOW, OLD, "us", most=0.4)


def old_source(settings: Settings) -> Path:
    """The tree that --old names, or what git has."""
    if settings.old is not None:
        return settings.old.resolve()
    place = settings.built / "old"
    if not place.exists():
        place.mkdir()
        archive = ["git", "-C", str(Path(__file__).parents[1]), "archive", FIRST_VERSION, "src"]
        packed = subprocess.run(archive, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", str(place)], input=packed.stdout, check=True)
    return place


def in_fresh_process(tree: Path, count: int) -> float:
    """The p50 of its free pairs on memory, after it got warm."""
    source = str(tree / "src")
    words = [sys.executable, "-c", _FRESH, source, str(count)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": source}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip().rpartition("\n")[2])
    return float(done.stdout)


def free(
    kind: str, bars: Mapping[tuple[str, str], float], n: tuple[int, int], turns: int, report: Report,
    settings: Settings, *, mode: str = "lease",
) -> None:  # fmt: skip
    """`bars` has, for one of ours and one of theirs, the ratio that ours may have."""
    peers = PEERS[kind]
    with serving(kind, settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        makers: dict[str, Callable[[], Timed]] = {peers.floor: lambda: peers.floor_pair(store.url, stack)}
        makers |= {name: lambda make=make: pair_of(make(store.url, stack)) for name, make in peers.locks.items()}
        makers |= {name: lambda make=make: make(store.url, settings, stack) for name, make in peers.pairs.items()}
        cases: dict[str, Timed] = {}
        for name, make_pair in makers.items():
            with report.or_left_out(name):
                cases[name] = make_pair()
        with report.or_left_out("dibs"):
            cases |= dibs_cases(in_mode(store.url, mode), stack)
        # Short turns, many of them: both sides of a ratio see the same machine.
        times = interleaved(report, cases, settings.choose(*n), settings.rounds * turns)
        figures = lines(report, times, peers.floor)
        if kind == "redis":
            some = {name: run for name, run in cases.items() if name in (peers.floor, redis_peers.REDIS_PY, PAIR)}
            with report.or_left_out("a core each"), a_core_each(store.pid):
                times = interleaved(report, some, settings.choose(*n), settings.rounds * turns)
                lines(report, times, peers.floor, ", a core each")
    for (ours, peer), most in bars.items():
        report.beside("p50 of a free pair", figures, ours, peer, "us", most=most)


def redis_quorum(report: Report, settings: Settings) -> None:
    with independent(5) as servers, ExitStack() as stack:
        urls = [server.url() for server in servers]
        floors = [redis_peers.two_scripts(url, stack) for url in urls]
        cases: dict[str, Timed] = {
            FLOORS: lambda n: [sum(at_each) for at_each in zip(*(floor(n) for floor in floors), strict=True)]
        }
        with report.or_left_out(redis_peers.POTTERY):
            cases[redis_peers.POTTERY] = pair_of(redis_peers.pottery_lock(urls, stack))
        with report.or_left_out("dibs"):
            members = ",".join(":".join(map(str, redis_peers.address(url))) for url in urls)
            cases |= dibs_cases(f"quorum+redis://{members}?guard=0", stack)  # the servers are new and have lost nothing
        times = interleaved(report, cases, settings.choose(100, 30), settings.rounds * 2)
    lines(report, times, FLOORS)


def lines(report: Report, times: Mapping[str, list[float]], floor: str = "", how: str = "") -> dict[str, float]:
    """The p50 of each, in us."""
    figures = {name: p50(some) * 1e6 for name, some in times.items()}
    for name, some in times.items():
        ratio = {"to floor_x": figures[name] / figures.get(floor, math.nan)} if floor else {}
        report.line(name + how, {**microseconds(some), **ratio})
    return figures


def in_mode(url: str, mode: str) -> str:
    """The same store, with another default of `mode`."""
    return url if mode == "lease" else f"{url}?mode={mode}"


def dibs_cases(url: str, stack: ExitStack) -> dict[str, Timed]:
    import dibs

    client = stack.enter_context(dibs.connect(url))

    def block() -> None:
        with client.lock("with"):
            pass

    return {PAIR: pair_of(client.lock("pair")), WITH: timed(block), AIO: aio_pair(url, stack)}


def aio_pair(url: str, stack: ExitStack) -> Timed:
    client, timed_there = in_loop(url, stack)
    lock = client.lock("aio")

    async def once() -> None:
        await lock.acquire()
        await lock.release()

    return timed_there(once)


def _floor(kind: str, most: float) -> dict[tuple[str, str], float]:
    return {(PAIR, PEERS[kind].floor): most}


_BY_HAND = {(PAIR, sql_peers.BY_HAND): 1.35}
ROWS: dict[str, Callable[[Report, Settings], None]] = {
    "free_memory": free_memory,
    "free_sqlite": partial(free, "sqlite", _floor("sqlite", 2.0) | {(PAIR, FILELOCK): 1.0}, (500, 150), 1),
    "redis_free": partial(
        free, "redis",
        _floor("redis", 1.6) | {(PAIR, redis_peers.REDIS_PY): 0.55, (PAIR, redisson.LOCK): 0.6}, (200, 60), 4,
    ),
    "postgresql_free": partial(free, "postgresql", _floor("postgresql", 1.3), (100, 30), 4),
    "mysql_free": partial(free, "mysql", _floor("mysql", 1.5) | {(PAIR, sql_peers.TOOZ): 1.0}, (100, 30), 4),
    "zookeeper_free": partial(
        free, "zookeeper",
        _floor("zookeeper", 1.25) | {(PAIR, zookeeper_peers.CURATOR): 0.9, (AIO, zookeeper_peers.CURATOR): 1.0},
        (400, 60), 1,
    ),
    "postgresql_session_free": partial(free, "postgresql", _BY_HAND, (100, 30), 4, mode="session"),
    "mysql_session_free": partial(free, "mysql", _BY_HAND, (100, 30), 4, mode="session"),
    "redis_quorum": redis_quorum,
}  # fmt: skip

if __name__ == "__main__":
    main(__doc__, ROWS)
