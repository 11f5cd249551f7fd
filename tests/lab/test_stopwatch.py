"""The stopwatch counts the time in which this process could run, and no standstill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.stopwatch import Stopwatch, promise

CHILD = """
import sys
from lab.stopwatch import promise
with promise(within=0.5):
    print("ready", flush=True)
    sys.stdin.readline()
"""
TESTS = Path(__file__).parents[1]


def test_a_standstill_is_not_counted() -> None:
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", CHILD], text=True, env=env, **pipes) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        child.send_signal(signal.SIGCONT)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.wait(60) == 0


def test_computing_counts_though_no_other_thread_runs() -> None:
    """One call in C keeps the interpreter to itself: the ticks are late, though this process runs."""
    text = "1" * 200_000
    interval, limit = sys.getswitchinterval(), sys.get_int_max_str_digits()
    sys.setswitchinterval(100)
    sys.set_int_max_str_digits(0)
    try:
        begun = time.process_time()
        with Stopwatch() as watch:
            while time.process_time() - begun < 0.3:
                int(text)
        used = time.process_time() - begun
    finally:
        sys.setswitchinterval(interval)
        sys.set_int_max_str_digits(limit)
    assert watch.seconds() > 0.9 * used


def test_a_bound_that_is_not_kept_fails() -> None:
    with pytest.raises(AssertionError, match=r"and not at most 0\.01 s"), promise(within=0.01):
        time.sleep(0.05)
