"""The terminal that `dibs run` lends to its command, and keyboard signals for a job of two processes."""

from __future__ import annotations

import os
import signal
import stat
import time
from contextlib import suppress
from typing import Any

from dibs.cli.system import exists

_STOPS_WITHIN = 0.05


class Terminal:
    """The controlling terminal: lent to the command while we are in the foreground, and taken back.

    With a pipe on stdin or stdout it is lent only when the command asks for it (and is stopped for that): the keyboard
    may belong to another process of our job, as in `dibs run x -- journalctl | less`.
    """

    def __init__(self) -> None:
        self._group = 0
        """The process group that has it; 0: none."""
        self._wanted = not (_is_pipe(0) or _is_pipe(1))
        self._modes: list[Any] | None = None
        try:
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    @property
    def there(self) -> bool:
        return self._file >= 0

    def lend(self, group: int, *, asked: bool = False) -> bool:
        """Put the group into the foreground. False: we are in the background ourselves."""
        self._wanted = self._wanted or asked
        with suppress(OSError):
            if self.there and self._wanted and os.tcgetpgrp(self._file) == os.getpgrp():
                self._modes = self._modes or _modes(self._file)
                self._give(group)
                self._group = group
        return self.lent

    @property
    def lent(self) -> bool:
        """Whether the command has the terminal. We ask the terminal: a shell or the command may have changed it."""
        with suppress(OSError):
            if self._group and self.there:
                front = os.tcgetpgrp(self._file)
                return front == self._group or (front != os.getpgrp() and not exists(-front))
        return False

    def take_back(self, *, restore: bool = False) -> None:
        """Take the terminal back. `restore`: also restore its modes. A killed command could not, and the shell does
        so only if we are killed ourselves."""
        if self.lent:
            with suppress(OSError):
                self._give(os.getpgrp())
                if restore and self._modes is not None:
                    _set_modes(self._file, self._modes)
        self._group = 0

    def close(self) -> None:
        self.take_back()
        if self.there:
            os.close(self._file)

    def _give(self, group: int) -> None:
        """Set the foreground group, with SIGTTOU blocked: it would stop us if we are in the background."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            os.tcsetpgrp(self._file, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def suspend() -> None:
    """Stop our own job, as Ctrl-Z would; returns when it is continued. The kernel does not stop an orphaned
    group, which nobody could continue; then no SIGCONT comes."""
    before = signal.getsignal(signal.SIGTSTP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.killpg(os.getpgrp(), signal.SIGTSTP)
    time.sleep(_STOPS_WITHIN)  # another thread may get the signal first: do not run on until all are stopped
    signal.signal(signal.SIGTSTP, before)


def end_by_interrupt(everybody: bool) -> None:
    """End by SIGINT: a shell ends its loop only if SIGINT ended us, and its script only if it gets one itself.
    `everybody`: signal our whole job, because Ctrl-C went to the command alone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(0 if everybody else os.getpid(), signal.SIGINT)


def _is_pipe(file: int) -> bool:
    try:
        mode = os.fstat(file).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)  # some shells join commands by sockets


def _modes(file: int) -> list[Any] | None:
    import termios  # noqa: PLC0415  (needed at a terminal only)

    try:
        return termios.tcgetattr(file)
    except termios.error:  # the terminal hung up
        return None


def _set_modes(file: int, modes: list[Any]) -> None:
    import termios  # noqa: PLC0415

    with suppress(termios.error):
        termios.tcsetattr(file, termios.TCSANOW, modes)
