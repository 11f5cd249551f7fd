"""`dibs run` as a real process around one store: start it, look at its queue, find the processes that it left behind.

Every process of a test works in the directory of the test. `Scene.left` finds them by that, in any session or group,
and ends them with the test. None has a controlling terminal unless it is given one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dibs
from lab.servers import guard
from process.children import PATIENCE, STEADY, Process, until

HERE = Path(__file__).parent
DIBS = [sys.executable, "-m", "dibs"]
WITNESS = [sys.executable, "-S", str(HERE / "witness.py")]
"""Its words are explained there. Without `site` it starts in half the time."""
BEGUN = r"begun (\d+) (\d+) (\d+)"
"""The witness's line with its pid, its process group and its parent."""


class Scene:
    """The processes around one file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'locks.db'}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
        self.environment = {**ours, "DIBS_URL": self.url, "LC_ALL": "C.UTF-8"}
        self.client = dibs.connect(self.url)
        self._started: list[Running] = []

    def close(self) -> None:
        while left := self.left():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for one in self._started:
            one.discard()
        self.client.close()

    def start(self, *argv: str, **more: Any) -> Running:
        """Any process, in a session of its own; its stdout and stderr are pipes unless said otherwise."""
        options = {"start_new_session": True, "stdin": subprocess.DEVNULL, **more}
        running = Running(list(argv), self.directory, self.environment, **options)
        self._started.append(running)
        return running

    def run(self, *command: str, name: str = "x", lease: float = STEADY, **more: Any) -> Running:
        """`dibs run` of a command."""
        return self.start(*DIBS, "run", name, "--lease", str(lease), "--", *command, **more)

    def held(self, name: str = "x") -> dibs.Lock:
        """Enter it to hold the lock in this process."""
        return self.client.lock(name, timeout=PATIENCE)

    def taken(self, name: str = "x") -> None:
        """Somebody else can have it."""
        with self.held(name):
            pass

    def go(self) -> None:
        """Commands that wait for the file `go` continue."""
        (self.directory / "go").touch()

    def counts(self, name: str = "x") -> tuple[int, int]:
        """The numbers of holders and waiters."""
        info = self.client.inspect(name)
        return len(info.holders), len(info.waiters)

    def waits(self, count: int = 1, name: str = "x") -> None:
        until(lambda: self.counts(name)[1] == count, what=f"{count} waiting for {name}")

    def left(self) -> list[int]:
        """All processes of this scene that live."""
        return [pid for pid in guard.working_in(self.directory) if state(pid) not in "ZX"]

    def none_left(self, within: float = PATIENCE) -> None:
        until(lambda: not self.left(), within, f"the end of {self.left()}")


class Running(Process):
    """One process that was started here."""

    def hear(self, pattern: str) -> re.Match[str]:
        """The next line of its stdout, which must match."""
        found = re.fullmatch(pattern, line := self.next_line())
        assert found is not None, f"said {line!r} instead of {pattern!r}"
        return found

    def end(self, within: float = PATIENCE) -> int:
        """Its status, 128 + n as a shell sees it."""
        status = super().end(within)
        return status if status >= 0 else 128 - status

    def guard(self) -> int:
        """The process that stands beside `dibs run`."""
        return int(until(lambda: [pid for pid in children(self.pid) if name(pid) == "lock-guard"], what="the guard")[0])


def children(parent: int) -> list[int]:
    return [pid for pid in _pids() if (_stat(pid) or ["", "-1"])[1] == str(parent)]


def members(group: int) -> list[int]:
    """The living processes of a group."""
    return [pid for pid in _pids() if (found := _stat(pid)) and found[2] == str(group) and found[0] not in "ZX"]


def state(pid: int) -> str:
    """R, S, D, T, Z; X where there is none."""
    found = _stat(pid)
    return found[0] if found else "X"


def name(pid: int) -> str:
    return _read(pid, "comm").decode().strip()


def gone(pid: int) -> bool:
    return state(pid) in "ZX"


def is_stopped(pid: int) -> Callable[[], bool]:
    return lambda: state(pid) == "T"


def _stat(pid: int) -> list[str]:
    """State, parent, group, session, ... of a process."""
    return _read(pid, "stat").decode(errors="replace").rpartition(")")[2].split()


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208  (asked often)
