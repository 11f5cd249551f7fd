"""A short slice of the fault matrix of every store, and that a guilty store would be reported."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lab import soak
from lab.checkers import judge
from lab.crowd import Crowd
from lab.matrix import PLANS
from lab.nemesis import FAULTS
from lab.nursery import state_of
from lab.servers.programs import NEEDS, require
from lab.worker import Spec

LEASE = 0.6
OFTEN = 8
"""So many times as often as in a long run, a worker does something foolish."""


@pytest.mark.slow
@pytest.mark.parametrize("store", PLANS)
def test_a_store_under_faults(store: str, tmp_path: Path) -> None:
    if (program := {"mysql": "mariadb"}.get(store, store)) in NEEDS:
        require(program)
    usual = PLANS[store]
    chances = {body: OFTEN * chance for body, chance in usual.chances.items()}
    plan = replace(usual, procs=min(usual.procs, 6), chances=chances, gap=0.15)
    found = soak.soak(store, plan, tmp_path, 2.5, seed=f"ci-{store}", lease=LEASE, each=90)
    print(f"figure: {found}")
    assert found.clean, str(found)
    assert found.hand_overs > 50
    assert all(found.faults.get(fault) for fault in plan.faults), "each of them really happened"
    assert any(kind not in FAULTS for kind in found.faults), "and something inside the workers"
    assert found.bound == 3 / found.hand_overs


def idle(directory: Path) -> list[Spec]:
    return [Spec("p0", "memory://", str(directory), "", [], 1.0, threads=0, tasks=0)]


def test_a_standstill_counts_if_it_was_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Crowd(idle(tmp_path)) as crowd:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN IMMEDIATE")
        crowd.end_standstill(crowd.stand_still(path))
        assert crowd.history().faults == {}, "it was kept out"
        other.execute("ROLLBACK")
        pid = crowd.stand_still(path)
        crowd.until(lambda: state_of(pid) == "T", "it is in")
        other.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO t VALUES (1)")
        crowd.end_standstill(pid)
        assert crowd.history().faults == {"store at a standstill": 1}
        other.execute("INSERT INTO t VALUES (1)")


def test_a_crash_of_a_worker_is_an_error(tmp_path: Path) -> None:
    """A lock that does not exist: the worker ends with a traceback, and the verdict says so."""
    with Crowd([replace(idle(tmp_path)[0], url="broken:no-such-lock:x")]) as crowd:
        crowd.until(lambda: state_of(crowd.running["p0"]) == "Z", "its end")
        crowd.end()
        verdict = judge(crowd.history(), within=1)
    assert verdict.guilty["error"] == 2
    assert "KeyError" in verdict.text()


@pytest.mark.slow
def test_a_guilty_store_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A memory store in each of three processes: the report says so, and so does the status."""
    monkeypatch.setitem(PLANS, "memory", replace(PLANS["memory"], procs=3, threads=2, tasks=0))
    monkeypatch.setattr(sys, "argv", ["soak", "memory", "0.5", "11", "--json", str(tmp_path / "lines")])
    assert soak.main() == 1
    (line,) = (tmp_path / "lines").read_text().splitlines()
    said = json.loads(line)
    assert said["violations"]["overlap"] > 0
    assert (said["seed"], said["bound"]) == ("11", None)
    assert "overlap: " in capsys.readouterr().out
