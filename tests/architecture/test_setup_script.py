"""scripts/setup, which every other script begins with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_without_an_argument_it_makes_the_plain_install(tmp_path: Path) -> None:
    """It is made already: that of `dev` and of `docs` is not."""
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (ROOT / "pyproject.toml").open("rb") as file:
        told = subprocess.run(["cksum"], stdin=file, capture_output=True, text=True, timeout=60, check=True).stdout
    (tmp_path / f".dibs-run-{told.split()[0]}").touch()
    before = {one.name for one in tmp_path.iterdir()}
    done = subprocess.run(
        [ROOT / "scripts/setup"], env={**os.environ, "DIBS_VENV": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{python}\n", "")
    assert {one.name for one in tmp_path.iterdir()} == before
