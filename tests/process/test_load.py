"""Many processes, threads and clients on one file, with and without kill -9: never two at once, nobody left out."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
from lab import leaks
from lab.checkers import judge
from lab.crowd import Crowd
from lab.nursery import state_of
from lab.surface import Target, clock
from lab.worker import Spec

TARGETS = [Target("a", "mutex", 1), Target("b", "mutex", 1)]
KILLS, AT_ONCE = 60, 5
SOME_USES = 1500
"""Bytes of history."""
WITHIN = 60.0


def specs(directory: Path, procs: int, **options: Any) -> list[Spec]:
    url = f"sqlite:///{directory / 'locks.db'}"
    return [Spec(f"p{n}", url, str(directory), "load", TARGETS, 5.0, look=0.0, **options) for n in range(procs)]


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def instants(dice: random.Random) -> Iterator[None]:
    """Each a random moment later than the last, met to the microsecond: a sleep would end on a tick."""
    while True:
        instant = clock() + dice.uniform(0, 0.02)
        while clock() < instant:
            pass
        yield


@pytest.mark.slow
def test_kill_at_random_instants(tmp_path: Path) -> None:
    """Five at a time, from seven; nine times of ten they were at work, else they may just have been starting."""
    dice = random.Random(5)
    with Crowd(specs(tmp_path, procs=7, threads=1)) as crowd:
        moment = instants(dice)
        while len(crowd.killed) < KILLS:
            victims = dice.sample(sorted(crowd.running), AT_ONCE)
            if dice.random() < 0.9:
                crowd.until(lambda victims=victims: all(crowd.size(victim) > SOME_USES for victim in victims), "work")
            next(moment)
            crowd.kill(*victims)
            for victim in victims:
                crowd.successor(victim)
            crowd.heal()
        crowd.quiet(WITHIN)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=WITHIN, fenced=fenced)
    assert not verdict.violations, verdict.text()
    assert history.faults["kill -9"] == KILLS
    assert sound(tmp_path / "locks.db")
    with dibs.connect(f"sqlite:///{tmp_path / 'locks.db'}") as heir:
        for target in TARGETS:
            hold = heir.lock(target.name).acquire(timeout=0)
            assert hold is not None, "a newcomer finds everything free"
            assert hold.token > max(use.token for use in history.grants if use.name == target.name)
            hold.release()


@pytest.mark.slow
def test_processes_threads_and_clients_at_once(tmp_path: Path) -> None:
    """2 processes, 4 threads and 4 tasks each, over a client of either kind: 10 uses of each, none at once."""
    with Crowd(specs(tmp_path, procs=2, threads=4, tasks=4, uses=10)) as crowd:
        crowd.until(lambda: all(state_of(pid) == "Z" for pid in crowd.running.values()), "all are through")
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=WITHIN, fenced=fenced)
    assert not verdict.violations, verdict.text()
    assert len(history.uses) == 160
    assert all(use.granted or use.timeout < 20 for use in history.uses), "whoever was patient was served"
    assert sound(tmp_path / "locks.db")


def test_a_newcomer_killed_before_it_is_known_leaves_nothing(tmp_path: Path) -> None:
    """It has made its files, but the store stands still before its first transaction."""
    path = tmp_path / "locks.db"
    beside = path.with_name("locks.db.d")
    with Crowd(specs(tmp_path, procs=1)) as crowd:
        crowd.until(lambda: crowd.grants() > 0, "somebody works")
        standing = crowd.stand_still(path)
        crowd.until(lambda: state_of(standing) == "T", "the standstill")
        crowd.successor("p0")
        crowd.until(lambda: len(list(beside.glob("*.sock"))) == 2, "the newcomer's files")
        crowd.kill("p0+1")
        crowd.end_standstill(standing)
        crowd.end()
    with dibs.connect(f"sqlite:///{path}") as another:
        another.inspect("a")
    assert leaks.sqlite(path)() == []


def test_making_the_file_drops_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that closes any descriptor of a file loses its POSIX locks on it, also those of its other clients."""
    path = tmp_path / "locks.db"
    close, mknod, made, go_on = os.close, os.mknod, threading.Event(), threading.Event()

    def stop_maker() -> None:
        if threading.current_thread().name == "maker" and not made.is_set():
            made.set()
            go_on.wait(WITHIN)

    def stop_before_close(file: int) -> None:
        stop_maker()
        close(file)

    def stop_after_mknod(path: Path, mode: int) -> None:
        mknod(path, mode)
        stop_maker()

    def locks() -> int:
        return Path("/proc/locks").read_text().count(f":{path.stat().st_ino} ")

    monkeypatch.setattr(os, "close", stop_before_close)
    monkeypatch.setattr(os, "mknod", stop_after_mknod)
    with dibs.connect(f"sqlite:///{path}") as one, dibs.connect(f"sqlite:///{path}") as other:
        maker = threading.Thread(target=one.inspect, args=("a",), name="maker")
        maker.start()
        try:
            assert made.wait(WITHIN)
            with other.lock("a"):
                before = locks()
                go_on.set()
                maker.join()
                assert (before, locks()) == (1, 1), "SQLite's lock on its file: others may delete its log without it"
        finally:
            go_on.set()
            maker.join()
