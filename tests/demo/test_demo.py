"""The demo as a user runs it: its proof, its verdict on workers without a lock, and that nothing stays behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.plays import command, heed_signals, left_behind, workers_below


def figures(output: str) -> dict[str, str]:
    """The rows of the proof: what it says, and the number."""
    return dict(re.findall(r"^  ([a-z][a-z -]+?) {2,}(\S+)", output, re.MULTILINE))


def test_the_proof(demo: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    proof = figures(done.stdout)
    assert proof["turns done"] == "15"
    assert proof["count"] == "15"
    assert proof["overlaps"] == proof["tokens fell"] == "0"
    assert proof["killed while holding"] == proof["stopped while holding"] == "1"
    assert proof["take-overs"] == "2", "from the killed one and from the stopped one"
    assert int(proof["stale writes refused"]) >= 1
    assert int(proof["hand-overs"]) >= 3
    assert done.stdout.endswith("PROVED: one at a time, whatever happened to them.\n")
    killed = re.search(r"(worker-\d) killed while it holds the lock \(token (\d+)\)", done.stdout)
    stopped = re.search(r"(worker-\d) stopped while it holds the lock \(token (\d+)\)", done.stdout)
    assert killed
    assert stopped
    assert killed[1] != stopped[1]
    assert f"{stopped[1]}'s write with token {stopped[2]} refused" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert left_behind(tmp_path) == []


def test_workers_without_the_lock_are_convicted(
    demo: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = demo("--no-lock")
    assert done.returncode == 1
    assert int(figures(done.stdout)["overlaps"]) > 0
    assert "NOT PROVED" in done.stdout
    assert left_behind(tmp_path) == []


def test_a_store_of_ones_own_stays_and_its_url_is_on_no_command_line(
    environment: dict[str, str], tmp_path: Path
) -> None:
    running = subprocess.Popen(
        command(f"--url=sqlite:///{tmp_path}/given.db"), stdout=subprocess.PIPE, text=True, env=environment
    )
    with running:
        assert running.stdout is not None
        seen = [line for _ in iter(running.stdout.readline, "") for line in workers_below(tmp_path)]
    assert running.returncode == 0
    assert seen
    assert not [line for line in seen if "given.db" in line]
    assert left_behind(tmp_path) == []
    assert (tmp_path / "given.db").exists()


@pytest.mark.parametrize("fault", ["killed", "stopped"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing(environment: dict[str, str], tmp_path: Path, number: int, fault: str) -> None:
    running = until(fault, environment)
    with running:
        running.send_signal(number)
        assert running.stdout is not None
        rest = running.stdout.read()
    assert running.returncode == 128 + number
    assert rest.endswith("given up: interrupted\n")
    assert left_behind(tmp_path) == []


def test_a_reader_that_goes_away_ends_it(environment: dict[str, str], tmp_path: Path) -> None:
    running = until("killed", environment)
    with running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(timeout=30) == 128 + signal.SIGPIPE
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert left_behind(tmp_path) == []


def test_as_objects_the_same_is_told(demo: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = demo("--json")
    assert done.returncode == 0, done.stdout + done.stderr
    began, *events, proof = map(json.loads, done.stdout.splitlines())
    assert began == {"event": "began", "workers": 3, "turns": 5, "lease": 0.6, "seed": 7}
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        assert {"event", "at", "worker", "token"} <= event.keys()
        by_kind.setdefault(event["event"], []).append(event)
    (killed,), (again,), (stopped,) = by_kind["killed"], by_kind["started again"], by_kind["stopped"]
    assert killed["worker"] == again["worker"] != stopped["worker"]
    assert [event["overtaken"] for event in by_kind["went on"]][-1] is True
    assert (stopped["worker"], stopped["token"]) in [(event["worker"], event["token"]) for event in by_kind["refused"]]
    assert sorted(event["worker"] for event in by_kind["done"]) == ["worker-1", "worker-2", "worker-3"]
    tokens = [event["token"] for event in by_kind["took"]]
    assert len(set(tokens)) == len(tokens) >= 15 + 2, "two turns were begun in vain"
    assert {killed["token"], stopped["token"]} < set(tokens)
    times = [event["at"] for event in events]
    assert times == sorted(times)
    assert proof["event"] == "proof"
    assert proof["proved"] is True
    assert proof["objections"] == []
    assert proof["turns_done"] == proof["count"] == 15
    assert proof["killed_while_holding"] == proof["stopped_while_holding"] == 1
    assert proof["take_overs"] == 2
    assert proof["overlaps"] == proof["tokens_fell"] == 0
    assert proof["time"] >= times[-1]
    assert left_behind(tmp_path) == []


def test_as_objects_the_last_one_says_what_was_not_proved(
    demo: Callable[..., subprocess.CompletedProcess[str]], environment: dict[str, str]
) -> None:
    done = demo("--json", "--no-lock")
    assert done.returncode == 1
    proof = json.loads(done.stdout.splitlines()[-1])
    assert proof["proved"] is False
    assert f"{proof['overlaps']} overlaps" in proof["objections"]
    running = until("killed", environment, "--json")
    with running:
        running.send_signal(signal.SIGINT)
        assert running.stdout is not None
        last = running.stdout.read().splitlines()[-1]
    assert running.returncode == 128 + signal.SIGINT
    assert json.loads(last) == {"event": "gave up", "why": "interrupted", "proved": False}


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG; elsewhere a stopped worker cannot see the pipe")
def test_workers_die_with_the_demo_even_a_stopped_one(environment: dict[str, str], tmp_path: Path) -> None:
    running = until("stopped", environment)
    with running:
        assert len(workers_below(tmp_path)) == 3
        running.kill()
    until_then = time.monotonic() + 10
    while workers_below(tmp_path) and time.monotonic() < until_then:
        time.sleep(0.02)
    assert workers_below(tmp_path) == []


def until(fault: str, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    """A demo that has just struck."""
    running = subprocess.Popen(
        command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=heed_signals,  # noqa: PLW1509  # it takes no lock that another thread could hold
    )  # fmt: skip
    assert running.stdout is not None
    for line in running.stdout:
        if f" {fault} while it holds" in line or f'"event": "{fault}"' in line:
            return running
    pytest.fail(f"nobody was {fault}")


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (["--workers=1"], 64, "--workers must be 2 to 32"),
        (["--turns=1"], 64, "--turns at least 2"),
        (["--lease=0.1"], 64, "lease must be at least 0.5"),
        (["--lease=soon"], 64, "is no length of time"),
        (["--plain", "--json"], 64, "not allowed with"),
        (["--url=memory://"], 64, "one store per process"),
        (["--url=nonsense"], 64, "looks like scheme://"),
        (["--url=sqlite:////nonexistent/directory/x.db"], 69, "cannot be used"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    demo: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, options: list[str], status: int, why: str
) -> None:
    done = demo(*options)
    assert done.returncode == status
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert left_behind(tmp_path) == []
