#!/usr/bin/env python3
"""Free pair: what one acquire + release costs while nobody else wants the lock.

  bench/free.py [--only free_memory | --only free_sqlite]

free_memory  The core and the faces alone: `memory://` does no I/O. Beside it stands a stepped no-op, coroutines nested
             as deep as ours that do nothing: what the language takes for the shape of the code. Bar: 15 us.
free_sqlite  The embedded store. The floor is an insert and a delete, each committed by itself, on a database with the
             same settings: it is the least that could work and no lock. Bars: 3.3 x the floor, faster than filelock.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from measure import Report, Settings, Timed, interleaved, main, microseconds, p50, timed

NOOP, PAIR, WITH, AIO = "stepped no-op, 2 x 4 deep", "dibs pair", "dibs with", "dibs.aio pair"
FLOOR, FILELOCK, FILELOCK_RW = "floor_two_commits_sqlite", "filelock.FileLock", "filelock.ReadWriteLock (SQLite)"


def free_memory(report: Report, settings: Settings) -> None:
    with ExitStack() as stack:
        cases = {NOOP: timed(stepped_noop)} | dibs_cases("memory://bench", stack)
        times = interleaved(report, cases, settings.choose(4000, 1000), settings.rounds)
    floor = p50(times[NOOP])
    for name, some in times.items():
        report.line(name, {**microseconds(some), "to no-op_x": p50(some) / floor})
    pair = p50(times[PAIR]) * 1e6
    report.limit("p50 of a free pair at most 15 us", pair, "us", most=15.0, peer=(NOOP, floor * 1e6))


def free_sqlite(report: Report, settings: Settings) -> None:
    directory = settings.directory
    makers: dict[str, Callable[[Path, ExitStack], Timed]] = {
        FLOOR: two_commits,
        FILELOCK: file_lock,
        FILELOCK_RW: file_lock_on_sqlite,
    }
    with ExitStack() as stack:
        cases = {}
        for name, make in makers.items():
            with report.or_left_out(name):
                cases[name] = make(directory, stack)
        with report.or_left_out("dibs"):
            cases |= dibs_cases(settings.sqlite("free"), stack)
        times = interleaved(report, cases, settings.choose(500, 150), settings.rounds)
    floor = p50(times[FLOOR])
    for name, some in times.items():
        report.line(name, {**microseconds(some), "to floor_x": p50(some) / floor})
    if PAIR in times:
        pair = p50(times[PAIR]) * 1e6
        report.against("p50 of a free pair at most 3.3 x two commits", pair, (FLOOR, floor * 1e6), "us", most=3.3)
        if FILELOCK in times:
            peer = p50(times[FILELOCK]) * 1e6
            report.against("p50 of a free pair below filelock's", pair, (FILELOCK, peer), "us", most=1.0)


async def _four() -> bool:
    return True


async def _three() -> bool:
    return await _four()


async def _two() -> bool:
    return await _three()


async def _one() -> bool:
    return await _two()


def stepped_noop() -> None:
    for _ in range(2):
        try:
            _one().send(None)
        except StopIteration as done:
            _ = done.value


def dibs_cases(url: str, stack: ExitStack) -> dict[str, Timed]:
    import dibs

    client = stack.enter_context(dibs.connect(url))
    lock = client.lock("pair")

    def pair() -> None:
        lock.acquire()
        lock.release()

    def block() -> None:
        with client.lock("with"):
            pass

    return {PAIR: timed(pair), WITH: timed(block), AIO: aio_pair(url, stack)}


def aio_pair(url: str, stack: ExitStack) -> Timed:
    import dibs.aio

    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    client = dibs.aio.connect(url)
    stack.callback(lambda: loop.run_until_complete(client.close()))
    lock = client.lock("aio")

    async def many(n: int) -> list[float]:
        clock, times = time.perf_counter, []
        for _ in range(n):
            start = clock()
            await lock.acquire()
            await lock.release()
            times.append(clock() - start)
        return times

    return lambda n: loop.run_until_complete(many(n))


def two_commits(directory: Path, stack: ExitStack) -> Timed:
    connection = sqlite3.connect(directory / "floor.db", isolation_level=None)
    stack.callback(connection.close)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("create table floor (name text primary key, holder text)")

    def once() -> None:
        connection.execute("insert into floor values ('name', 'me')")
        connection.execute("delete from floor where name = 'name'")

    return timed(once)


def file_lock(directory: Path, stack: ExitStack) -> Timed:
    import filelock

    lock = filelock.FileLock(directory / "free.lock")

    def once() -> None:
        lock.acquire()
        lock.release()

    return timed(once)


def file_lock_on_sqlite(directory: Path, stack: ExitStack) -> Timed:
    import filelock

    lock = filelock.ReadWriteLock(directory / "free-rw.db")
    stack.callback(lock.close)

    def once() -> None:
        lock.acquire_write()
        lock.release()

    return timed(once)


ROWS = {"free_memory": free_memory, "free_sqlite": free_sqlite}

if __name__ == "__main__":
    main(__doc__, ROWS)
