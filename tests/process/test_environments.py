"""Programs in odd surroundings: no Unix, greenlets, a subinterpreter that ends while its process lives on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from process.children import PATIENCE


def said(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'locks.db'}"


def test_what_windows_lacks_is_not_needed() -> None:
    """Memory works, and every network store can be imported."""
    assert said("without_unix.py") == ["works"]


def test_a_waiting_greenlet_stops_no_other(url: str) -> None:
    """In a program that gevent has patched."""
    assert said("greenlets.py", url) == ["valid", "served"]


def test_a_subinterpreter_may_end_right_after_close(url: str) -> None:
    """No thread of a closed client is left in it."""
    assert said("subinterpreters.py", url) == ["ended"]
