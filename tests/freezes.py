"""Freeze workers of a run at random: a pytest plugin for `scripts/soak trust`.

With DIBS_FREEZE in the environment, one worker after the other is stopped for three seconds. No test that runs beside
others may fail because of it: see "Two phases" in CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

FROZEN = 3.0
"""Seconds."""


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    is_controller = session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput")
    if not is_controller or "DIBS_FREEZE" not in os.environ:
        return (yield)
    with _freezing(random.Random(os.environ["DIBS_FREEZE"])):
        return (yield)


@contextmanager
def _freezing(choice: random.Random) -> Iterator[None]:
    over = threading.Event()

    def freeze() -> None:
        while not over.is_set():
            with suppress(IndexError, ProcessLookupError):  # no worker yet, or it has just ended
                worker = choice.choice(_workers())
                os.kill(worker, signal.SIGSTOP)
                try:
                    over.wait(FROZEN)
                finally:
                    os.kill(worker, signal.SIGCONT)

    thread = threading.Thread(target=freeze, name="freezes")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _workers() -> list[int]:
    """The processes that xdist has started: the children of the controller, which starts no others."""
    tasks = Path("/proc/self/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
