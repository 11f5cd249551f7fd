"""A subinterpreter ends while this process lives on: no thread of a closed client may be left in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_subinterpreter_may_end_right_after_close(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'locks.db'}"
    script = Path(__file__).with_name("subinterpreters.py")
    run = subprocess.run([sys.executable, str(script), url], capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.split() == ["ended"], run.stderr
