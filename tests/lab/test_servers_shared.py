"""Servers that a run shares: one for all workers, and none is left, however the run or a worker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.leaks import command_lines
from lab.servers import guard, ports, shared
from lab.servers.groups import GROUPS, Group, Servers
from lab.servers.programs import require
from lab.servers.supervisor import until

TESTS = Path(__file__).parents[1]
CONFTEST = """
from lab.servers import shared

def pytest_configure(config):
    shared.share(config)
"""
TEST = """
import os, time
from pathlib import Path
import pytest
from lab.servers import shared
from lab.servers.supervisor import until

HERE = Path(__file__).parent

@pytest.mark.parametrize("number", [0, 1])
def test(number):
    server = shared.redis()
    shared.postgresql()
    assert shared.fresh_redis(HERE) != shared.fresh_redis(HERE)
    process = next(line for line in server.ask("INFO", "server").splitlines() if line.startswith("process_id:"))
    told = HERE / f"{os.getpid()}.told"
    told.with_suffix(".new").write_text(f"{server.port} {process.partition(':')[2]}")
    told.with_suffix(".new").rename(told)
    until((HERE / "go").exists, 60)
"""


class Beneath:
    """A test run below this one, both of whose workers use a shared Redis and wait."""

    def __init__(self, place: Path, *options: str) -> None:
        (place / "conftest.py").write_text(CONFTEST)
        (place / "test_it.py").write_text(TEST)
        (place / "pytest.ini").write_text("[pytest]\n")
        self._place = place
        env = {name: value for name, value in os.environ.items() if name not in {shared.ADDRESS, "PYTEST_XDIST_WORKER"}}
        with (place / "said").open("wb") as said:
            self.run = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:dibs", *options, "."],
                cwd=place,
                env={**env, "PYTHONPATH": str(TESTS)},
                start_new_session=True,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return (self._place / "said").read_text()

    def workers(self, count: int) -> dict[int, tuple[int, int]]:
        """By process: the port of the server it was given, and that server's process."""

        def told() -> dict[int, tuple[int, int]]:
            assert self.run.poll() is None, self.said()
            texts = {int(path.stem): path.read_text().split() for path in self._place.glob("*.told")}
            return {pid: (int(port), int(server)) for pid, (port, server) in texts.items()}

        until(lambda: len(told()) >= count, 60, "the workers run")
        return told()

    def go(self) -> None:
        (self._place / "go").touch()

    def end(self) -> None:
        for pid in guard.working_in(self._place):
            guard.send([pid], signal.SIGKILL)
        self.run.kill()
        self.run.wait()


@pytest.fixture
def beneath(tmp_path: Path) -> Iterator[Callable[..., Beneath]]:
    require("redis", "postgresql")
    made: list[Beneath] = []

    def start(*options: str) -> Beneath:
        made.append(Beneath(tmp_path, *options))
        return made[-1]

    yield start
    for run in made:
        run.end()


def creators() -> set[int]:
    """The processes that made the System V segments of the machine; PostgreSQL's would outlive its kill -9."""
    header, *rows = Path("/proc/sysvipc/shm").read_text().splitlines()
    at = header.split().index("cpid")
    return {int(row.split()[at]) for row in rows}


def passed(run: Beneath) -> None:
    run.go()
    assert run.run.wait(60) == 0, run.said()


def to_the_controller(number: signal.Signals) -> Callable[[Beneath], None]:
    return lambda run: run.run.send_signal(number)


def to_a_worker(run: Beneath) -> None:
    """Its test has failed; the server is not its own, so the other worker goes on."""
    os.kill(next(iter(run.workers(2))), signal.SIGKILL)
    run.go()
    assert run.run.wait(60) == 1, run.said()
    assert "1 failed, 1 passed" in run.said()


@pytest.mark.parametrize(
    "ending",
    [
        passed, to_the_controller(signal.SIGINT), to_the_controller(signal.SIGKILL), to_a_worker,
    ],
    ids=["passes", "SIGINT", "SIGKILL", "a worker is killed"],
)  # fmt: skip
def test_workers_share_a_server_and_leave_nothing(
    beneath: Callable[..., Beneath], tmp_path: Path, ending: Callable[[Beneath], None]
) -> None:
    run = beneath("-n", "2")
    workers = run.workers(2)
    ((port, server),) = set(workers.values())
    root = Path(f"/proc/{server}/cwd").readlink().parents[1]
    assert root.name.startswith("dibs-lab-")
    pids = guard.working_in(root)
    guard.send([pid for pid in pids if pid != server], signal.SIGSTOP)  # PostgreSQL, and what it forked
    assert creators() & set(pids)
    ending(run)
    run.run.wait(60)
    until(lambda: not root.exists(), 60, "the directory of its servers is gone")
    assert guard.working_in(root) == []
    assert not ports.listening(port)
    assert not creators() & set(pids)
    until(lambda: guard.working_in(tmp_path) == [], 60, "its workers are gone")
    until(lambda: not any(str(root) in line for line in command_lines()), 60, "its guardian is gone")
    assert f"dibs-lab-{run.run.pid}-" not in Path("/proc/net/unix").read_text()


def test_a_server_that_does_not_start_fails_the_test_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why, and the next one tries again."""
    tries = []

    def start(_: object) -> Servers:
        tries.append(1)
        error = AssertionError("it ended by itself")
        error.add_note("its log: Bad directive")
        raise error

    name = f"dibs-lab-test-{os.getpid()}"
    monkeypatch.setenv(shared.ADDRESS, name)
    monkeypatch.setitem(GROUPS, "redis", Group("redis", start))
    with shared.PortServer(name, shared.Run().ports) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        for _ in range(2):
            with pytest.raises(AssertionError, match=r"(?s)redis did not start.*ended by itself.*Bad directive"):
                shared._of_the_run("redis")
        server.shutdown()
    assert len(tries) == 2
