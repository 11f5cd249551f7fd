"""Timing, rounds that take turns, figures, bars, and the command line: shared by every script here.

A row is a function `row(report, settings)`. It adds lines (a name and its figures) and bars (a figure compared with a
limit or with a peer of the same run). A contender that fails is reported on stderr and left out. `main` is the command
line of every script: --quick, --only, --runs, --json, --dir, --rounds, --old.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import platform
import re
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

Timed = Callable[[int], list[float]]
"""Does a thing n times and returns the seconds that each took."""


@dataclass(frozen=True)
class Settings:
    """The options of a run."""

    quick: bool
    rounds: int
    directory: Path
    """Of this run alone."""
    built: Path
    """For programs that are compiled once and used by all runs."""
    old: Path | None
    """A source tree of version 0.1.0."""

    def choose(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    def sqlite(self, name: str) -> str:
        """The URL of a database in this run's own directory."""
        return f"sqlite:///{self.directory / name}.db"


@dataclass(frozen=True)
class Bar:
    """One figure and its limits. With a peer the limits are on the ratio, unless `beside` is set."""

    row: str
    what: str
    figure: float
    unit: str
    least: float
    most: float
    peer: str | None = None
    peer_figure: float | None = None
    beside: bool = False
    """The peer is only shown: the limits are on the figure itself."""
    runs: tuple[float, ...] = ()
    """The value in each run, where there were several; the other fields are then medians."""

    @property
    def ratio(self) -> float | None:
        if self.peer_figure is None:
            return None
        return self.figure / self.peer_figure if self.peer_figure else math.inf

    @property
    def value(self) -> float:
        """The number that the limits are on."""
        if self.runs:  # what must never happen is judged by the worst run
            return max(self.runs) if self.most == 0 else statistics.median(self.runs)
        return self.figure if self.beside or self.ratio is None else self.ratio

    @property
    def met(self) -> bool:
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        verdict, figure = "met" if self.met else "MISSED", shown(self.figure, self.unit)
        text = f"{verdict:7s} {self.row:17s} {self.what:62s} {figure:>10s}"
        by_ratio = self.peer_figure is not None and not self.beside
        if by_ratio:
            text += f" = {self.value:.2f} x"
        if self.runs:
            ends = (f"{end:.2f}" if by_ratio else shown(end, self.unit) for end in (min(self.runs), max(self.runs)))
            text += f" ({' to '.join(ends)} in {len(self.runs)} runs)"
        return text if self.peer_figure is None else f"{text}   ({self.peer}: {shown(self.peer_figure, self.unit)})"


@dataclass
class Report:
    """The results of a run; lines are printed as they come."""

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

    def limit(self, what: str, figure: float, unit: str, *, most: float, peer: tuple[str, float] | None = None) -> None:
        """The figure is at most this; a peer is only shown beside it."""
        name, other = peer or (None, None)
        self.bars.append(Bar(self.row, what, figure, unit, -math.inf, most, name, other, beside=True))

    def against(
        self, what: str, figure: float, peer: tuple[str, float], unit: str, *, least: float = 0, most: float = math.inf
    ) -> None:  # fmt: skip
        """The ratio of the figure to the peer's is within these."""
        self.bars.append(Bar(self.row, what, figure, unit, least, most, *peer))

    def beside(
        self, what: str, figures: Mapping[str, float], ours: str, peer: str, unit: str, **limits: float
    ) -> None:  # fmt: skip
        """A bar on our figure against the peer's, left out where either did not run."""
        limit = ", ".join(f"at {word} {times:g} x" for word, times in limits.items())
        with self.or_left_out(f"{what} {limit} {peer}"):
            for name in (ours, peer):
                if name not in figures:
                    raise LookupError(f"{name} did not run")
            self.against(f"{ours}: {what} {limit} {peer}", figures[ours], (peer, figures[peer]), unit, **limits)

    @contextmanager
    def or_left_out(self, what: str) -> Iterator[None]:
        """Report an exception on stderr and go on with the run."""
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
    """All cases in turn, n times each, round after round: a disturbance of the machine affects all of them."""
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


def pair_of(lock: Any) -> Timed:
    def once() -> None:
        lock.acquire()
        lock.release()

    return timed(once)


