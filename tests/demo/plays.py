"""Start a small demo, and find what is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.leaks import command_lines

LEASE = 4
"""Seconds. A machine that stands still for a second does not end it."""
SMALL = ("--workers=3", "--turns=5", f"--lease={LEASE}", "--seed=7")


def environment_in(directory: Path) -> dict[str, str]:
    """Temporary directories are below `directory`; the user's store is not touched."""
    (directory / "tmp").mkdir()
    return {**os.environ, "TMPDIR": str(directory / "tmp"), "DIBS_URL": "sqlite:////nonexistent/never.db"}


def start(environment: Mapping[str, str], *options: str, **more: Any) -> subprocess.Popen[Any]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = [sys.executable, "-m", "dibs", "demo", *SMALL, *options]
    return subprocess.Popen(words, env=environment, cwd=environment["TMPDIR"], **{**pipes, **more})


def workers_below(directory: Path) -> list[str]:
    """Command lines of processes that name a directory of this test."""
    return [line for line in command_lines() if "demo_worker" in line and str(directory) in line]


def left_behind(directory: Path) -> list[str]:
    return [*workers_below(directory), *(str(path) for path in (directory / "tmp").iterdir())]
