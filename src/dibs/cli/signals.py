"""Signals to `dibs run`: while it waits for the lock they end the wait, afterwards they are passed to the command.

A handler only notes the number (or raises, during the wait), and a pipe wakes the main thread, which does the rest.
Signals that were ignored when we started (`nohup`) stay ignored, here and in the command.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType
from typing import Self

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_NOTED = (*PASSED_ON, signal.SIGCONT)


class Signalled(BaseException):
    """A signal came while we waited for the lock."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Collects signals between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self._raises = False
        self._noted: list[int] = []
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # our parent may have blocked it
        for number in _NOTED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop raising and waking. The handlers stay installed: a signal must not end us during the cleanup."""
        self._raises = False
        signal.set_wakeup_fd(-1)
        os.close(self._reads)
        writes, self._writes = self._writes, -1
        os.close(writes)

    def interrupt(self, yes: bool) -> None:
        """Set whether a signal raises `Signalled`; one that is noted already raises at once."""
        self._raises = yes
        if yes:
            for number in self._noted:
                self._raise(number)
        elif signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            # During the wait it stops us; from now on the command gets it too.
            signal.signal(signal.SIGTSTP, self._note)

    def wake(self, _: object = None) -> None:
        """Wake the main thread; may be called from any thread."""
        with suppress(OSError):
            os.write(self._writes, b"\0")

    def wait(self, seconds: float) -> list[int]:
        """Wait until a signal or `wake`, at most that long; return the signals that came."""
        select.select([self._reads], [], [], max(seconds, 0.0))
        with suppress(BlockingIOError):
            while os.read(self._reads, 1024):
                pass
        noted, self._noted = self._noted, []
        return noted

    def came(self, number: int) -> bool:
        """Whether this signal is noted and not yet taken by `wait`."""
        return number in self._noted

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            return
        self._noted.append(number)
        self._raise(number)

    def _raise(self, number: int) -> None:
        if self._raises and number != signal.SIGCONT:
            self._raises = False  # a second one must not interrupt the cleanup
            raise Signalled(number)
