"""The workers of one run: start, kill, stop, heal and end them, and record it.

Records are in the run's directory beside the workers' own, dated so that they err on the lock's side (a death before
its signal), and only if it was seen to have happened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lab.history import History, Line, lines_of, read
from lab.nursery import Nursery, killed, state_of, stopped
from lab.resource import Fenced, Naive, Tally
from lab.surface import clock
from lab.worker import Pen, Spec
from process.children import until

ENOUGH = 4000
PATIENCE = 60.0
"""How long everybody may take to end once told; nothing here is a measurement."""


class Crowd:
    """Workers of one directory; each is known by the name that its spec gives it."""

    def __init__(self, specs: Iterable[Spec]) -> None:
        self.specs = {spec.proc: spec for spec in specs}
        first = next(iter(self.specs.values()))
        self.directory = Path(first.directory)
        self.running: dict[str, int] = {}
        self.stopped: dict[str, int] = {}
        self.killed: list[str] = []
        self.faults: set[str] = set()
        self._nursery = Nursery()
        self._pen = Pen(replace(first, proc="nemesis"))
        self._successors = 0

    def __enter__(self) -> Self:
        try:
            for spec in list(self.specs.values()):
                self.start(spec)
        except BaseException:
            self._nursery.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()

    def start(self, spec: Spec) -> None:
        self.specs[spec.proc] = spec
        self.running[spec.proc] = self._nursery.start(spec)

    def successor(self, proc: str) -> None:
        """A new worker in a dead one's place, under a name of its own."""
        self._successors += 1
        self.start(replace(self.specs[proc], proc=f"{proc.partition('+')[0]}+{self._successors}"))

    def kill(self, *procs: str) -> None:
        pids = {proc: self.running.pop(proc) for proc in procs}
        for proc in pids:
            self.note("killed", victim=proc)
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for proc, pid in pids.items():
            killed(pid)
            if self._nursery.reap(pid) == -signal.SIGKILL:
                self.killed.append(proc)
                self.fault("kill -9")

    def stop(self, proc: str) -> None:
        pid = self.running.pop(proc)
        stopped(pid)
        self.stopped[proc] = pid

    def go_on(self, proc: str, fault: str) -> None:
        """The fault counts if the process stood still up to here."""
        pid = self.stopped.pop(proc)
        still = state_of(pid) == "T"
        os.kill(pid, signal.SIGCONT)
        self.running[proc] = pid
        if still:
            self.fault(fault)

    def stand_still(self, path: Path) -> int:
        return self._nursery.stand_still(path)

    def end_standstill(self, pid: int) -> None:
        """It counts if it got into its transaction: another process, stopped in its own, may have kept it out."""
        inside = state_of(pid) == "T"
        os.kill(pid, signal.SIGCONT if inside else signal.SIGKILL)
        self._nursery.reap(pid)
        if inside:
            self.fault("store at a standstill")

    def heal(self) -> None:
        for proc in list(self.stopped):
            self.go_on(proc, "stopped until healed")
        for pid in self.running.values():
            os.kill(pid, signal.SIGUSR1)
        self.note("heal")

    def quiet(self, within: float) -> None:
        waiting = {(proc, actor) for proc in self.running for actor in self.specs[proc].actors}
        follow, end = Follow(self.directory), clock() + within
        while waiting and clock() < end:
            waiting -= {(line["proc"], line["thread"]) for line in follow.lines() if line.get("token")}
            time.sleep(0.02)
        self.note("quiet")

    def end(self, patience: float = PATIENCE) -> None:
        """Ask all to end; whoever does not is killed, and that is an error of its own."""
        for pid in self.running.values():
            os.kill(pid, signal.SIGTERM)
        end = clock() + patience
        for proc in list(self.running):
            pid = self.running[proc]
            while state_of(pid) != "Z" and clock() < end:
                time.sleep(0.005)
            if state_of(pid) != "Z":
                self.note("crash", error=f"{proc} did not end within {patience:g} s")
                self.kill(proc)
            elif status := self._nursery.reap(self.running.pop(proc)):
                self.note("crash", error=f"{proc} ended with {status}")
        if errors := self._nursery.finish():
            self.note("crash", error=errors[:ENOUGH])

    def history(self) -> History:
        return read(self.directory)

    def grants(self) -> int:
        return sum(path.read_bytes().count(b'"outcome": "ok", "token"') for path in self.directory.glob("*.jsonl"))

    def size(self, proc: str) -> int:
        """Bytes of the history of a process; 0 until it does something."""
        path = self.directory / f"{proc}.jsonl"
        return path.stat().st_size if path.exists() else 0

    def until(self, condition: Callable[[], Any], what: str) -> None:
        until(condition, PATIENCE, what)

    def naive(self) -> list[Tally]:
        return [Naive(path).tally() for path in sorted(self.directory.glob("*.naive"))]

    def fenced(self) -> list[Tally]:
        return [Fenced(path).tally() for path in sorted(self.directory.glob("*.fenced"))]

    def fault(self, kind: str) -> None:
        self.faults.add(kind)
        self.note("fault", kind=kind)

    def note(self, op: str, **facts: Any) -> None:
        self._pen.note("", 0, op, clock(), **facts)


class Follow:
    """Reads on in the files of a directory from where their last whole line ended when it began."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ends = {path: path.read_bytes().rfind(b"\n") + 1 for path in directory.glob("*.jsonl")}

    def lines(self) -> Iterator[Line]:
        for path in self._directory.glob("*.jsonl"):
            end = self._ends.get(path, 0)
            with path.open("rb") as file:
                file.seek(end)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._ends[path] = end + len(whole)
            yield from lines_of(whole, str(path))