def in_loop(url: str, stack: ExitStack) -> tuple[Any, Callable[[Callable[[], Awaitable[object]]], Timed]]:
    """A client of dibs.aio in an event loop of its own, and a function that times coroutines there."""
    import asyncio

    import dibs.aio

    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    client = dibs.aio.connect(url)
    stack.callback(lambda: loop.run_until_complete(client.close()))

    async def many(once: Callable[[], Awaitable[object]], n: int) -> list[float]:
        clock, times = time.perf_counter, []
        for _ in range(n):
            start = clock()
            await once()
            times.append(clock() - start)
        return times

    return client, lambda once: lambda n: loop.run_until_complete(many(once, n))


def dibs_lock(url: str, stack: ExitStack, name: str, **options: Any) -> Any:
    import dibs

    return stack.enter_context(dibs.connect(url)).lock(name, **options)


def median_bars(bars: Sequence[Bar]) -> list[Bar]:
    """One bar for those of all runs that have the same row and text."""
    found: dict[tuple[str, str], list[Bar]] = {}
    for bar in bars:
        found.setdefault((bar.row, bar.what), []).append(bar)
    return [
        replace(
            some[0],
            figure=statistics.median(bar.figure for bar in some),
            peer_figure=None if some[0].peer is None else statistics.median(bar.peer_figure or 0 for bar in some),
            runs=tuple(bar.value for bar in some),
        )
        for some in found.values()
    ]


def median_lines(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same for lines: the median of each figure."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["row"], line["name"]), []).append(line)
    return [
        {"row": row, "name": name}
        | {key: statistics.median(line.get(key, value) for line in some)
           for key, value in some[0].items() if key not in ("row", "name")}
        for (row, name), some in found.items()
    ]  # fmt: skip


def put_between_marks(page: Path, kind: str, blocks: Mapping[str, Sequence[str]]) -> None:
    """Replace the blocks of a Markdown page: each stands between `<!-- kind: name -->` and `<!-- end -->`."""
    text = page.read_text(encoding="utf-8")
    for name, lines in blocks.items():
        mark = re.compile(rf"(<!-- {kind}: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = mark.subn(lambda found, lines=lines: found[1] + "\n".join(["", *lines, "", found[2]]), text)
        if count != 1:
            sys.exit(f"{page.name} has no place for {name}")
    page.write_text(text, encoding="utf-8")


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
    """JSON has no infinity: null instead."""
    if isinstance(found, dict):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def main(
    about: str | None, rows: Mapping[str, Callable[[Report, Settings], None]],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> NoReturn:  # fmt: skip
    """The command line of a script: runs its rows, prints lines and bars. Exits 0 whether or not bars are met."""
    groups = groups or {}
    choices = [*groups, *rows]
    options = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a smoke run: short, and its figures mean little")
    options.add_argument("--only", action="append", choices=choices, metavar="ROW", help=f"one of {', '.join(choices)}")
    options.add_argument("--runs", type=int, default=1, help="do everything so often, and print medians")
    options.add_argument("--json", type=Path, metavar="FILE", help="also write everything there")
    options.add_argument("--dir", type=Path, help="where databases go, in a directory that is removed again")
    options.add_argument(
        "--rounds", type=int, help="turns of each contender in a run; 3, or 1 if there are several runs"
    )
    options.add_argument("--old", type=Path, metavar="DIR", help="a source tree of version 0.1.0; else git has it")
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = given.rounds or (1 if given.quick or given.runs > 1 else 3)
    chosen = list(dict.fromkeys(row for name in given.only or rows for row in groups.get(name, (name,))))
    report, about_machine = Report(), facts()
    print("  ".join(f"{key}: {value}" for key, value in about_machine.items()), flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="dibs-bench-", dir=given.dir) as directory:
            for number in range(given.runs):
                place = Path(directory, f"run-{number}")
                place.mkdir()
                settings = Settings(given.quick, rounds, place, Path(directory), given.old)
                for report.row in chosen:
                    with report.or_left_out("the row"):
                        rows[report.row](report, settings)
    except KeyboardInterrupt:
        sys.exit(130)
    lines, bars = report.lines, report.bars
    if given.runs > 1:
        lines, bars = median_lines(lines), median_bars(bars)
    print(*bars, *(f"left out {what}" for what in report.left_out), sep="\n")
    if given.json:
        found = {"facts": about_machine, "quick": given.quick, "rounds": rounds, "runs": given.runs, "lines": lines}
        found["bars"] = [asdict(bar) | {"ratio": bar.ratio, "value": bar.value, "met": bar.met} for bar in bars]
        found["left_out"] = report.left_out
        given.json.write_text(json.dumps(_finite(found), indent=1) + "\n")
    sys.exit(0)
