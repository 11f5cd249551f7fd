"""A small demo to be started, and what may be left of it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from lab.leaks import command_lines

SMALL = ("--workers=3", "--turns=5", "--lease=0.6", "--seed=7")


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "dibs.cli", "demo", *SMALL, *options]


def workers_below(tmp_path: Path) -> list[str]:
    """Command lines of processes that name a directory of this test."""
    return [line for line in command_lines() if "demo_worker" in line and str(tmp_path) in line]


def left_behind(tmp_path: Path) -> list[str]:
    return [*workers_below(tmp_path), *(str(path) for path in (tmp_path / "tmp").iterdir())]


def heed_signals() -> None:
    """Tests may run where these are ignored (in the background, under nohup), and that is inherited."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
