"""A failing test reports what a developer needs, and ends nothing but itself."""

from __future__ import annotations

import os
import re
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

def test_has_no_options_of_the_run_around_it():
    assert "PYTEST_ADDOPTS" not in os.environ

def test_programs_can_be_ended():
    assert {signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT)} == {signal.SIG_DFL}
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Pytest's output for these tests, run with three signals ignored, as in the background under nohup."""
    place = tmp_path_factory.mktemp("failures")
    (place / "test_samples.py").write_text(TESTS)
    shutil.copy(ROOT / "conftest.py", place)
    ignoring = "trap '' INT QUIT HUP; exec \"$@\""
    run = subprocess.run(
        ["sh", "-c", ignoring, "sh", sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"),
         "-p", "no:cacheprovider", "-p", "no:xdist", "--randomly-seed=7", str(place)],
        env={**os.environ, "DIBS_INTERRUPTS_SEED": "11", "PYTHONNODEBUGRANGES": "1", "PYTEST_ADDOPTS": "-v"},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_failures_end_one_test_each_and_nothing_is_inherited(output: str) -> None:
    """Signals reach tests although they were ignored, and the options of the run around it are not passed on."""
    assert "2 failed, 3 passed" in output
    assert "INTERNALERROR" not in output


def test_a_failing_test_shows_its_own_frames_and_values(output: str) -> None:
    assert "{'seen': 1} != {'seen': 2}" in output
    assert "in test_fails" in output
    assert "/pluggy/" not in output


def test_a_test_that_hangs_shows_all_threads(output: str) -> None:
    assert "Timeout (>1.0s)" in output
    assert "Stack of onlooker" in output


def test_a_failing_test_says_how_to_repeat_it(output: str) -> None:
    said = [line for line in output.splitlines() if line.startswith("DIBS_INTERRUPTS_SEED=11 ")]
    failed = re.findall(r"^FAILED (\S+)", output, re.MULTILINE)
    assert len(said) == len(failed) == 2
    for node_id in failed:
        assert any(line.endswith(f"-m pytest --randomly-seed=7 {node_id}") for line in said)
