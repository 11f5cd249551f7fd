"""The stopwatch: it counts what runs, and a process that stands still for as long counts next to nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab.stopwatch import Stopwatch

CHILD = """
import sys
from lab.stopwatch import Stopwatch
with Stopwatch() as watch:
    print("ready", flush=True)
    sys.stdin.readline()
    print(watch.seconds())
"""
TESTS = Path(__file__).parents[1]


def test_a_standstill_counts_as_a_moment() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        with Stopwatch() as watch:
            end = time.monotonic() + 30
            while watch.seconds() < 1.5:
                assert time.monotonic() < end, "it does not count"
                time.sleep(0.01)
        child.send_signal(signal.SIGCONT)
        said, _ = child.communicate("go\n", timeout=30)
    finally:
        child.kill()
        child.wait()
    assert 0 < float(said) < 1.0
