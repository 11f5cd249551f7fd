"""A terminal as a person has one: a pty that is the controlling terminal of a session, typed to and read.

Nothing here sleeps to synchronise: `see` waits for text, with an end. What is typed is not echoed, so whatever is seen
was said by a program. A shell's prompt is `<STATUS> `, of the command before it.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import termios
from contextlib import suppress
from types import TracebackType
from typing import Self

import pytest

from cli.wrapped import DIBS, WITNESS, Running, Scene
from process.children import PATIENCE, clock, until

BEGUN = r"begun (\d+) (\d+) (\d+)\r\n"
CTRL_C, CTRL_D, CTRL_Z, CTRL_BACKSLASH, ESCAPE = "\x03", "\x04", "\x1a", "\x1c", "\x1b"


class Terminal:
    """What sits at its other end is the leader of its session."""

    def __init__(self, scene: Scene, *argv: str) -> None:
        self._master, slave = os.openpty()
        self._seen = ""
        try:
            scene.environment["TERM"] = "vt100"
            # setsid(1) and not a function between fork and exec: that must not run Python code beside threads.
            self.leader: Running = scene.start(
                "setsid", "-c", *argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=False
            )
        finally:
            os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def see(self, pattern: str, within: float = PATIENCE) -> re.Match[str]:
        """Wait for text; whatever comes after it is kept for the next."""
        end = clock() + within
        while (found := re.search(pattern, self._seen)) is None:
            assert self._read(end - clock()), f"no {pattern!r} within {within:g} s or before the end: {self._seen!r}"
        self._seen = self._seen[found.end() :]
        return found

    def _read(self, patience: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(patience, 0.0))
        with suppress(OSError):  # EIO: the other end has no user any more
            if ready and (more := os.read(self._master, 65536)):
                self._seen += more.decode(errors="replace")
                return True
        return False

    @property
    def foreground(self) -> int:
        """The process group that the keyboard's signals go to."""
        return os.tcgetpgrp(self._master)

    def resize(self, lines: int, columns: int) -> None:
        termios.tcsetwinsize(self._master, (lines, columns))

    def hang_up(self) -> None:
        """As when a window is closed or a connection breaks."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


class Shell(Terminal):
    """An interactive bash, which knows `dibs`."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, *_shell(scene))
        self.enter("stty -echo; set -b; echo re''ady")
        self.see("ready\r\n")
        self.prompt()

    def enter(self, line: str) -> None:
        self.type(line + "\n")

    def prompt(self) -> int:
        """Wait until the shell asks for the next command; gives the status of the one before."""
        return int(self.see(r"<(\d+)> ")[1])

    def status(self, line: str) -> int:
        self.enter(line)
        return self.prompt()


class Tmux:
    """The same shell in tmux, which interprets what programs draw."""

    def __init__(self, scene: Scene, program: str) -> None:
        self._scene = scene
        self._words = (program, "-f", "/dev/null", "-S", str(scene.directory / "tmux"))
        self._do("new-session", "-d", "-x", "80", "-y", "24", *_shell(scene))
        self.see("<0>")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do("kill-server")
        self._scene.none_left()

    def type(self, *keys: str) -> None:
        """Words, or keys by their names."""
        self._do("send-keys", *keys)

    def see(self, pattern: str) -> None:
        until(lambda: re.search(pattern, self._screen()), what=f"{pattern!r} on the screen")

    def _screen(self) -> str:
        return self._do("capture-pane", "-p")

    def _do(self, *words: str) -> str:
        running = self._scene.start(*self._words, *words)
        said = running.rest()
        assert running.end() == 0, running.errors
        return said


def _shell(scene: Scene) -> list[str]:
    """An interactive bash that knows `dibs`, whose prompt is the last status."""
    program = scene.directory / "bin" / "dibs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(DIBS)} "$@"\n')
    program.chmod(0o755)
    scene.environment |= {"PATH": f"{program.parent}:{os.environ['PATH']}", "PS1": "<$?> ", "HISTFILE": ""}
    return ["bash", "--norc", "--noprofile", "--noediting", "-i"]


def witness(*words: str, name: str = "x", lease: float = 20) -> str:
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
    pid, group, parent = map(int, terminal.see(BEGUN).groups())
    assert pid == group
    return pid, parent
