"""The terminal that `dibs run` lends its command, and what the keyboard's signals mean for a job of two processes."""

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
    """The controlling terminal: lent to the command while we are its foreground, and taken back.

    Beside a pipe it is lent once the command asks for it (and is stopped for that): the keyboard may be meant for
    another one of our job, as in `dibs run x -- journalctl | less`.
    """

    def __init__(self) -> None:
        self._group = 0
        """To whom it was lent."""
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
        """True: the group is in the foreground. Not if we are in the background ourselves."""
        self._wanted = self._wanted or asked
        with suppress(OSError):
            if self.there and self._wanted and os.tcgetpgrp(self._file) == os.getpgrp():
                self._modes = self._modes or _modes(self._file)
                self._give(group)
                self._group = group
        return self.lent

    @property
    def lent(self) -> bool:
        """Asked of the terminal itself: a shell may have taken it meanwhile, and a command may have passed it on."""
        with suppress(OSError):
            if self._group and self.there:
                front = os.tcgetpgrp(self._file)
                return front == self._group or (front != os.getpgrp() and not exists(front))
        return False

    def take_back(self, *, restore: bool = False) -> None:
        """`restore`: with the modes that it was lent with. A command that was killed could not tidy up, and a shell
        that sees us end in peace does not."""
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
        """Whoever is in the background would be stopped for this."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            os.tcsetpgrp(self._file, group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def suspend() -> None:
    """Stop our own job, as the terminal would have; returns when it was continued. Where nobody could continue it (its
    group is orphaned) the kernel lets it run on, and no SIGCONT comes."""
    before = signal.getsignal(signal.SIGTSTP)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.killpg(os.getpgrp(), signal.SIGTSTP)
    time.sleep(_STOPS_WITHIN)  # another thread may be the one that is hit: we must not run on until all stand
    signal.signal(signal.SIGTSTP, before)


def end_by_interrupt(everybody: bool) -> None:
    """A shell ends its loop only if it sees that SIGINT was what ended us, and its script only if it gets one itself;
    $? is the same. `everybody`: so our whole job gets it, where Ctrl-C went to the command alone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(0 if everybody else os.getpid(), signal.SIGINT)


def _is_pipe(file: int) -> bool:
    try:
        mode = os.fstat(file).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)  # some shells join commands by sockets


def _modes(file: int) -> list[Any] | None:
    import termios  # noqa: PLC0415  (of use at a terminal only)

    try:
        return termios.tcgetattr(file)
    except termios.error:  # it hangs up
        return None


def _set_modes(file: int, modes: list[Any]) -> None:
    import termios  # noqa: PLC0415

    with suppress(termios.error):
        termios.tcsetattr(file, termios.TCSANOW, modes)
