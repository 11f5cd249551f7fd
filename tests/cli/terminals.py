"""A terminal as a person has one: a pty that is the controlling terminal of a session, typed to and read.

Nothing here sleeps to synchronise: `see` waits for text, with a timeout. Typed text is not echoed, so all text that is
seen was written by a program. The prompt of the shell is `<STATUS> ` of the command before it.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from cli.wrapped import BEGUN, DIBS, WITNESS, Scene
from process.children import PATIENCE, STEADY, clock

CTRL_C, CTRL_Z, ESCAPE = "\x03", "\x1a", "\x1b"


class Terminal:
    """The process at its other end leads the session: Ctrl-C typed here is a SIGINT to it."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], cwd: Path) -> None:
        self._master, slave = os.openpty()
        self.modes = termios.tcgetattr(slave)
        self._seen, self._unread = b"", ""
        try:
            # setsid(1) and not a function between fork and exec: that must not run Python code beside threads.
            streams = {"stdin": slave, "stdout": slave, "stderr": slave}
            self.process = subprocess.Popen(["setsid", "-c", *argv], env=env, cwd=cwd, **streams)
        finally:
            os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    @property
    def text(self) -> str:
        """Everything that was written so far."""
        while self._read(0):
            continue
        return self._seen.decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def hear(self, words: str) -> None:
        """Wait until the whole text has these words."""
        end = clock() + PATIENCE
        while words not in self.text:
            assert self._read(end - clock()), self.text

    def see(self, pattern: str) -> re.Match[str]:
        """Wait for text; keep the text after it for the next call."""
        end = clock() + PATIENCE
        while (found := re.search(pattern, self._unread)) is None:
            assert self._read(end - clock()), f"no {pattern!r} in time or before the end: {self._unread!r}"
        self._unread = self._unread[found.end() :]
        return found

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(patience, 0.0))
        with suppress(OSError):  # EIO: the other end has no user any more
            if ready and (more := os.read(self._master, 65536)):
                self._seen += more
                self._unread += more.decode(errors="replace")
                return True
        return False

    @property
    def foreground(self) -> int:
        """The process group that the keyboard's signals go to."""
        return os.tcgetpgrp(self._master)

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self._master, (lines, columns))

    def end(self) -> int:
        """Its status, 128 + n as a shell sees it."""
        while self._read(PATIENCE):
            continue
        status = self.process.wait(PATIENCE)
        return status if status >= 0 else 128 - status

    def hang_up(self) -> None:
        """As when a window is closed or a connection breaks."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def discard(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self.hang_up()


class Shell(Terminal):
    """An interactive bash, which knows `dibs`."""

    def __init__(self, scene: Scene) -> None:
        program = scene.directory / "bin" / "dibs"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.join(DIBS)} "$@"\n')
        program.chmod(0o755)
        own = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PS1": "<$?> ", "HISTFILE": "", "TERM": "vt100"}
        argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        super().__init__(argv, {**scene.environment, **own}, scene.directory)
        self.enter("stty -echo; set -b; echo re''ady")
        self.see("ready\r\n")
        self.prompt()

    def enter(self, line: str) -> None:
        self.type(line + "\n")

    def prompt(self) -> int:
        """Wait until the shell asks for the next command; gives the status of the one before."""
        return int(self.see(r"<(\d+)> ")[1])

    def stopped(self) -> int:
        """Wait until the shell reports a stopped job; gives the status of that."""
        self.see("Stopped")
        return self.prompt()

    def suspend(self) -> int:
        """Stop the job in the foreground by its key."""
        self.type(CTRL_Z)
        return self.stopped()

    def works(self) -> None:
        """The shell has its terminal, and executes typed commands."""
        assert self.foreground == self.process.pid
        self.enter("echo it wo''rks")
        self.see("it works\r\n")

    def status(self, line: str) -> int:
        self.enter(line)
        return self.prompt()


def witness(*words: str, name: str = "x", lease: float = STEADY) -> str:
    """A line to type."""
    return f"dibs run {name} --lease {lease} -- {shlex.join((*WITNESS, *words))}"


def installed(*programs: str) -> str:
    for program in programs:
        if found := shutil.which(program):
            return found
    if os.environ.get("DIBS_REQUIRE_SERVERS") == "1":
        pytest.fail(f"none of {programs} is here")
    pytest.skip(f"none of {programs} is here")


def begun(terminal: Terminal) -> tuple[int, int]:
    """The command's pid and its parent's, once it has the terminal."""
    pid, group, parent = map(int, terminal.see(rf"{BEGUN}\r\n").groups())
    assert pid == group
    return pid, parent
