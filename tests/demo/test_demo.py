"""The demo as a user runs it: its proof, its verdict on workers without a lock, and that nothing stays behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = ("--workers=3", "--turns=5", "--lease=0.6", "--seed=7")


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "dibs.cli.demo", *SMALL, *options]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary directories lie below the test's own, and a store of the user's is not touched."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "DIBS_URL": "sqlite:////nonexistent/never.db"}


@pytest.fixture
def demo(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*options), capture_output=True, text=True, timeout=50, env=environment, check=False
        )

    return run


def figures(output: str) -> dict[str, str]:
    """The rows of the proof: what it says, and the number."""
    return dict(re.findall(r"^  ([a-z][a-z -]+?) {2,}(\S+)", output, re.MULTILINE))


def workers_below(tmp_path: Path) -> list[str]:
    """Command lines of processes that name a directory of this test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "demo_worker" in line and str(tmp_path) in line:
            found.append(line)
    return found


def left_behind(tmp_path: Path) -> list[str]:
    return [*workers_below(tmp_path), *(str(path) for path in (tmp_path / "tmp").iterdir())]


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


def until(fault: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A demo that has just struck."""
    running = subprocess.Popen(
        command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        preexec_fn=heed_signals,  # noqa: PLW1509  # it takes no lock that another thread could hold
    )  # fmt: skip
    assert running.stdout is not None
    for line in running.stdout:
        if f" {fault} while it holds" in line:
            return running
    pytest.fail(f"nobody was {fault}")


def heed_signals() -> None:
    """Tests may run where these are ignored (in the background, under nohup), and that is inherited."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (["--workers=1"], 64, "--workers must be 2 to 32"),
        (["--turns=1"], 64, "--turns at least 2"),
        (["--lease=0.1"], 64, "lease must be at least 0.5"),
        (["--lease=soon"], 64, "invalid float value"),
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


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_on_a_terminal_one_line_is_redrawn(environment: dict[str, str], no_colour: str) -> None:
    ours, theirs = pty.openpty()
    terminal = {**environment, "TERM": "xterm", "COLUMNS": "70", "NO_COLOR": no_colour}
    with subprocess.Popen(command(), stdout=theirs, stderr=subprocess.STDOUT, env=terminal) as running:
        os.close(theirs)
        output = everything(ours)
    os.close(ours)
    assert running.returncode == 0
    drawn = re.findall(r"\r([^\r\n]*held by[^\r\n]*)\x1b\[K", output)
    assert len(drawn) > 5
    assert max(len(line) for line in drawn) < 70, "a line that wraps cannot be redrawn"
    assert ("\x1b[32m" in output) is (not no_colour)


def everything(terminal: int) -> str:
    """A terminal whose other side is closed answers with an error instead of an end."""
    found = b""
    while True:
        try:
            said = os.read(terminal, 65536)
        except OSError:
            return found.decode()
        if not said:
            return found.decode()
        found += said
