"""Run fewer tests at once while the host gives this machine's cores to other guests.

Tests mostly wait, so there are more workers than cores. With most of the cores taken away, a dozen workers keep each
other waiting for seconds, and leases end that no test meant to end. Linux counts the time that a guest's cores were
ready to run and did not: the larger its share, the fewer workers run a test.
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
_CALM, _CROWDED = 0.1, 0.35
"""Shares of stolen time: up to the first all workers run a test, from the second on only the fewest."""
_GLANCE = 1.0
_PAUSE = 0.1
_COUNTED = Path("/proc/stat")


class Pace:
    """One worker's. Whoever runs a test has locked one of the first bytes of the file."""

    def __init__(self, file: int, workers: int) -> None:
        self._file = file
        self._workers = workers
        self._looked_at = time.monotonic()
        self._seen = _wanted_and_stolen()
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
        if time.monotonic() - self._looked_at >= _GLANCE:
            self._look()
        for place in range(self._most):
            with suppress(BlockingIOError):
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                return place
        return None

    def _look(self) -> None:
        (wanted, stolen), (before, earlier) = _wanted_and_stolen(), self._seen
        self._looked_at, self._seen = time.monotonic(), (wanted, stolen)
        share = (stolen - earlier) / max(wanted - before, 1)
        calm = min(max((_CROWDED - share) / (_CROWDED - _CALM), 0.0), 1.0)
        self._most = round(_FEWEST + calm * (self._workers - _FEWEST))


def _wanted_and_stolen() -> tuple[int, int]:
    """Time of all cores since the start, in ticks: in which they had something to run, and did not get to it."""
    user, nice, system, _, _, irq, softirq, stolen = map(int, _COUNTED.read_text().split()[1:9])
    return user + nice + system + irq + softirq + stolen, stolen


def pytest_configure(config: pytest.Config) -> None:
    worker: Any = getattr(config, "workerinput", None)
    if worker and worker["workercount"] > _FEWEST and _COUNTED.exists():
        path = Path(tempfile.gettempdir(), f"dibs-pace-{worker['testrunuid']}")
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        config.add_cleanup(lambda: os.close(file))
        config.add_cleanup(lambda: path.unlink(missing_ok=True))
        config.pluginmanager.register(Pace(file, worker["workercount"]))
