"""A client that stands still or dies, in a process of its own: it knows on waking, and a fence refuses it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.checkers import judge
from lab.crowd import Crowd
from lab.history import Line
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left
from lab.surface import Target
from lab.worker import Spec

LEASE = 3.0
FACES = pytest.mark.parametrize(("threads", "tasks"), [(1, 0), (0, 1)], ids=["blocking", "aio"])
INSIDE = ("acquired", "seen")
"""What a worker wrote last, while it holds."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper(tick_ms=300)) as made:
        yield made


def spec(proc: str, server: Server, directory: Path, threads: int, tasks: int, body: str = "long") -> Spec:
    """It takes one lock again and again, and holds it for longer than a lease."""
    target = Target(directory.name, "mutex", 1)
    return Spec(
        proc, server.url(), str(directory), proc, [target], LEASE, threads, tasks, habits={body: 1.0}, look=0.0
    )  # fmt: skip


def lines(crowd: Crowd, proc: str) -> list[Line]:
    """What it has written so far; a line that is being written is left out."""
    path = crowd.directory / f"{proc}.jsonl"
    *whole, _ = path.read_text().split("\n") if path.exists() else [""]
    return [json.loads(line) for line in whole]


def last(crowd: Crowd, proc: str) -> Line:
    return lines(crowd, proc)[-1]


def holds(crowd: Crowd, proc: str) -> bool:
    return bool(found := lines(crowd, proc)) and found[-1]["op"] in INSIDE and found[-1].get("valid", False)


def stop_inside(crowd: Crowd, proc: str) -> Line:
    """Stopped while it holds; gives what it wrote last."""
    while True:
        crowd.until(lambda: holds(crowd, proc), f"{proc} holds")
        crowd.stop(proc)
        if holds(crowd, proc):
            return last(crowd, proc)
        crowd.go_on(proc, "stopped at another time")


@FACES
def test_a_holder_stopped_past_its_session(server: Server, tmp_path: Path, threads: int, tasks: int) -> None:
    with Crowd([spec(proc, server, tmp_path, threads, tasks) for proc in ("p0", "p1")]) as crowd:
        stopped = stop_inside(crowd, "p0")
        begun = len(lines(crowd, "p1"))
        crowd.until(lambda: any(line.get("token") for line in lines(crowd, "p1")[begun:]), "the other one has it")
        crowd.go_on("p0", "stopped past the session")

        def over() -> bool:
            return any(line["op"] == "released" and line["n"] == stopped["n"] for line in lines(crowd, "p0"))

        crowd.until(over, "it has come to its end")
        crowd.heal()
        crowd.quiet(20)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    use = next(use for use in history.grants if (use.proc, use.n) == ("p0", stopped["n"]))
    assert use.told < float("inf"), "it knew on waking"
    assert use.release_outcome == "lost"
    assert sum(tally.refused for tally in fenced) >= 1, "it wrote late, and the fence refused it"
    verdict = judge(history, within=20, fenced=fenced, left=left(server, within=15))
    assert not verdict.violations, verdict.text()
    assert verdict.past >= 1, "it acted beside the new holder: no lock can prevent that"


@FACES
def test_a_holder_stopped_for_less(server: Server, tmp_path: Path, threads: int, tasks: int) -> None:
    """It wakes within its session, which goes on."""
    with Crowd([spec("p0", server, tmp_path, threads, tasks)]) as crowd:
        stopped = stop_inside(crowd, "p0")
        crowd.go_on("p0", "stopped for a moment")
        crowd.until(lambda: last(crowd, "p0")["n"] > stopped["n"], "the next use")
        crowd.heal()
        crowd.end()
        history = crowd.history()
    use = next(use for use in history.grants if use.n == stopped["n"])
    assert use.release_outcome == "ok"
    verdict = judge(history, within=20, left=left(server, within=15))
    assert not verdict.violations, verdict.text()


@FACES
def test_a_killed_holder(server: Server, tmp_path: Path, threads: int, tasks: int) -> None:
    """Nobody closes its session: it ends by its time-out, and the next one is served then."""
    with Crowd([spec(proc, server, tmp_path, threads, tasks) for proc in ("p0", "p1", "p2")]) as crowd:
        victim = stop_inside(crowd, "p0")
        crowd.running["p0"] = crowd.stopped.pop("p0")
        crowd.kill("p0")
        crowd.heal()
        crowd.quiet(20)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=20, fenced=fenced, left=left(server, within=15))
    assert not verdict.violations, verdict.text()
    served = [use for use in history.grants if use.known > victim["at"] and use.proc != "p0"]
    print(f"figure: a killed holder's lock (session {LEASE} s) was free after {served[0].known - victim['at']:.2f} s")
    assert {use.proc for use in served} == {"p1", "p2"}
