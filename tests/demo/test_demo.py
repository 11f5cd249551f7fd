"""The demo as a user runs it: its proof, its verdict on workers without a lock, and that nothing stays behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from demo.plays import LEASE, left_behind, start, workers_below
from dibs.cli.main import main
from process.children import PATIENCE, until


def play(environment: dict[str, str], *options: str) -> tuple[int, str, str]:
    with start(environment, *options) as running:
        out, errors = running.communicate(timeout=2 * PATIENCE)
    return running.returncode, out, errors


@pytest.mark.gate  # a holder is paused until its lease ends
def test_the_proof(environment: dict[str, str], tmp_path: Path) -> None:
    """In a store of the user's, whose URL is on no command line."""
    with start(environment, f"--url=sqlite:///{tmp_path}/given.db", "--lease=2") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines, seen = [], set[str]()
        for line in running.stdout:
            lines.append(line)
            seen.update(workers_below(tmp_path))
        assert running.stderr.read() == ""
    text = "".join(lines)
    assert running.returncode == 0, text
    proof = dict(re.findall(r"^  ([a-z][a-z -]+?) {2,}(\S+)", text, re.MULTILINE))
    assert proof["turns done"] == proof["counter"] == "15"
    assert proof["overlaps"] == proof["tokens out of order"] == "0"
    assert proof["killed while holding"] == proof["paused while holding"] == "1"
    assert proof["takeovers"] == "2", "from the killed one and from the paused one"
    assert int(proof["stale writes refused"]) >= 1
    assert int(proof["handovers"]) >= 3
    assert text.endswith("PROVED in this run: no two workers held the lock at the same time.\n")
    killed = re.search(r"(worker-\d) was killed while it held the lock \(token (\d+)\)", text)
    paused = re.search(r"(worker-\d) was paused while it held the lock \(token (\d+)\)", text)
    assert killed
    assert paused
    assert killed[1] != paused[1]
    assert f"{paused[1]}'s write with token {paused[2]} was refused" in text
    assert "\x1b" not in text
    assert "\r" not in text
    assert seen
    assert not [line for line in seen if "given.db" in line]
    assert left_behind(tmp_path) == []
    assert (tmp_path / "given.db").exists()


@pytest.mark.gate
def test_a_dashboard_beside_it_shows_its_lock_and_ends_with_it(environment: dict[str, str], tmp_path: Path) -> None:
    with start(environment, "--dashboard", "--json") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        text = running.stderr.readline()
        url = re.search(r"dashboard: (http://127\.0\.0\.1:\d+/)$", text)
        assert url, text
        with urlopen(url[1], timeout=PATIENCE) as page:
            assert b"static/app.js" in page.read()

        def is_shown() -> bool:
            with urlopen(f"{url[1]}api/view?store=0", timeout=PATIENCE) as view:
                return [row["holder"][:7] for row in json.load(view)["rows"]] == ["worker-"]

        until(is_shown, what="a worker on the dashboard")
        assert json.loads(running.stdout.read().splitlines()[-1])["proved"] is True
    with pytest.raises(URLError):
        urlopen(url[1], timeout=PATIENCE)
    assert left_behind(tmp_path) == []


@pytest.mark.gate
def test_as_json(environment: dict[str, str], tmp_path: Path) -> None:
    status, out, errors = play(environment, "--json")
    assert (status, errors) == (0, ""), out
    assert left_behind(tmp_path) == []
    began, *events, proof = map(json.loads, out.splitlines())
    assert began == {"event": "began", "workers": 3, "turns": 5, "lease": LEASE, "seed": 7}
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        assert {"event", "at", "worker", "token"} <= event.keys()
        by_kind.setdefault(event["event"], []).append(event)
    (killed,), (again,), (paused,) = by_kind["killed"], by_kind["restarted"], by_kind["paused"]
    assert killed["worker"] == again["worker"] != paused["worker"]
    assert [event["overtaken"] for event in by_kind["continued"]][-1] is True
    assert (paused["worker"], paused["token"]) in [(event["worker"], event["token"]) for event in by_kind["refused"]]
    assert sorted(event["worker"] for event in by_kind["done"]) == ["worker-1", "worker-2", "worker-3"]
    tokens = [event["token"] for event in by_kind["took"]]
    assert len(set(tokens)) == len(tokens) >= 15 + 2, "two turns were begun in vain"
    assert {killed["token"], paused["token"]} < set(tokens)
    times = [event["at"] for event in events]
    assert times == sorted(times)
    assert (proof["event"], proof["proved"], proof["objections"]) == ("proof", True, [])
    assert proof["turns_done"] == proof["counter"] == 15
    assert proof["time"] >= times[-1]


@pytest.mark.gate
def test_workers_without_the_lock_are_convicted(environment: dict[str, str], tmp_path: Path) -> None:
    status, out, _ = play(environment, "--json", "--no-lock")
    assert status == 1
    proof = json.loads(out.splitlines()[-1])
    assert proof["overlaps"] > 0
    assert proof["proved"] is False
    assert f"{proof['overlaps']} overlaps" in proof["objections"]
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "fault", "options"),
    [
        pytest.param(signal.SIGINT, "killed", ["--json"], marks=pytest.mark.alone),
        pytest.param(signal.SIGTERM, "paused", [], marks=pytest.mark.gate),
    ],
)
def test_interrupted_it_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, number: int, fault: str, options: list[str]
) -> None:
    with struck(fault, environment, *options) as running:
        running.send_signal(number)
        assert running.stdout is not None
        last = running.stdout.read().splitlines()[-1]
    assert running.returncode == 128 + number
    if options:
        assert json.loads(last) == {"event": "failed", "why": "interrupted", "proved": False}
    else:
        assert last == "failed: interrupted"
    assert left_behind(tmp_path) == []


@pytest.mark.gate
def test_a_reader_that_goes_away_ends_it(environment: dict[str, str], tmp_path: Path) -> None:
    with struck("killed", environment) as running:
        assert running.stdout is not None
        running.stdout.close()
        assert running.wait(timeout=PATIENCE) == 128 + signal.SIGPIPE
        assert running.stderr is not None
        assert running.stderr.read() == ""
    assert left_behind(tmp_path) == []


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG; elsewhere a paused worker cannot see the pipe")
def test_workers_die_with_the_demo_even_a_paused_one(environment: dict[str, str], tmp_path: Path) -> None:
    with struck("paused", environment) as running:
        assert len(workers_below(tmp_path)) == 3
        running.kill()
    until(lambda: not workers_below(tmp_path), what="the end of the workers")


def struck(fault: str, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    """A demo in which this fault has just happened."""
    running = start(environment, *options)
    assert running.stdout is not None
    for line in running.stdout:
        if f" {fault} while it held" in line or f'"event": "{fault}"' in line:
            return running
    pytest.fail(f"nobody was {fault}")


def test_wrong_options_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for options, status, why in (
        (["--workers=1"], 64, "--workers must be 2 to 32"),
        (["--turns=1"], 64, "--turns at least 2"),
        (["--lease=0.1"], 64, "lease must be at least 0.5"),
        (["--lease=soon"], 64, "is not a duration"),
        (["--plain", "--json"], 64, "not allowed with"),
        (["--url=memory://"], 64, "private to one process"),
        (["--url=nonsense"], 64, "looks like scheme://"),
        (["--url=sqlite:////nonexistent/directory/x.db"], 69, "cannot be used"),
    ):
        try:
            ended = main(["demo", *options])
        except SystemExit as end:
            ended = int(end.code or 0)
        assert ended == status
        errors = capsys.readouterr().err
        assert why in errors
        assert len(errors.splitlines()) == 1
