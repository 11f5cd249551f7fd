"""The two processes that `dibs run` forks: the command with its process group, and the guard of that group.

Both are forked before we ask for the lock, while we have neither threads nor connections. The command's process waits
on a pipe for the order to execute: the variables to add to its environment. If the pipe closes without an order, the
process ends. `argv` goes to `execve` unchanged, without a shell; a script without a #! line is not run.

The guard kills the group with SIGKILL when the hold's deadline passes without news from us, or when our end of its pipe
closes: `dibs run` may be killed or stopped at any time.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import NoReturn

from dibs.cli.output import BY_SIGNAL, CANNOT_RUN, NOT_FOUND
from dibs.cli.system import LONGEST_NAP, die_with, exists, given_environment, lives, now, open_files, rename

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_EXIT_GRACE = 0.05
"""Seconds that processes left by the command may take to end."""


class CannotRun(Exception):
    """The command cannot be executed; the status is the one that `env` gives."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number
        self.status = NOT_FOUND if number == errno.ENOENT else CANNOT_RUN


class Child:
    """The process of the command, and its process group. Create it while this process has no threads."""

    def __init__(self, argv: Sequence[str]) -> None:
        order, self._order = os.pipe()
        self._answer, answer = os.pipe()
        parent = os.getpid()
        # With SIGCHLD ignored, as our parent may have set it, we could not learn how the command ended.
        on_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.group = os.fork()
        if self.group == 0:
            try:
                os.close(self._order)
                signal.signal(signal.SIGCHLD, on_child if on_child is signal.SIG_IGN else signal.SIG_DFL)
                _execute(argv, parent, order, answer)
            finally:
                os._exit(CANNOT_RUN)
        os.close(order)
        os.close(answer)
        with suppress(OSError):  # the child does it too; either may be first
            os.setpgid(self.group, self.group)
        self.status: int | None = None
        """None: it has not ended. 128 + n: ended by signal n."""
        self.killed_by = 0
        self.stopped = 0
        """The signal that stopped it; 0: it is not stopped."""

    def execute(self, environment: Mapping[str, str | None]) -> None:
        """Start the command with these variables, and without those that are None; raises CannotRun."""
        with suppress(BrokenPipeError):  # it was killed: its status says so
            os.write(self._order, json.dumps(environment).encode())
        os.close(self._order)
        self._order = -1
        answer = os.read(self._answer, 16)
        if answer:
            raise CannotRun(int(answer))

    def send(self, number: int) -> None:
        """Signal the whole group. A stopped process is continued, or it would not see the signal. Signals that ask
        it to end always continue it: it may have stopped without our knowledge."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)
            if number in _ENDING or (self.stopped and number != signal.SIGKILL):
                os.killpg(self.group, signal.SIGCONT)
        if number == signal.SIGCONT:
            self.stopped = 0

    def reap(self) -> None:
        """Note which children ended or stopped. As process 1 we also reap orphans."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    return
                if pid == self.group:
                    self._note(status)

    def _note(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self.stopped = os.WSTOPSIG(status)
            return
        self.stopped = 0
        if os.WIFCONTINUED(status):
            return
        self.killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.status = BY_SIGNAL + self.killed_by if self.killed_by else os.WEXITSTATUS(status)

    def group_lives(self) -> bool:
        """Whether any process of the group is alive."""
        return exists(-self.group) and lives(self.group) != ""

    def leaves_others(self) -> str:
        """The processes of the group that continue after the command; they get a moment to end."""
        if self.group_lives():
            time.sleep(_EXIT_GRACE)
        return lives(self.group) if self.group_lives() else ""

    def close(self) -> None:
        """Cancel an order that was not given, and kill a command that still runs."""
        if self._order >= 0:
            os.close(self._order)
        if self.status is None:
            self.send(signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.group, 0)
        os.close(self._answer)


def _execute(argv: Sequence[str], parent: int, order: int, answer: int) -> NoReturn:
    """Wait for the order and execute the command; runs in the forked process."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # undo the handlers that Python set
        if number != signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    die_with(parent)
    said = b""
    while more := os.read(order, 65536):
        said += more
    if not said:
        os._exit(0)
    try:
        words = [os.fsencode(word) for word in argv]
        given: dict[str, str | None] = json.loads(said)
        added = {os.fsencode(key): os.fsencode(value) for key, value in given.items() if value is not None}
        removed = {os.fsencode(key) for key in given} - added.keys()
        environment = {key: value for key, value in {**given_environment(), **added}.items() if key not in removed}
        if not words[0]:  # execvpe would find the first directory of PATH
            raise FileNotFoundError(errno.ENOENT, "")
        os.execvpe(words[0], words, environment)  # noqa: S606  (without a shell: that is the point)
    except OSError as error:
        os.write(answer, str(error.errno).encode())
    except ValueError:  # a text that cannot be encoded
        os.write(answer, b"22")
    os._exit(CANNOT_RUN)


_INSTANT = Struct("d")


class Guard:
    """Starts the guard and reports to it. Create it while this process has no threads."""

    def __init__(self, group: int) -> None:
        reads, self._writes = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _run_guard(reads, group)
            finally:
                os._exit(0)
        os.close(reads)
        os.set_blocking(self._writes, False)

    def valid_until(self, instant: float) -> None:
        """Report the hold's deadline, by the clock of `now`. A guard that was killed is no reason to stop."""
        with suppress(OSError):
            os.write(self._writes, _INSTANT.pack(instant))

    def close(self) -> None:
        """Kill the guard first: it must not act after this."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._writes)


def _run_guard(reads: int, group: int) -> None:
    """Runs in the guard's process, until it kills the group or is killed."""
    os.setsid()
    rename("lock-guard")  # so that `killall -9 dibs` does not kill the guard as well
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    os.dup2(reads, 0)
    for file in open_files():
        with suppress(OSError):  # the descriptor that listed them is closed already
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
