#!/usr/bin/env python3
"""Start-up: wall time of `import dibs`, `dibs run` and `dibs ls`, each in a fresh interpreter.

  bench/command.py [--only import | --only command_run | --only command_ls]

import        `import dibs` against `import sqlite3, asyncio`, started in turn, 15 times each. Bar: 2 x.
command_run   `dibs run x -- true` on a database file: as `python -m dibs` and, where it is installed, as the script
              `dibs`. The floor is an interpreter that imports sqlite3, argparse and subprocess, and runs `true`. All
              are started in turn, 25 times each. The lock is free, the file exists, byte code is cached. Bar: 2.5 x.
command_ls    `dibs ls` while 10,000 locks are held (1,000 with --quick). Bar: 1 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from measure import Report, Settings, interleaved, main, p50, percentile, timed

MODULE, SCRIPT = "python -m dibs run", "dibs run"
FLOOR = "import sqlite3, argparse, subprocess; subprocess.run(['true'])"
IMPORT, NEEDED, NOTHING = "import dibs", "import sqlite3, asyncio", "pass"
LEASE = 120.0


def imports(report: Report, settings: Settings) -> None:
    words = {code: [sys.executable, "-c", code] for code in (IMPORT, NEEDED, NOTHING)}
    figures = started(report, words, dict(os.environ), settings.choose(15, 5))
    report.beside("p50", figures, IMPORT, NEEDED, "ms", most=2.0)


def command_run(report: Report, settings: Settings) -> None:
    environment = usual(settings.sqlite("run"))
    commands = {MODULE: [sys.executable, "-m", "dibs", "run", "x", "--", "true"]}
    script = Path(sys.executable).with_name("dibs")
    if script.exists():
        commands[SCRIPT] = [str(script), "run", "x", "--", "true"]
    ours = list(commands)
    commands |= {"floor": [sys.executable, "-c", FLOOR], NOTHING: [sys.executable, "-c", NOTHING]}
    figures = started(report, commands, environment, settings.choose(25, 5))
    for name in ours:
        report.beside("p50", figures, name, "floor", "ms", most=2.5)


def started(
    report: Report, commands: Mapping[str, list[str]], environment: dict[str, str], turns: int
) -> dict[str, float]:
    """The p50 of each, in ms."""
    cases = {name: timed(partial(completed, words, environment)) for name, words in commands.items()}
    times = interleaved(report, cases, 1, turns)
    for name, some in times.items():
        report.line(name, {"p50_ms": p50(some) * 1e3, "least_ms": least(some) * 1e3})
    return {name: p50(some) * 1e3 for name, some in times.items()}


def command_ls(report: Report, settings: Settings) -> None:
    import dibs

    url, locks = settings.sqlite("ls"), settings.choose(10_000, 1000)
    words = [sys.executable, "-m", "dibs", "ls"]
    with dibs.connect(url, lease=LEASE) as client:
        holds = [client.lock(f"lock:{number:05d}").acquire() for number in range(locks)]
        shown = completed(words, usual(url)).count(b"lock:")
        if shown != locks:
            raise RuntimeError(f"dibs ls shows {shown} of {locks} locks")
        cases = {"dibs ls": timed(partial(completed, words, usual(url)))}
        times = interleaved(report, cases, 1, settings.choose(5, 2))["dibs ls"]
        lost = sum(hold is None or hold.lost.is_set() for hold in holds)
        about = {"p50_ms": p50(times) * 1e3, "least_ms": least(times) * 1e3, "lost_n": lost}
        report.line(f"dibs ls of {locks}", about)
        report.limit(f"p50 of dibs ls of {locks} at most 1 s", p50(times), "s", most=1.0)


def completed(words: list[str], environment: dict[str, str]) -> bytes:
    """Its output. With a timeout, subprocess would poll, up to 50 ms late."""
    return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE).stdout


def usual(url: str) -> dict[str, str]:
    """The environment, with byte code kept."""
    return {**os.environ, "DIBS_URL": url, "PYTHONDONTWRITEBYTECODE": ""}


def least(times: list[float]) -> float:
    return percentile(times, 0.0)


ROWS = {"import": imports, "command_run": command_run, "command_ls": command_ls}

if __name__ == "__main__":
    main(__doc__, ROWS)
