"""Run fewer tests at once while the machine has no time for more of them.

Tests mostly wait, so that there are more workers than cores. Where other programs use the cores, or the host gives them
to other guests, a dozen workers keep each other waiting for seconds, and leases end that nobody meant to end. Linux
counts the time in which somebody waits for a core: while it is most of the time, a worker begins no test, the last
worker first. The first ones always go on.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_ALWAYS = 2
"""Workers that never wait."""
_LOWEST, _HIGHEST = 0.3, 0.7
"""The last worker waits while somebody waits for a core for more than this share of the time; the first that waits."""
_GLANCE = 1.0
_COUNTED = Path("/proc/pressure/cpu")


class Pace:
    """Of one worker."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._seen = self._look()
        self._share = 0.0

    def wait(self) -> None:
        while self._pressure() > self._limit:
            time.sleep(_GLANCE)

    def _pressure(self) -> float:
        """As a share of the time since the last look, which is at least a glance ago."""
        (at, stalled), (before, earlier) = self._look(), self._seen
        if at - before >= _GLANCE:
            self._share, self._seen = (stalled - earlier) / (at - before), (at, stalled)
        return self._share

    @staticmethod
    def _look() -> tuple[float, float]:
        some = _COUNTED.read_text().splitlines()[0]
        return time.monotonic(), int(some.rpartition("=")[2]) / 1e6


def pytest_configure(config: pytest.Config) -> None:
    worker: Any = getattr(config, "workerinput", None)
    place = int(worker["workerid"].removeprefix("gw")) % worker["workercount"] - _ALWAYS if worker else -1
    if place >= 0 and _COUNTED.exists():
        limit = _HIGHEST - (_HIGHEST - _LOWEST) * place / max(worker["workercount"] - _ALWAYS - 1, 1)
        config.pluginmanager.register(_Plugin(Pace(limit)))


class _Plugin:
    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before the test's own time begins
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._pace.wait()
        return (yield)
