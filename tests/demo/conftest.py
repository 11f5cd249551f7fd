"""Where the demo is played: away from everything of the user's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from demo.plays import command


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Temporary directories lie below the test's own, and a store of the user's is not touched."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "DIBS_URL": "sqlite:////nonexistent/never.db"}


@pytest.fixture
def demo(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*options), capture_output=True, text=True, timeout=50, env=environment, check=False
        )

    return run
