#!/usr/bin/env python3
"""What nobody owns, on the embedded store: how soon a latch wakes who waits, and what a fence costs.

  bench/ownerless.py [--only latch_wake | --only fence_admit]

latch_wake   Two processes open each other's latch in turns: from just before `count_down` is called until `wait` has
             returned in the other one, beside a bare wake (see contend.py). Bar: 5 bare wakes.
fence_admit  `fence.admit` of a token that rises each time, which is one write that survives a power cut; beside it one
             bare commit of the same durability (synchronous = FULL, the last one also in the mode that does not wait
             for the disk), the same token again, which writes nothing, and `within=` a transaction of one's own,
             beside that transaction without a fence. Bar: 1.5 x one commit.
"""

from __future__ import annotations

import mmap
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from contend import WAKE, bare_wakes
from crew import together
from measure import Report, Settings, Timed, interleaved, main, microseconds, p50, timed

LATCH = "dibs latch"
COMMIT, QUICK = "one commit, synced", "one commit, not synced"
ADMIT, AGAIN, OWN, WITHIN = "dibs admit", "dibs admit, same token", "own transaction", "own transaction, admit within"
_WHEN = struct.Struct("d")


def latch_wake(report: Report, settings: Settings) -> None:
    wakes: list[float] = []
    gaps: list[float] = []
    turns = settings.choose(150, 40)
    for _ in range(settings.rounds):
        wakes += bare_wakes(settings.directory, turns)
        with mmap.mmap(-1, mmap.PAGESIZE) as shared:
            calls = [(settings.sqlite("latch"), me, shared, turns) for me in range(2)]
            gaps += [gap for mine in together(throw, calls, patience=60.0) for gap in mine]
    report.line(WAKE, microseconds(wakes))
    report.line(LATCH, microseconds(gaps))
    wake = (WAKE, p50(wakes) * 1e6)
    report.against("p50 of a latch's wake-up at most 5 bare wakes", p50(gaps) * 1e6, wake, "us", most=5.0)


def throw(start: Callable[[], None], url: str, me: int, shared: mmap.mmap, turns: int) -> list[float]:
    """One of two: waits for its own latch, arms it again, and opens the other's, with a pause so that it sleeps."""
    import dibs

    clock, gaps = time.perf_counter, []
    with dibs.connect(url) as client:
        mine, other = (client.latch(f"latch-{number}") for number in (me, 1 - me))
        mine.count_down(1_000_000)  # of a round before
        mine.arm(1)
        start()
        for turn in range(turns * 2):
            if turn % 2 == me:
                time.sleep(0.005)
                _WHEN.pack_into(shared, 0, clock())
                other.count_down()
            else:
                mine.wait()
                now = clock()
                gaps.append(now - _WHEN.unpack_from(shared)[0])
                mine.arm(1)
    return gaps


def fence_admit(report: Report, settings: Settings) -> None:
    import dibs

    with ExitStack() as stack:
        client = stack.enter_context(dibs.connect(settings.sqlite("fence")))
        fence, still, tokens = client.fence("rising"), client.fence("still"), count(1)
        own = database(settings.directory / "own.db", "full", stack)
        cases: dict[str, Timed] = {
            COMMIT: commits(settings.directory / "synced.db", "full", stack),
            QUICK: commits(settings.directory / "quick.db", "normal", stack),
            ADMIT: timed(lambda: fence.admit(next(tokens))),
            AGAIN: timed(lambda: still.admit(7)),
            OWN: timed(lambda: change(own)),
            WITHIN: timed(lambda: change(own, lambda: fence.admit(next(tokens), within=own))),
        }
        times = interleaved(report, cases, settings.choose(300, 60), settings.rounds)
    floor = p50(times[COMMIT])
    for name, some in times.items():
        report.line(name, {**microseconds(some), "to one synced commit_x": p50(some) / floor})
    peer = (COMMIT, floor * 1e6)
    report.against("p50 of fence.admit at most 1.5 x one commit", p50(times[ADMIT]) * 1e6, peer, "us", most=1.5)


def change(connection: sqlite3.Connection, check: Callable[[], None] = lambda: None) -> None:
    with connection:
        check()
        connection.execute("insert or replace into floor values ('name', 'me')")


def commits(path: Path, mode: str, stack: ExitStack) -> Timed:
    connection = database(path, mode, stack)
    connection.isolation_level = None
    tokens = count(1)

    def once() -> None:
        connection.execute("insert or replace into floor values ('name', ?)", (next(tokens),))

    return timed(once)


def database(path: Path, mode: str, stack: ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    stack.callback(connection.close)
    connection.execute("pragma page_size = 1024")
    connection.execute("pragma journal_mode = wal")
    connection.execute(f"pragma synchronous = {mode}")
    connection.execute("create table floor (name text primary key, holder text) without rowid")
    return connection


ROWS = {"latch_wake": latch_wake, "fence_admit": fence_admit}

if __name__ == "__main__":
    main(__doc__, ROWS)
