#!/usr/bin/env python3
"""Shared primitives on the embedded store: how soon a latch wakes a waiter, and what a fence costs.

  bench/shared.py [--only latch_wake | --only fence_admit]

latch_wake   Two processes open each other's latch in turns: from just before `count_down` is called until `wait` has
             returned in the other one, beside a datagram on a Unix socket. Bar: 5 of those.
fence_admit  `fence.admit` of a token that rises each time, which is one write that survives a power cut. Beside it: one
             bare commit of the same durability (synchronous = FULL) and one that does not wait for the disk; the same
             token again, which writes nothing; a transaction of the caller's, with `within=` and without a fence. Bar:
             1.5 x one commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from crew import Side, one_way
from measure import Report, Settings, Timed, interleaved, main, microseconds, p50, timed
from peers import WAKE, bare_wakes

LATCH = "dibs latch"
COMMIT, QUICK = "one commit, synced", "one commit, not synced"
ADMIT, AGAIN, OWN, WITHIN = "dibs admit", "dibs admit, same token", "own transaction", "own transaction, admit within"


def latch_wake(report: Report, settings: Settings) -> None:
    wakes: list[float] = []
    gaps: list[float] = []
    turns, url = settings.choose(150, 40), settings.sqlite("latch")
    for _ in range(settings.rounds):
        wakes += bare_wakes(url, turns)
        gaps += one_way(partial(latches, url), turns)
    report.line(WAKE, microseconds(wakes))
    report.line(LATCH, microseconds(gaps))
    wake = (WAKE, p50(wakes) * 1e6)
    report.against("p50 of a latch's wake-up at most 5 bare wakes", p50(gaps) * 1e6, wake, "us", most=5.0)


def latches(url: str, me: int, stack: ExitStack) -> Side:
    """One of two processes: waits for its own latch, arms it again, and opens the other's."""
    import dibs

    client = stack.enter_context(dibs.connect(url))
    mine, other = (client.latch(f"latch-{number}") for number in (me, 1 - me))
    mine.count_down(1_000_000)  # of a round before
    mine.arm(1)
    return other.count_down, mine.wait, lambda: mine.arm(1)


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
