"""Signals that `dibs run` gets: before it holds the lock they end the waiting, from then on they are the command's.

A handler only notes the number (or raises, while waiting: dibs can be interrupted anywhere), and a pipe wakes the main
thread, which does the rest between two looks at the hold. What was ignored when we were started (`nohup`) stays so,
here and in the command.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Self

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_NOTED = (*PASSED_ON, signal.SIGCONT)


class Signalled(BaseException):
    """A signal came while we waited for the lock."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """From entering to leaving, all of them come here."""

    def __init__(self) -> None:
        self._raises = False
        self._noted: list[int] = []
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._reads, False)
        os.set_blocking(self._writes, False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])  # whoever blocked it for us: we must hear of it
        for number in _NOTED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Handlers stay: whatever comes now is too late to matter, and must not end us amidst cleaning up."""
        self._raises = False
        signal.set_wakeup_fd(-1)
        os.close(self._reads)
        writes, self._writes = self._writes, -1
        os.close(writes)

    def interrupt(self, yes: bool) -> None:
        """Whether a signal raises `Signalled` where we are; one that is noted already does so at once."""
        self._raises = yes
        if yes:
            for number in self._noted:
                self._raise(number)
        elif signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            signal.signal(signal.SIGTSTP, self._note)  # while we wait it stops us, from now on it is the command's too

    def ring(self, _: object = None) -> None:
        """From any thread: there is something to look at."""
        with suppress(OSError):
            os.write(self._writes, b"\0")

    def wait(self, seconds: float) -> list[int]:
        """What has come, at the latest after so many seconds."""
        select.select([self._reads], [], [], max(seconds, 0.0))
        with suppress(BlockingIOError):
            while os.read(self._reads, 1024):
                pass
        noted, self._noted = self._noted, []
        return noted

    def came(self, number: int) -> bool:
        """Whether it is among those that wait to be taken."""
        return number in self._noted

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            return
        self._noted.append(number)
        self._raise(number)

    def _raise(self, number: int) -> None:
        if self._raises and number != signal.SIGCONT:
            self._raises = False  # once is enough: what comes next must not fall into the cleaning up
            raise Signalled(number)
