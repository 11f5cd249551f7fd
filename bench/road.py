"""The road of one free pair: every call from `with` to the wire, seen by `sys.setprofile` on a warm lock object.

`travelled(url)` records pairs in a fresh interpreter and returns the roads that they took. `table` and `figures` are
the blocks of CONTRIBUTING.md that bench/trace writes and tests/architecture/test_road.py checks. This module imports
nothing else of bench/, so that the test can load it alone.

List, set and dict comprehensions are not counted: Python 3.12 and later inline them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple

import dibs

SHOWN = ("sqlite", "redis", "postgresql", "zookeeper")
"""The stores whose road CONTRIBUTING.md shows, one of each kind."""
STORES = ("memory", "sqlite", "redis", "postgresql", "mysql", "zookeeper")
_OURS = Path(dibs.__file__).parent
_LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
_INLINED = ("<listcomp>", "<setcomp>", "<dictcomp>")
_WARM_UP, _PAIRS = 100, 60
_SETTLED = 0.5
"""Seconds. On MySQL a new name takes the general path for its first 0.2 s: its ticket is ahead of the clock."""


class Call(NamedTuple):
    depth: int
    file: str
    """Relative to src/dibs, or to the library that it belongs to; empty for a function in C."""
    ours: bool
    function: str


Calls = tuple[Call, ...]


class Road(NamedTuple):
    """A free pair: `__enter__` and `__exit__` of a lock object that is kept."""

    take: Calls
    release: Calls

    def python(self) -> int:
        return sum(bool(call.file) for call in (*self.take, *self.release))

    def c(self) -> int:
        return sum(not call.file for call in (*self.take, *self.release))

    def files(self, *, ours: bool = True) -> list[str]:
        """Files in the order of their first call: those of dibs, or those of drivers and of the standard library."""
        calls = (*self.take, *self.release)
        files = (call.file for call in calls if call.ours is ours)
        return list(dict.fromkeys(file for file in files if file and not file.startswith("<")))


def travelled(url: str) -> list[Road]:
    """The roads that pairs take there, the shortest first. On a network store they differ by how replies arrive.

    A fresh interpreter records them: a program that imported asyncio, for example, takes one step more."""
    done = subprocess.run([sys.executable, "-P", __file__, url], check=True, stdout=subprocess.PIPE, timeout=150)
    found = json.loads(done.stdout)
    return [Road(*(tuple(Call(*call) for call in calls) for calls in road)) for road in found]


def record(url: str) -> list[Road]:
    with dibs.connect(url) as client:
        lock = client.lock("road")
        warm_at, pairs = monotonic() + _SETTLED, 0
        while pairs < _WARM_UP or monotonic() < warm_at:
            with lock:
                pairs += 1
        gc.collect()
        gc.disable()  # a finaliser that runs in between is not part of the road
        seen = {Road(recorded(lock.__enter__), recorded(lock.__exit__, None, None, None)) for _ in range(_PAIRS)}
        gc.enable()
    return sorted(seen, key=lambda road: (road.python(), road.c()))


def recorded(function: Callable[..., object], *arguments: object) -> Calls:
    calls: list[Call] = []
    depth = 0

    def note(frame: FrameType, event: str, about: Any) -> None:
        nonlocal depth
        if event == "call":
            if frame.f_code.co_name not in _INLINED:
                calls.append(Call(depth, *_file_of(frame.f_code.co_filename), frame.f_code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1
        elif event == "c_call" and about is not sys.setprofile:
            calls.append(Call(depth, "", False, getattr(about, "__qualname__", repr(about))))

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return tuple(calls)


def _file_of(name: str) -> tuple[str, bool]:
    path = Path(name)
    if path.is_relative_to(_OURS):
        return str(path.relative_to(_OURS)), True
    for library in _LIBRARIES:
        if path.is_relative_to(library):
            return str(path.relative_to(library)), False
    return name, False


def drawn(road: Road) -> Iterable[str]:
    """The road in full, one line for each Python call, with its C calls behind it."""
    for step, calls in (("take", road.take), ("release", road.release)):
        yield f"{step}:"
        line = ""
        for call in calls:
            if call.file:
                if line:
                    yield line
                line = f"  {'  ' * call.depth}{call.file}  {call.function}"
            else:
                line += f"{', ' if ' -> ' in line else ' -> '}{call.function}"
        yield line


def table(road: Road) -> list[str]:
    """The files of dibs in the order of their first call, with the functions called in each; equal on every Python."""
    lines = ["| File (under `src/dibs/`) | `with` takes the lock | and releases it |", "|---|---|---|"]
    for file in road.files():
        functions = (_functions(calls, file) for calls in (road.take, road.release))
        lines.append(f"| `{file}` | {' | '.join(functions)} |")
    return lines


def _functions(calls: Calls, file: str) -> str:
    counts = Counter(call.function.replace(".<locals>", "") for call in calls if call.ours and call.file == file)
    return ", ".join(f"`{function}`{f' ({count} times)' if count > 1 else ''}" for function, count in counts.items())


def figures(roads: Mapping[str, Road]) -> list[str]:
    """The first row names the Python version that counted: the test expects the same counts from that version only."""
    version = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    lines = [f"| Counted by {version} | Python calls | C calls | files of dibs | other files |"]
    lines.append("|---|---:|---:|---:|---:|")
    for store, road in roads.items():
        counts = (road.python(), road.c(), len(road.files()), len(road.files(ours=False)))
        lines.append(f"| {store} | {' | '.join(map(str, counts))} |")
    return lines


def block(page: str, name: str) -> list[str]:
    """The lines that stand on the page between the marks of that name."""
    _, mark, rest = page.partition(f"<!-- trace: {name} -->\n")
    if not mark:
        raise LookupError(f"the page has no block {name!r}")
    return [line for line in rest.partition("<!-- end -->")[0].splitlines() if line]


if __name__ == "__main__":
    print(json.dumps(record(sys.argv[1])))
