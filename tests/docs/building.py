"""The documentation site, built by `scripts/docs`: once for all workers of a run."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NOT_ITS_OWN = {"DIBS_VENV", "PYTHONPATH", "VIRTUAL_ENV"}
"""They would let packages of the development environment stand in for one that the extra `docs` lacks."""


def built_site(temporary: pytest.TempPathFactory) -> Path:
    """Return its directory. A warning of Sphinx, and so a broken link, fails the test that asks for it."""
    base = temporary.getbasetemp()
    place = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    report = place / "site.txt"
    with (place / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report.exists():
            own = {name: value for name, value in os.environ.items() if name not in _NOT_ITS_OWN}
            done = subprocess.run(
                [ROOT / "scripts/docs", "build"], env=own, cwd=ROOT, capture_output=True, text=True, check=False
            )
            report.write_text("" if done.returncode == 0 else f"{done.stdout}{done.stderr}status {done.returncode}")
    if failure := report.read_text():
        pytest.fail(f"scripts/docs build fails:\n{failure}", pytrace=False)
    return ROOT / "docs/_build/html"
