"""Real processes, told what to do by lines on stdin and heard by lines on stdout.

Every process works below the root of `lab.servers.guard`, so the guardian kills it if the test run is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import dibs
from lab.servers import guard

HERE = Path(__file__).parent
PATIENCE = 60.0
"""A timeout in seconds for everything that is not measured."""
STEADY = 60.0
"""A lease that outlives any pause of this machine."""
LASTING = 5.0
"""A short lease. While it is renewed, a machine that stands still for a second does not end it."""


def clock() -> float:
    """One clock for all processes of the machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def until(condition: Callable[[], Any], within: float = PATIENCE, what: str = "the condition") -> Any:
    """Poll `condition`, at first often, until it is true; return its value."""
    end, pause = clock() + within, 0.002
    while not (seen := condition()):
        assert clock() < end, f"{what}: not within {within:g} s"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.05)
    return seen


class Process:
    """One process, read line by line. `text` is its stdout so far, `errors` its stderr."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str], **more: Any) -> None:
        self.argv = argv
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._said: tuple[list[str], list[str]] = ([], [])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(argv, cwd=cwd, env=env, text=True, **{**pipes, **more})
        self._readers = [threading.Thread(target=self._read, daemon=True)] if self.process.stdout else []
        if self.process.stderr is not None:
            self._readers.append(threading.Thread(target=self._said[1].extend, args=[self.process.stderr], daemon=True))
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said[0].append(line)
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return "".join(self._said[0])

    @property
    def errors(self) -> str:
        return "".join(self._said[1])

    def next_line(self, within: float = PATIENCE) -> str:
        try:
            line = self._lines.get(timeout=within)
        except Empty:
            raise AssertionError(f"{self.argv} said nothing for {within:g} s: {self.text}{self.errors}") from None
        assert line is not None, f"{self.argv} ended without another word: {self.text}{self.errors}"
        return line

    def rest(self) -> str:
        """The rest of its stdout, until everybody has closed it."""
        self._readers[0].join(PATIENCE)
        return "".join(f"{line}\n" for line in iter(self._lines.get, None))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> float:
        """kill -9 and reap; returns the instant at which it was dead."""
        self.process.kill()
        self.process.wait(PATIENCE)
        return clock()

    def freeze(self) -> None:
        """SIGSTOP, and wait until every thread of it stands still."""
        self.signal(signal.SIGSTOP)
        until(lambda: all(state == "T" for state in self.states()), what="stopped")

    def states(self) -> list[str]:
        """The states of its threads: S sleeps, R runs, T is stopped."""
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                found.append((task / "stat").read_text().rpartition(")")[2].split()[0])
        return found

    def end(self, within: float = PATIENCE) -> int:
        """Wait for its own end; returns its status. Everything it wrote has arrived."""
        try:
            status = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.argv} did not end within {within:g} s: {self.text}{self.errors}") from None
        for reader in self._readers:
            reader.join(within)
        return status

    def discard(self) -> None:
        """At the end of a test, however that went."""
        self.process.kill()
        self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        if any(reader.is_alive() for reader in self._readers):
            return  # a child of it has its pipes: to close them would wait for that
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


class Child(Process):
    """One process that runs a program of this folder."""

    def __init__(self, program: str, *args: object, flags: tuple[str, ...] = (), env: dict[str, str] | None = None):
        argv = [sys.executable, "-u", *flags, str(HERE / f"{program}.py"), *map(str, args)]
        super().__init__(argv, guard.root(), {**os.environ, "PYTHONPATH": str(HERE.parent), **(env or {})})

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def next(self, within: float = PATIENCE) -> list[str]:
        """The next line, in words."""
        return self.next_line(within).split()

    def hear(self, word: str, within: float = PATIENCE) -> list[str]:
        """The values of the next line, which must begin with `word`."""
        first, *rest = line = self.next(within)
        assert first == word, f"pid {self.pid} said {line} instead of {word}; stderr: {self.errors}"
        return rest

    def ask(self, *words: object, hear: str, within: float = PATIENCE) -> list[str]:
        self.tell(*words)
        return self.hear(hear, within)

    def silent(self) -> bool:
        return self._lines.empty()

    def tries(self, name: str) -> list[str]:
        """One try, in words: took ..., busy ..., failed ..."""
        self.tell("take", name, 0)
        return self.next()

    def take(self, name: str, timeout: object = PATIENCE) -> int:
        """The token: it must get the lock."""
        return int(self.ask("take", name, timeout, hear="took")[0])


class Crew:
    """All processes of one test, around one store: a SQLite file, or what the URL says."""

    def __init__(self, directory: Path, url: str = "", *, lease: float = STEADY, lasting: float = LASTING) -> None:
        self.path = directory / "locks.db"
        self.url = url or f"sqlite:///{self.path}"
        self.lease = lease
        """The default lease of the workers."""
        self.lasting = lasting
        """A short lease."""
        self.children: list[Child] = []

    @cached_property
    def client(self) -> dibs.Client:
        """An observer in the process of the test."""
        return dibs.connect(self.url, lease=STEADY)

    def in_queue(self, name: str, holders: int, waiters: int) -> None:
        """Wait for this queue."""

        def found() -> bool:
            info = self.client.inspect(name)
            return (len(info.holders), len(info.waiters)) == (holders, waiters)

        until(found, what=f"{holders} holders and {waiters} waiters of {name!r}")

    def start(self, program: str, *args: object, **options: Any) -> Child:
        child = Child(program, *args, **options)
        self.children.append(child)
        return child

    def workers(self, *leases: float | None, **options: Any) -> list[Child]:
        """Processes that do what they are told, one thing after the other; None is the default lease."""
        started = [self.start("worker", self.url, lease or self.lease, **options) for lease in leases]
        for child in started:
            child.hear("ready")
        return started

    def worker(self, lease: float | None = None, **options: Any) -> Child:
        return self.workers(lease, **options)[0]

    def disband(self) -> None:
        for child in self.children:
            child.discard()
        if "client" in self.__dict__:
            self.client.close()
