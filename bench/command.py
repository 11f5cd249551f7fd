#!/usr/bin/env python3
"""The command line: what `dibs` costs whoever puts it in front of a command, or looks at many locks with it.

  bench/command.py

command_run   wall time of `dibs run x -- true` on a database file: as `python -m dibs` and, where it is installed,
              as the script `dibs`. The floor is the least that a Python program could do for it: an interpreter that
              imports sqlite3, argparse and subprocess, and runs `true`. All are started in turn, 25 times each. The
              lock is free, the file is there, byte code is cached. Bar, on each of ours: 2.5 x the floor.
command_ls    wall time of `dibs ls` while 10,000 locks are held (1,000 with --quick), all of it read. Bar: 1 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from measure import Report, Settings, interleaved, main, p50, percentile, timed

MODULE, SCRIPT = "python -m dibs run", "dibs run"
FLOOR = "import sqlite3, argparse, subprocess; subprocess.run(['true'])"
NOTHING = "pass"
LEASE = 120.0


def command_run(report: Report, settings: Settings) -> None:
    environment = usual(settings.sqlite("run"))
    commands = {MODULE: [sys.executable, "-m", "dibs", "run", "x", "--", "true"]}
    script = Path(sys.executable).with_name("dibs")
    if script.exists():
        commands[SCRIPT] = [str(script), "run", "x", "--", "true"]
    ours = list(commands)
    commands |= {code: [sys.executable, "-c", code] for code in (FLOOR, NOTHING)}
    cases = {name: timed(partial(completed, words, environment)) for name, words in commands.items()}
    times = interleaved(report, cases, 1, settings.choose(25, 5))
    for name, some in times.items():
        report.line("floor" if name == FLOOR else name, {"p50_ms": p50(some) * 1e3, "least_ms": least(some) * 1e3})
    for name in ours:
        if name in times and FLOOR in times:
            floor = ("floor", p50(times[FLOOR]) * 1e3)
            report.against(f"p50 of {name} at most 2.5 x the floor", p50(times[name]) * 1e3, floor, "ms", most=2.5)


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
    """What it wrote. With a time-out subprocess would poll, up to 50 ms late."""
    return subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE).stdout


def usual(url: str) -> dict[str, str]:
    """Byte code is kept, as everywhere where a command is started twice."""
    return {**os.environ, "DIBS_URL": url, "PYTHONDONTWRITEBYTECODE": ""}


def least(times: list[float]) -> float:
    return percentile(times, 0.0)


ROWS = {"command_run": command_run, "command_ls": command_ls}

if __name__ == "__main__":
    main(__doc__, ROWS)
