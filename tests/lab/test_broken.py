"""The lab's own trial: it must convict every broken lock, by the right checker, and acquit those that are sound.

All are tried alike: three processes with two threads each fight for three names, and some uses are deaf or outlast
their lease. A broken lock is tried again, with another seed, until it is convicted; there is an end to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path

import pytest

from dibs.core.rule import RW_CAPACITY
from lab.broken.locks import BROKEN
from lab.broken.straw import laid, left
from lab.checkers import Verdict, judge
from lab.crowd import Crowd
from lab.matrix import sqlite_left
from lab.surface import Target, clock
from lab.worker import Spec

TARGETS = [Target("a", "mutex", 1), Target("b", "rw", RW_CAPACITY), Target("c", "semaphore", 3)]
CHANCES = {"long": 0.02, "past": 0.12, "stall": 0.04}
STRAW_LEASE, LEASE = 0.3, 0.5
ROUND, ENOUGH = 1.5, 300
"""A round lasts at least so many seconds, and so many grants; these may take long on a busy machine."""
TRIAL = 120.0
"""No round begins after this time."""
STUCK = 3.0
"""Within this time a lock that lost a wake-up serves nobody: its waiters wait for six times as long."""
PATIENCE = 20.0
"""Seconds that a sound lock may take on a busy machine."""


def specs(url: str, directory: Path, seed: object, lease: float, procs: int = 3, tasks: int = 0) -> list[Spec]:
    return [
        Spec(
            f"p{number}", url, str(directory), str(seed), TARGETS, lease, threads=6 // procs, tasks=tasks,
            chances=CHANCES, look=0.5,
        )
        for number in range(procs)
    ]  # fmt: skip


def caught(crowd: Crowd, kind: str) -> Verdict:
    """Look while they run, as long as a round is: most are convicted at once."""
    begun = clock()
    while True:
        history = crowd.history()
        verdict = judge(history, within=STUCK)
        lasted = clock() - begun
        if verdict.guilty[kind] or (lasted > ROUND and (len(history.grants) > ENOUGH or lasted > TRIAL / 4)):
            return verdict
        time.sleep(0.1)


def once_quiet(crowd: Crowd) -> Verdict:
    crowd.heal()
    crowd.quiet(STUCK)
    return judge(crowd.history(), within=STUCK)


def once_over(crowd: Crowd, store: Path) -> Verdict:
    crowd.heal()
    crowd.end()
    return judge(crowd.history(), within=STUCK, left=left(store))


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_lock_is_convicted(name: str, tmp_path: Path) -> None:
    kind = BROKEN[name].convicted_of
    end = clock() + TRIAL
    for seed in takewhile(lambda seed: clock() < end, count()):
        directory = tmp_path / str(seed)
        directory.mkdir()
        with Crowd(specs(f"broken:{name}:{laid(directory / 'store')}", directory, seed, STRAW_LEASE)) as crowd:
            verdict = caught(crowd, kind)
            if kind == "liveness":
                verdict = once_quiet(crowd)
            elif kind == "leak":
                verdict = once_over(crowd, directory / "store")
        if verdict.guilty[kind]:
            return
    pytest.fail(f"{name} was acquitted in every round; the last verdict: {verdict.guilty}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "lease", "procs", "tasks", "look"),
    [
        (lambda file: f"broken:sound:{laid(file)}", STRAW_LEASE, 3, 0, lambda directory: left(directory / "store")),
        ("sqlite:///{}".format, LEASE, 3, 1, sqlite_left),
        ("memory://trial".format, LEASE, 1, 3, lambda directory: []),
    ],
    ids=["straw", "sqlite", "memory"],
)
def test_a_sound_lock_is_acquitted(
    url: Callable[[Path], str],
    lease: float,
    procs: int,
    tasks: int,
    look: Callable[[Path], list[str]],
    tmp_path: Path,
) -> None:
    with Crowd(specs(url(tmp_path / "store"), tmp_path, "sound", lease, procs, tasks)) as crowd:
        verdict = caught(crowd, "overlap")
        assert not verdict.violations, verdict.text()
        crowd.until(lambda: crowd.history().faults["body past the lease"], "somebody outlasts its lease")
        crowd.heal()
        crowd.quiet(PATIENCE)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=PATIENCE, fenced=fenced, left=look(tmp_path))
    assert not verdict.violations, verdict.text()
    assert history.hand_overs > 20


@pytest.mark.slow
def test_locks_that_know_nothing_of_each_other_are_convicted(tmp_path: Path) -> None:
    """dibs itself, used wrongly: a memory store for each process is no lock between them."""
    with Crowd(specs("memory://", tmp_path, 0, LEASE)) as crowd:
        crowd.until(lambda: judge(crowd.history(), within=STUCK).guilty["overlap"], "overlap")
        crowd.until(lambda: judge(crowd.history(), within=STUCK).guilty["token"], "tokens that repeat")
