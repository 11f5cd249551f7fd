"""However a test run ends, nothing of its servers outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.leaks import command_lines
from lab.servers import guard, ports
from lab.servers.programs import require
from lab.servers.supervisor import until

ORPHANS = Path(guard.__file__).with_name("orphans.py")


def creators() -> set[int]:
    """The processes that made the System V segments of the machine."""
    header, *rows = Path("/proc/sysvipc/shm").read_text().splitlines()
    at = header.split().index("cpid")
    return {int(row.split()[at]) for row in rows}


def killed_with_its_group(run: subprocess.Popen[str]) -> None:
    os.killpg(run.pid, signal.SIGKILL)


def killed_alone(run: subprocess.Popen[str]) -> None:
    run.kill()


def by_itself(run: subprocess.Popen[str]) -> None:
    assert run.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "end"),
    [("killed", killed_with_its_group), ("forked", killed_alone), ("returned", by_itself)],
)
def test_nothing_outlives_the_run(ending: str, end: Callable[[subprocess.Popen[str]], None]) -> None:
    require("redis", "postgresql")
    run = subprocess.Popen(
        [sys.executable, str(ORPHANS), ending], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert run.stdout is not None
    with run, run.stdout:
        said = json.loads(run.stdout.readline())
        root, pids = Path(said["root"]), said["pids"]
        try:
            assert len(pids) > 5, "PostgreSQL has forked"
            end(run)
            run.wait(20)
            until(lambda: not root.exists(), what="its directory gone")
            assert guard.working_in(root) == []
            assert not any(map(ports.listening, said["ports"]))
            assert not creators() & set(pids)
        finally:
            if said["left"]:
                os.kill(said["left"], signal.SIGKILL)
            run.kill()
            guard.clear(root)


def test_the_guardian_ends_with_its_run() -> None:
    require("redis", "postgresql")
    program = "from lab.servers import guard; print(guard.root())"
    tests = Path(__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tests, timeout=20
    )
    root = run.stdout.strip()
    assert not Path(root).exists()
    until(lambda: not any(root in line for line in command_lines()), what="its guardian gone")
