"""What all rows share: timing, rounds that take turns, figures, bars, and the command line of every script here.

A row is a function `row(report, settings)`. It adds lines (a name and its figures) and bars (a figure held against a
limit or against a peer of the same run). What cannot run is said on stderr and left out. `main` gives a script its
command line: --quick, --only, --json, --dir, --rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import platform
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

Timed = Callable[[int], list[float]]
"""Does a thing n times and gives the seconds that each took."""


@dataclass(frozen=True)
class Settings:
    """How a run was asked for."""

    quick: bool
    rounds: int
    directory: Path

    def choose(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    def sqlite(self, name: str) -> str:
        """The URL of a database in this run's own directory."""
        return f"sqlite:///{self.directory / name}.db"


@dataclass(frozen=True)
class Bar:
    """One figure and what was asked of it."""

    row: str
    what: str
    met: bool
    figure: float
    unit: str
    peer: str | None = None
    peer_figure: float | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        verdict, figure = "met" if self.met else "MISSED", shown(self.figure, self.unit)
        text = f"{verdict:7s} {self.row:17s} {self.what:62s} {figure:>10s}"
        if self.peer_figure is None:
            return text
        ratio = "" if self.ratio is None else f" = {self.ratio:.2f} x"
        return f"{text}{ratio}   ({self.peer}: {shown(self.peer_figure, self.unit)})"


@dataclass
class Report:
    """What a run found; lines are printed as they come."""

    row: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def line(self, name: str, figures: Mapping[str, float]) -> None:
        """Figures are named with their unit behind the last underscore: `p50_us`."""
        self.lines.append({"row": self.row, "name": name, **figures})
        named = ((*label.rsplit("_", 1), value) for label, value in figures.items())
        parts = [f"{label} {shown(value, unit)}" for label, unit, value in named]
        print(f"{self.row:17s} {name:34s} {'   '.join(parts)}", flush=True)

    def limit(
        self, what: str, figure: float, unit: str, *,
        most: float = math.inf, under: float = math.inf, peer: tuple[str, float] | None = None,
    ) -> None:  # fmt: skip
        """The figure is within these; a peer is only shown beside it."""
        name, other = peer or (None, None)
        ratio = figure / other if other else None
        met = figure <= most and figure < under
        self.bars.append(Bar(self.row, what, met, figure, unit, name, other, ratio))

    def against(
        self, what: str, figure: float, peer: tuple[str, float], unit: str, *, least: float = 0, most: float = math.inf
    ) -> None:  # fmt: skip
        """The ratio of the figure to the peer's is within these."""
        ratio = figure / peer[1] if peer[1] else math.inf
        met = least <= ratio <= most
        self.bars.append(Bar(self.row, what, met, figure, unit, *peer, ratio))

    def beside(
        self, what: str, figures: Mapping[str, float], ours: str, peer: str, unit: str, **limits: float
    ) -> None:  # fmt: skip
        """A bar on our figure against the peer's, left out where either did not run."""
        with self.or_left_out(f"{what} {peer}"):
            for name in (ours, peer):
                if name not in figures:
                    raise LookupError(f"{name} did not run")
            self.against(f"{ours}: {what} {peer}", figures[ours], (peer, figures[peer]), unit, **limits)

    @contextmanager
    def or_left_out(self, what: str) -> Iterator[None]:
        """What fails in here is said and left out; the run goes on."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            self.left_out.append(f"{self.row}: {what}: {type(error).__name__}: {reason}")
            print(f"left out: {self.left_out[-1]}", file=sys.stderr, flush=True)


def shown(value: float, unit: str) -> str:
    if unit == "n":
        return f"{value:.0f}"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit.replace('pct', '%').replace('per-s', '/s')}".strip()


def percentile(times: Sequence[float], q: float) -> float:
    ordered = sorted(times)
    return ordered[min(int(len(ordered) * q), len(ordered) - 1)] if ordered else float("nan")


def p50(times: Sequence[float]) -> float:
    return percentile(times, 0.5)


def microseconds(times: Sequence[float]) -> dict[str, float]:
    return {"p50_us": p50(times) * 1e6, "p99_us": percentile(times, 0.99) * 1e6}


def timed(once: Callable[[], object]) -> Timed:
    def run(n: int) -> list[float]:
        clock, times = time.perf_counter, []
        for _ in range(n):
            start = clock()
            once()
            times.append(clock() - start)
        return times

    return run


def interleaved(report: Report, cases: Mapping[str, Timed], n: int, rounds: int) -> dict[str, list[float]]:
    """All cases in turn, n times each, again and again: what disturbs the machine disturbs all of them alike."""
    times: dict[str, list[float]] = {}
    for name, run in cases.items():
        with report.or_left_out(name):
            run(max(n // 10, 3))  # connects, and warms up
            times[name] = []
    gc.collect()
    for _ in range(rounds):
        for name in list(times):
            with report.or_left_out(name):
                times[name] += cases[name](n)
    return {name: some for name, some in times.items() if some}


def facts() -> dict[str, str]:
    """What the figures depend on."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        "cpu": _cpu_model(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "kernel": f"{platform.system()} {platform.release()}",
        "sqlite": sqlite3.sqlite_version,
        "dibs": _version("dibs"),
        "filelock": _version("filelock"),
        "kazoo": _version("kazoo"),
        "redis-py": _version("redis"),
        "hiredis": _version("hiredis"),
        "python-redis-lock": _version("python-redis-lock"),
        "tooz": _version("tooz"),
        "psycopg": _version("psycopg"),
        "PyMySQL": _version("pymysql"),
        "sqlalchemy-dlock": _version("sqlalchemy-dlock"),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _finite(found: Any) -> Any:
    """JSON has no word for what could not be computed but null."""
    if isinstance(found, dict):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, list):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def main(about: str | None, rows: Mapping[str, Callable[[Report, Settings], None]]) -> NoReturn:
    """The command line of a script: runs its rows, prints lines and bars. Exits 0 whether or not bars are met."""
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a smoke run: short, and its figures mean little")
    options.add_argument("--only", action="append", choices=list(rows), metavar="ROW", help=f"one of {', '.join(rows)}")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write everything there")
    options.add_argument("--dir", type=Path, help="where databases go, in a directory that is removed again")
    options.add_argument("--rounds", type=int, help="how often each contender has its turn")
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = given.rounds or (1 if given.quick else 3)
    report, about_machine = Report(), facts()
    print("  ".join(f"{key}: {value}" for key, value in about_machine.items()), flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=given.dir) as directory:
            settings = Settings(given.quick, rounds, Path(directory))
            for report.row in given.only or rows:
                with report.or_left_out("the row"):
                    rows[report.row](report, settings)
    except KeyboardInterrupt:
        sys.exit(130)
    print(*report.bars, *(f"left out {what}" for what in report.left_out), sep="\n")
    if given.json:
        found = {"facts": about_machine, "quick": given.quick, "rounds": rounds, "lines": report.lines}
        found |= {"bars": [asdict(bar) for bar in report.bars], "left_out": report.left_out}
        given.json.write_text(json.dumps(_finite(found), indent=1) + "\n")
    sys.exit(0)
