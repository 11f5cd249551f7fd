"""The package itself passes `mypy --strict`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.early
def test_the_package_is_typed() -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-m", "mypy"], cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
