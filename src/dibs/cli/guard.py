"""A small process beside `dibs run` that outlives it by a moment: it kills the command when nobody holds the lock.

It hears from `dibs run` until when the hold is valid, and does one thing: when that instant has passed without news, or
`dibs run` is gone without a word (killed, out of memory), the command's process group is killed. So neither a wrapper
that was stopped nor one that was killed leaves a command running beside the next holder's. It is in a session of its
own and keeps nothing open but its pipe.
"""

from __future__ import annotations

import math
import os
import select
import signal
from contextlib import suppress
from struct import Struct

from dibs.cli.system import LONGEST_NAP, now, open_files, rename

_INSTANT = Struct("d")
_DEAF_TO = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class Guard:
    """As `dibs run` sees it. To be made while this process has no threads."""

    def __init__(self, group: int) -> None:
        reads, self._writes = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _stand(reads, group)
            finally:
                os._exit(0)
        os.close(reads)
        os.set_blocking(self._writes, False)

    def valid_until(self, instant: float) -> None:
        """By the clock of `now`. A guard that does not listen any more is no reason to stop."""
        with suppress(OSError):
            os.write(self._writes, _INSTANT.pack(instant))

    def close(self) -> None:
        """First of all it must not act any more, whatever somebody did to it."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._writes)


def _stand(reads: int, group: int) -> None:
    os.setsid()
    rename("lock-guard")  # `killall -9 dibs` means the one that we stand beside
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    os.dup2(reads, 0)
    for file in open_files():
        with suppress(OSError):  # the one that lists them is gone by now
            if file != 0:
                os.close(file)
    until = math.inf
    while True:
        ready, _, _ = select.select([0], [], [], min(max(until - now(), 0.0), LONGEST_NAP))
        if ready:
            said = os.read(0, 4096)
            if not said:
                break
            (until,) = _INSTANT.unpack(said[-_INSTANT.size :])
        elif now() >= until:
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
