"""The stopwatch counts what runs; a process that does not run counts next to nothing, and `promise` judges by that."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lab.stopwatch import Stopwatch, promise

CHILD = """
import sys
from lab.stopwatch import promise
for number, attempt in enumerate(promise(within=0.5)):
    with attempt as measured:
        print("ready", flush=True)
        sys.stdin.readline()
        if number == 0:
            measured.took(1)
print("kept", number, measured._watch.seconds(), flush=True)
"""
TESTS = Path(__file__).parents[1]


def wait(seconds: float) -> None:
    """For as long as a process that runs counts."""
    with Stopwatch() as watch:
        end = time.monotonic() + 60
        while watch.seconds() < seconds:
            assert time.monotonic() < end, "it does not count"
            time.sleep(0.01)


def test_a_standstill_is_not_counted_and_the_measurement_is_repeated() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        for _ in range(2):
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGSTOP)
            wait(1.0)
            child.send_signal(signal.SIGCONT)
            child.stdin.write("go\n")
            child.stdin.flush()
        word, tries, counted = child.stdout.readline().split()
    finally:
        child.kill()
        child.communicate()
    assert (word, tries) == ("kept", "1"), "the first figure was too high, while it stood still"
    assert float(counted) < 0.5


def test_computing_counts_though_no_other_thread_runs() -> None:
    """One call in C that keeps the interpreter to itself: the ticks are late, and we ran."""
    text = "1" * 200_000
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    limit = sys.get_int_max_str_digits()
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


@pytest.mark.parametrize(("stolen", "tries"), [(0.0, 1), (0.04, 1), (0.06, 8)])
def test_a_bound_that_is_not_kept_fails(monkeypatch: pytest.MonkeyPatch, stolen: float, tries: int) -> None:
    """At once where the machine was ours, else after the last try."""
    monkeypatch.setattr(Stopwatch, "stolen", lambda _: stolen)
    attempts = []

    def measure() -> None:
        for attempt in promise(within=0.5):
            with attempt:
                attempts.append(attempt)
                attempt.took(0.6)

    with pytest.raises(AssertionError, match=r"took 0\.600 s, and not at most 0\.5 s"):
        measure()
    assert len(attempts) == tries


def test_a_bound_that_is_kept_is_measured_once_and_an_error_passes() -> None:
    async def measure(fail: bool) -> int:
        attempts = 0
        for attempt in promise(within=60):
            attempts += 1
            with attempt:
                await asyncio.sleep(0)
                if fail:
                    raise ZeroDivisionError
        return attempts

    assert asyncio.run(measure(fail=False)) == 1
    with pytest.raises(ZeroDivisionError):
        asyncio.run(measure(fail=True))
    assert "stopwatch" not in [thread.name for thread in threading.enumerate()]
