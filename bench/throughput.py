#!/usr/bin/env python3
"""Throughput: 1 to 16 processes take one lock and release it, as fast as they can.

  bench/throughput.py [--only throughput_redis | ...]

One row for each store. Acquisitions/s of all processes together, by their number, beside the locks that people use on
the same server. No bars: contend.py, redis_locks.py and zookeeper.py have those of four processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import redis_peers
import sql_peers
import zookeeper_peers
from contend import FAIR, FILELOCK, UNFAIR, Maker, compare, embedded_locks, processes
from measure import Report, Settings, main

SIZES = (1, 2, 4, 8, 16)
SECONDS = (1.5, 0.3)


@contextmanager
def on_sqlite(settings: Settings) -> Iterator[Mapping[str, Maker]]:
    locks = embedded_locks(settings)
    yield {name: locks[name] for name in (FAIR, UNFAIR, FILELOCK)}


@contextmanager
def on_redis(settings: Settings) -> Iterator[Mapping[str, Maker]]:
    with redis_peers.serving() as server:
        yield {
            FAIR: lambda stack: redis_peers.dibs_lock(server.port, stack, "throughput"),
            UNFAIR: lambda stack: redis_peers.dibs_lock(server.port, stack, "unfair", fair=False),
            redis_peers.REDIS_LOCK: partial(redis_peers.python_redis_lock, server.port),
            redis_peers.REDIS_PY: partial(redis_peers.redis_py_lock, server.port),
        }


@contextmanager
def on_zookeeper(settings: Settings) -> Iterator[Mapping[str, Maker]]:
    with zookeeper_peers.serving(settings) as server:
        ours = zookeeper_peers.url(server.port)
        yield {
            FAIR: lambda stack: sql_peers.dibs_lock(ours, stack, "throughput"),
            UNFAIR: lambda stack: sql_peers.dibs_lock(ours, stack, "unfair", fair=False),
            zookeeper_peers.KAZOO: partial(zookeeper_peers.kazoo_lock, server.port),
        }


@contextmanager
def on_sql(name: str, settings: Settings) -> Iterator[Mapping[str, Maker]]:
    place = sql_peers.PLACES[name]
    with sql_peers.serving(place, settings) as url:
        yield {
            FAIR: lambda stack: sql_peers.dibs_lock(url, stack, "throughput"),
            UNFAIR: lambda stack: sql_peers.dibs_lock(url, stack, "unfair", fair=False),
            "dibs fair, session mode": lambda stack: sql_peers.dibs_lock(f"{url}?mode=session", stack, "in-session"),
            sql_peers.BY_HAND: partial(sql_peers.ByHand, place, url),
        }


def throughput(
    serving: Callable[[Settings], AbstractContextManager[Mapping[str, Maker]]], report: Report, settings: Settings
) -> None:
    with serving(settings) as makers:
        for size in settings.choose(SIZES, SIZES[:2]):
            contenders = {name: processes(make, size) for name, make in makers.items()}
            for name, outcome in compare(report, settings, contenders, hold=0.0, seconds=SECONDS).items():
                report.line(f"{name}, {size} processes", {"rate_per-s": outcome.rate(), "jain_": outcome.jain()})


ROWS: dict[str, Callable[[Report, Settings], None]] = {
    "throughput_sqlite": partial(throughput, on_sqlite),
    "throughput_redis": partial(throughput, on_redis),
    "throughput_zookeeper": partial(throughput, on_zookeeper),
    "throughput_postgresql": partial(throughput, partial(on_sql, "postgresql")),
    "throughput_mysql": partial(throughput, partial(on_sql, "mysql")),
}

if __name__ == "__main__":
    main(__doc__, ROWS)
