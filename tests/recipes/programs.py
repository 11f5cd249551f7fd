"""The programs of examples/, each in a process of its own, all around one embedded store.

Nothing here sleeps to synchronise: `Program.hear` waits for a line, `until` polls a condition, both with a timeout.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import dibs
from process.children import Process, until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
Connect = Callable[[], sqlite3.Connection]
"""The fixture `shop`: opens a connection to the application's own database."""


class Program(Process):
    """One process, in a process group of its own, heard by the lines on its stdout and stderr."""

    def hear(self, pattern: str) -> re.Match[str]:
        """The next line in which `pattern` is found; those before it are passed over."""
        while (found := re.search(pattern, self.next_line())) is None:
            continue
        return found

    def tell(self, text: str, *, last: bool = True) -> None:
        self.process.stdin.write(text)
        self.process.stdin.flush()
        if last:
            self.process.stdin.close()

    def has_open(self, path: Path) -> bool:
        with suppress(FileNotFoundError):  # closed while we look
            return any(link.readlink() == path for link in Path(f"/proc/{self.pid}/fd").iterdir())
        return False

    def discard(self) -> None:
        """Kill it and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        super().discard()


class Stage:
    """The programs of one test, in one directory, and a client that looks at their locks."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory / 'locks.db'}"
        self.client = dibs.connect(self.url, retry=10)
        self._programs: list[Program] = []

    def start(self, *argv: object, **env: str) -> Program:
        """A program of Python: a file of examples/, or `-m` and a module."""
        inherited = {name: value for name, value in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
        # A program that is killed leaves its temporary files: they go with the directory of the test.
        own = {"DIBS_URL": self.url, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(self.directory)}
        words = [str(word) for word in argv]
        if words[0].endswith(".py"):
            # A file left open, or a call that will not be there for long, ends up on stderr or ends the program.
            words = ["-W", "error", str(EXAMPLES / words[0]), *words[1:]]
        streams = {"stderr": subprocess.STDOUT, "start_new_session": True}
        program = Program([sys.executable, "-u", *words], self.directory, {**inherited, **own, **env}, **streams)
        self._programs.append(program)
        return program

    def run(self, *argv: object, **env: str) -> str:
        """The output of a program that must end with 0."""
        program = self.start(*argv, **env)
        assert program.end() == 0, program.text
        return program.text

    def holders(self, name: str) -> list[int]:
        """The pids of its holders."""
        return [holder.pid for holder in self.client.inspect(name).holders]

    def taken(self, name: str, by: Program) -> None:
        """Wait until that program holds it."""
        until(lambda: self.holders(name) == [by.pid], what=f"{name} held by {by.argv}")

    def waiting(self, name: str, number: int) -> None:
        until(lambda: len(self.client.inspect(name).waiters) == number, what=f"{number} waiting for {name}")

    def free(self, name: str) -> None:
        """Wait until it is free, and not because a lease of 30 s ended."""
        until(lambda: not self.holders(name), 25, what=f"{name} free")

    def disband(self) -> None:
        for program in self._programs:
            program.discard()
        self.client.close()
