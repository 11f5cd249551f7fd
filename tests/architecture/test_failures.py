"""A failing test reports what a developer needs, and ends nothing but itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, threading, time
import pytest

def test_fails():
    assert {"seen": 1} == {"seen": 2}

@pytest.mark.timeout(1)
def test_hangs():
    held = threading.Event()
    threading.Thread(target=held.wait, args=(60,), name="onlooker", daemon=True).start()
    held.wait(60)

def test_is_interrupted():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

def test_programs_can_be_ended():
    assert {signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT)} == {signal.SIG_DFL}
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest prints about these tests, started in the background with nohup: with three signals ignored."""
    place = tmp_path_factory.mktemp("failures")
    (place / "test_samples.py").write_text(TESTS)
    shutil.copy(ROOT / "conftest.py", place)
    ignoring = "trap '' INT QUIT HUP; exec \"$@\""
    run = subprocess.run(
        ["sh", "-c", ignoring, "sh", sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"),
         "-p", "no:cacheprovider", "-p", "no:xdist", "--randomly-seed=7", str(place)],
        env={**os.environ, "DIBS_SIM_SEED": "11", "PYTHONNODEBUGRANGES": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_one_failure_ends_one_test(output: str) -> None:
    assert "2 failed, 2 passed" in output
    assert "INTERNALERROR" not in output


def test_a_failing_test_shows_its_own_frames_and_values(output: str) -> None:
    assert "{'seen': 1} != {'seen': 2}" in output
    assert "in test_fails" in output
    assert "/pluggy/" not in output


def test_a_test_that_hangs_shows_all_threads(output: str) -> None:
    assert "Timeout (>1.0s)" in output
    assert "Stack of onlooker" in output


def test_a_failing_test_says_how_to_repeat_it(output: str) -> None:
    said = [line for line in output.splitlines() if line.startswith("DIBS_SIM_SEED=11 ")]
    assert len(said) == 2
    for name in ("test_fails", "test_hangs"):
        assert any(line.endswith(f"-m pytest --randomly-seed=7 {_shown(output, name)}") for line in said)


def _shown(output: str, name: str) -> str:
    """The node id as pytest's own summary gives it."""
    summary = next(line for line in output.splitlines() if line.startswith("FAILED ") and f"::{name} " in line)
    return summary.split()[1]


def test_signals_reach_tests_although_they_were_ignored(output: str) -> None:
    failed = output.partition("short test summary info")[2]
    assert "::test_is_interrupted" not in failed
    assert "::test_programs_can_be_ended" not in failed
