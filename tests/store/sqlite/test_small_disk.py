"""A full disk and one that can only be read: never a false grant, and all works again when there is room."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("small_disk.py")
ALONE = ["unshare", "--mount", "--propagation", "private"]


def can_mount(directory: Path) -> str:
    """Why not; empty if it can."""
    words = [*ALONE, "mount", "-t", "tmpfs", "tmpfs", str(directory)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["full", "readonly"])
def test_a_small_disk(tmp_path: Path, scenario: str) -> None:
    if reason := can_mount(tmp_path):
        pytest.skip(f"no mount namespace of one's own here: {reason}")
    words = [*ALONE, sys.executable, str(PROGRAM), scenario, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)
    print("figure:", scenario, done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused")
