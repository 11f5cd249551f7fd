"""A program that gevent has patched: greenlets wait without stopping one another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_waiting_greenlet_stops_no_other(store: str, tmp_path: Path) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path / 'locks.db'}"
    script = Path(__file__).with_name("greenlets.py")
    run = subprocess.run([sys.executable, str(script), url], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.split() == ["valid", "served"], run.stderr
