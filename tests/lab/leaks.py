"""Find what a piece of code left behind: processes, threads, tasks, descriptors, files, and rows of a store.

    with leaks.watch(leaks.sqlite(path)):       # `async with` inside a coroutine
        ...                                     # raises Leaked if anything stays
    before = leaks.look(); ...; leaks.left(before, leaks.look())        # the same in two halves

A *place* is a function that lists what a store keeps. Closing may take a moment: `settle` looks again until nothing is
left. Processes are all descendants, and those with this process's mark in their environment; threads are those of the
kernel; tasks are those of the running loop. Linux only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

PATIENCE = 60.0
MARK = f"DIBS_LAB_OF_{os.getpid()}"
os.environ[MARK] = "1"


class Thing(NamedTuple):
    """Something that can be left behind: two looks see the same thing if kind and identity are equal."""

    kind: str
    identity: Hashable
    text: str

    def __str__(self) -> str:
        return f"{self.kind} {self.text}"


class Leaked(AssertionError):
    def __init__(self, things: list[Thing]) -> None:
        super().__init__("left behind: " + "; ".join(map(str, things)))
        self.things = things


Place = Callable[[], list[Thing]]


def look(*places: Place) -> list[Thing]:
    """Everything in those places, and then everything that this process has now.

    Places first: SQLite keeps the descriptor of a look at a file that is open elsewhere in this process, for the next.
    """
    return [thing for place in (*places, processes, threads, tasks, descriptors) for thing in place()]


def left(before: list[Thing], after: list[Thing]) -> list[Thing]:
    known = {thing[:2] for thing in before}
    return [thing for thing in after if thing[:2] not in known]


class watch:  # noqa: N801  # it is used as a word: `with leaks.watch():`
    """A `with` that raises `Leaked` at its end, unless its body raised itself."""

    def __init__(self, *places: Place, within: float = PATIENCE) -> None:
        self._places = places
        self._within = within

    def __enter__(self) -> None:
        self._before = look(*self._places)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            settle(self._before, *self._places, within=self._within)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            for _ in _looks(self._before, self._places, self._within):
                await asyncio.sleep(0.01)


def settle(before: list[Thing], *places: Place, within: float = PATIENCE) -> None:
    """Until nothing is left; `Leaked` when the time is over."""
    for _ in _looks(before, places, within):
        time.sleep(0.01)


def _looks(before: list[Thing], places: tuple[Place, ...], within: float) -> Iterator[None]:
    """Goes on as long as something is left; the caller pauses in its own way."""
    end = time.monotonic() + within
    while found := left(before, look(*places)):
        if time.monotonic() > end:
            raise Leaked(found)
        yield


def processes() -> list[Thing]:
    """By the instant of their start, because a pid comes again."""
    seen = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := _stat(entry)):
            seen[int(entry.name)] = fields
    ours = {os.getpid()}
    while more := {pid for pid, fields in seen.items() if int(fields[1]) in ours} - ours:
        ours |= more
    ours |= {pid for pid in seen if _is_marked(pid)}
    ours.discard(os.getpid())
    return [Thing("process", (pid, seen[pid][19]), _command(pid, seen[pid][0])) for pid in sorted(ours)]


def _stat(entry: Path) -> list[str]:
    """The fields of `stat` from the state on: [0] state, [1] parent, [19] start; empty if it is gone."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _is_marked(pid: int) -> bool:
    try:
        return f"{MARK}=1".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _command(pid: int, state: str) -> str:
    return f"{pid} {'(not reaped)' if state == 'Z' else command_line(pid)[:200]}".strip()


def command_line(pid: int) -> str:
    """Its words, empty if it is gone. Any process of the machine may be asked for, so they need not be text."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def command_lines() -> list[str]:
    return [command_line(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def threads() -> list[Thing]:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = []
    for entry in Path("/proc/self/task").iterdir():
        if fields := _stat(entry):
            tid = int(entry.name)
            found.append(Thing("thread", (tid, fields[19]), f"{tid} {names.get(tid, 'unknown to threading')}"))
    return found


def tasks() -> list[Thing]:
    try:
        running = asyncio.all_tasks() - {asyncio.current_task()}
    except RuntimeError:
        return []
    return [Thing("task", task, repr(task)) for task in running]


def descriptors() -> list[Thing]:
    """By what they point to and how often, because a number says nothing.

    Only links are read: to open a database and close it again would drop this process's locks on it.
    """
    found, often = [], Counter[str]()
    here = Path(f"/proc/{os.getpid()}/fd")
    for number in sorted(int(entry.name) for entry in here.iterdir()):
        with suppress(OSError):
            target = str((here / str(number)).readlink())
            if target == str(here):
                continue
            often[target] += 1
            text = f"{number} -> {target}{_ends(number)}"
            found.append(Thing("descriptor", (target, often[target]), text))
    return found


def _ends(number: int) -> str:
    """The addresses of a socket: nothing else tells whose it is."""
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return ""
    with socket.socket(fileno=os.dup(number)) as same:
        peer: Any = ""
        with suppress(OSError):
            peer = same.getpeername()
        return f" {same.getsockname()} {peer}".rstrip()


def files(*directories: Path, stays: tuple[str, ...] = ()) -> Place:
    """All files under these directories, except those whose path fits a pattern of `stays`."""

    def there() -> list[Thing]:
        found = [path for directory in directories for path in sorted(directory.rglob("*"))]
        return [Thing("file", path, str(path)) for path in found if not _fits(path, stays)]

    return there


def _fits(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(str(path), pattern) for pattern in patterns)


def rows(path: Path, query: str) -> Place:
    """The rows that a query finds in a SQLite file; none if nobody has written to it yet."""

    def there() -> list[Thing]:
        if not path.exists() or not path.stat().st_size:
            return []
        # Not read-only: whoever may not write cannot tidy up, and would leave a log of its own behind.
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as connection:
            return [Thing("row", row, repr(row)) for row in connection.execute(query)]

    return there


def sqlite(path: Path) -> Place:
    """The `sqlite:///` store in that file: its claims and clients, and the files of clients beside it."""
    claims = rows(
        path,
        "SELECT 'claim', hex(id), name, ticket FROM claims "
        "UNION ALL SELECT 'client', hex(id), live, 0 FROM clients "
        "UNION ALL SELECT 'outsider', hex(id), name, 0 FROM outsiders",
    )
    beside = files(path.with_name(path.name + ".d"), stays=("*/turn",))
    return lambda: claims() + beside()
