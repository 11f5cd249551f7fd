"""Many processes, threads and clients on one file, with and without kill -9: never two at once, nobody left out."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from process import records
from process.children import Child, Crew, clock, until

NAMES = ("a", "b")
KILLS = 30


def sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.slow
def test_kill_at_random_instants(crew: Crew, tmp_path: Path) -> None:
    log, dice, killed = tmp_path / "log", random.Random(5), {}

    def start(seed: int) -> Child:
        return crew.start("load", crew.url, 2, 0, log, seed, 2, 1, *NAMES)

    workers = [start(seed) for seed in range(3)]
    for worker in workers:
        worker.hear("ready")
    for number in range(KILLS):
        victim = dice.randrange(len(workers))
        size = log.stat().st_size if log.exists() else 0
        until(lambda size=size: log.exists() and log.stat().st_size > size, within=10, what="somebody works")
        instant = clock() + dice.uniform(0, 0.06)
        while clock() < instant:
            pass
        killed[workers[victim].pid] = clock()
        workers[victim].kill()
        workers[victim] = start(100 + number)
        workers[victim].hear("ready")
    for worker in workers:
        killed[worker.pid] = clock()
        worker.kill()
    uses = records.read(log, killed)
    records.check(uses)
    print(f"figure: {KILLS} kills under load, {sum(map(len, uses.values()))} holds")
    assert set(uses) == set(NAMES)
    assert sound(crew.path)
    heir = crew.worker()
    for name in NAMES:
        assert heir.take(name, 0) > uses[name][-1].token, "a newcomer finds everything free"


@pytest.mark.slow
def test_processes_threads_and_clients_at_once(crew: Crew, tmp_path: Path) -> None:
    """2 processes, 4 threads each, over 2 clients each: 200 holds, none at once, all served."""
    log = tmp_path / "log"
    begun = clock()
    children = [crew.start("load", crew.url, 5, 25, log, seed, 4, 2, *NAMES) for seed in range(2)]
    for child in children:
        child.hear("ready")
        child.hear("done", within=50)
        assert child.end() == 0
        assert child.errors == ""
    uses = records.read(log, {})
    records.check(uses)
    total = sum(map(len, uses.values()))
    print(f"figure: {total} holds by 8 threads of 2 processes in {clock() - begun:.2f} s")
    assert total == 200
    assert sound(crew.path)


def test_a_forged_overlap_is_noticed(tmp_path: Path) -> None:
    """The check itself: it must be able to fail."""
    log = tmp_path / "log"
    log.write_text("begin a 1 1.0 7\nbegin a 2 1.5 8\nend a 1 2.0 7\nend a 2 2.5 8\n")
    with pytest.raises(AssertionError, match="two at once"):
        records.check(records.read(log, {}))
    log.write_text("begin a 2 1.0 7\nend a 2 1.2 7\nbegin a 1 1.5 8\nend a 1 2.0 8\n")
    with pytest.raises(AssertionError, match="do not rise"):
        records.check(records.read(log, {}))
    log.write_text("begin a 1 1.0 7\nbegin a 2 1.5 8\nend a 2 1.7 8\n")
    with pytest.raises(AssertionError, match="two at once"):
        records.check(records.read(log, {7: 1.6}))
