"""`dibs run` as a real process around one store: to start it, to look at its line, and to find whatever it left.

Every process of a test works in its directory: that is how `Scene.left` finds them, in whatever session or group they
are, and how all of them are ended with the test. None has a controlling terminal unless it is given one.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import dibs
from lab.servers import guard
from process.children import PATIENCE, Process, until

HERE = Path(__file__).parent
DIBS = [sys.executable, "-m", "dibs"]
WITNESS = [sys.executable, "-S", str(HERE / "witness.py")]
"""What it says and understands: see there. Without `site`: it starts in half the time."""


class Scene:
    """The processes around one file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'locks.db'}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
        self.environment = {**ours, "DIBS_URL": self.url, "LC_ALL": "C.UTF-8"}
        self.client = dibs.connect(self.url)
        self._started: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        while left := self.left():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for one in self._started:
                one.process.poll()
        for one in self._started:
            one.discard()
        self.client.close()

    def start(self, *argv: str, **more: Any) -> Running:
        """Any process, in a session of its own; its stdout and stderr are pipes unless said otherwise."""
        options = {"start_new_session": True, "stdin": subprocess.DEVNULL, **more}
        running = Running(list(argv), self.directory, self.environment, **options)
        self._started.append(running)
        return running

    def run(self, *command: str, name: str = "x", lease: float = 20.0, **more: Any) -> Running:
        """`dibs run` of a command. The lease is long where a test does not depend on its end: machines are noisy."""
        return self.start(*DIBS, "run", name, "--lease", str(lease), "--", *command, **more)

    @contextmanager
    def held(self, name: str = "x") -> Iterator[dibs.Hold]:
        """By this process."""
        with self.client.lock(name) as hold:
            yield hold

    def taken(self, name: str = "x", timeout: float = PATIENCE) -> None:
        """Somebody else can have it, within that time."""
        with self.client.lock(name, timeout=timeout):
            pass

    def line(self, name: str = "x") -> tuple[int, int]:
        """Holders and waiters."""
        info = self.client.inspect(name)
        return len(info.holders), len(info.waiters)

    def waits(self, count: int = 1, name: str = "x") -> None:
        until(lambda: self.line(name)[1] == count, what=f"{count} in line for {name}")

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
