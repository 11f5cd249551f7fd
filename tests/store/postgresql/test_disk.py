"""A full disk: never a false grant, and all works again when there is room."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lab.servers.programs import require

PROGRAM = Path(__file__).with_name("small_disk.py")
ALONE = ["unshare", "--mount", "--propagation", "private"]


def _may_mount() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run([*ALONE, "true"], check=False).returncode


@pytest.mark.slow
@pytest.mark.skipif(not _may_mount(), reason="needs a mount namespace of its own")
def test_a_full_disk() -> None:
    """In a directory of its own: what lies below pytest's is closed to the user that the server runs as."""
    require("postgresql")
    tests = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="dibs-") as place:
        done = subprocess.run(
            [*ALONE, sys.executable, PROGRAM, place],
            capture_output=True,
            text=True,
            timeout=55,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{tests}:{tests.parent / 'src'}"},
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout
