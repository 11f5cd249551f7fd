"""A wall clock of its own for a process, that jumps while the process runs; other clocks are unchanged.

    shim = clock.shim(tmp_path_factory)             # compiled once for the test run
    clock = Clock(tmp_path, shim)
    Popen(..., env={**os.environ, **clock.env()})   # CPython, redis-server, a JVM; not programs written in Go
    clock.step(3600); clock.step(-7200)

`clock_shim.c` is preloaded into the process, and adds the offset in a file. Timers of the kernel do not jump. A process
of another user must be able to read both files.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from lab.servers.programs import program, require

SOURCE = Path(__file__).with_name("clock_shim.c")
_PAGE = 4096


def shim(factory: pytest.TempPathFactory) -> Path:
    """The library, from a place that all workers of a test run share."""
    directory = factory.getbasetemp()
    return build(directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory)


def build(directory: Path) -> Path:
    require("gcc")
    made = directory / "clock_shim.so"
    with (directory / "clock_shim.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            fresh = made.with_suffix(".new")
            subprocess.run([program("gcc"), "-O2", "-shared", "-fPIC", "-o", fresh, SOURCE], check=True, timeout=60)
            fresh.rename(made)  # a compiler that was killed leaves no library behind
    return made


class Clock:
    """One wall clock; the processes started with its `env()` share it."""

    def __init__(self, directory: Path, shim: Path) -> None:
        handle, name = tempfile.mkstemp(prefix="clock-", dir=directory)
        with os.fdopen(handle, "wb") as file:
            file.write(bytes(_PAGE))
        self._file = Path(name)
        self._shim = shim

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._shim), "CLOCK_SHIM": str(self._file)}

    @property
    def offset(self) -> int:
        with self._file.open("rb") as file:
            return int.from_bytes(file.read(8), "little", signed=True)

    def step(self, seconds: int) -> None:
        offset = (self.offset + seconds).to_bytes(8, "little", signed=True)
        with self._file.open("r+b", buffering=0) as file:
            file.write(offset)

    def now(self) -> float:
        return time.time() + self.offset
