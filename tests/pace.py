"""Run fewer tests at once while the machine has no time for more of them.

Tests mostly wait, so there are more workers than cores. Where other programs use the cores, or the host gives them to
other guests, a dozen workers keep each other waiting for seconds, and leases end that no test meant to end. Linux
counts the time in which some task waits for a core: the larger its share, the fewer workers run a test.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_FEWEST = 3
_CALM, _CROWDED = 0.5, 0.9
"""Shares of the time: up to the first all workers run a test, from the second on only the fewest."""
_POLL_INTERVAL = 1.0
_PAUSE = 0.1
_COUNTED = Path("/proc/pressure/cpu")
_PATH = pytest.StashKey[str]()


class Pace:
    """The pace of one worker. A worker that runs a test has locked one of the first bytes of the file."""

    def __init__(self, file: int, workers: int) -> None:
        self._file = file
        self._workers = workers
        self._seen = _look()
        self._most = workers

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the test's own time begins
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        while (place := self._taken()) is None:
            time.sleep(_PAUSE)
        try:
            return (yield)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def _taken(self) -> int | None:
        for place in range(self._allowed()):
            with suppress(BlockingIOError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                return place
        return None

    def _allowed(self) -> int:
        """By the share of the time since the last look, which is at least a glance ago."""
        (at, waited), (before, earlier) = _look(), self._seen
        if at - before >= _POLL_INTERVAL:
            share = (waited - earlier) / (at - before)
            calm = min(max((_CROWDED - share) / (_CROWDED - _CALM), 0.0), 1.0)
            self._most, self._seen = round(_FEWEST + calm * (self._workers - _FEWEST)), (at, waited)
        return self._most


def _look() -> tuple[float, float]:
    """The instant, and the seconds so far in which some task waited for a core."""
    some = _COUNTED.read_text().splitlines()[0]
    return time.monotonic(), int(some.rpartition("=")[2]) / 1e6


def _is_counted() -> bool:
    """Not everywhere: a kernel may have the file, and refuse to read it."""
    try:
        _look()
    except OSError:
        return False
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """By the process that starts the workers: it outlives them, and removes the file."""
    if _PATH not in node.config.stash:
        file, path = tempfile.mkstemp(prefix="dibs-pace-")
        os.close(file)
        node.config.stash[_PATH] = path
        node.config.add_cleanup(Path(path).unlink)
    node.workerinput["pace"] = node.config.stash[_PATH]


def pytest_configure(config: pytest.Config) -> None:
    worker: Any = getattr(config, "workerinput", None)
    if worker and worker["workercount"] > _FEWEST and _is_counted():
        file = os.open(worker["pace"], os.O_RDWR)
        config.add_cleanup(lambda: os.close(file))
        config.pluginmanager.register(Pace(file, worker["workercount"]))
