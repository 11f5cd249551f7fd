"""The command of `dibs run`: its process and its process group.

The process is forked before the lock is asked for, while we have neither threads nor connections, and waits on a pipe
for the order to execute. An order says what the environment is to hold; a pipe that closes without one says that there
will be none. `argv` goes to `execve` as it came, without a shell; a script without a #! line is not run.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from dibs.cli.system import die_with, exists, given_environment, lives
from dibs.cli.talk import BY_SIGNAL, CANNOT_RUN, NOT_FOUND

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_SETTLE = 0.05
"""How long those whom the command leaves behind may take to end by themselves."""


class CannotRun(Exception):
    """The command cannot be executed; its status is as that of `env`."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number
        self.status = NOT_FOUND if number == errno.ENOENT else CANNOT_RUN


class Child:
    """To be made while this process has no threads."""

    def __init__(self, argv: Sequence[str]) -> None:
        order, self._order = os.pipe()
        self._answer, answer = os.pipe()
        parent = os.getpid()
        # Whoever started us with SIGCHLD ignored would keep us from hearing how the command ended.
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
        with suppress(OSError):  # both do it, whoever comes first
            os.setpgid(self.group, self.group)
        self.status: int | None = None
        """Once it has ended; 128 + n: by signal n."""
        self.killed_by = 0
        self.stopped = 0
        """The signal that stopped it, while it is."""

    def execute(self, environment: Mapping[str, str]) -> None:
        """From here on it runs, or CannotRun."""
        with suppress(BrokenPipeError):  # it was killed meanwhile: its status will tell
            os.write(self._order, json.dumps(environment).encode())
        os.close(self._order)
        self._order = -1
        answer = os.read(self._answer, 16)
        if answer:
            raise CannotRun(int(answer))

    def send(self, number: int) -> None:
        """To the whole group. A stopped process is woken, or it would not hear. Signals that ask it to end wake it in
        any case: it may have stopped without our having noticed yet."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)
            if number in _ENDING or (self.stopped and number != signal.SIGKILL):
                os.killpg(self.group, signal.SIGCONT)
        if number == signal.SIGCONT:
            self.stopped = 0

    def reap(self) -> None:
        """Whatever has ended or stopped; as process 1 also orphans that others left us."""
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
        """Whether anybody is left of its group, itself apart once it was reaped."""
        return exists(self.group) and lives(self.group) != ""

    def leaves_others(self) -> str:
        """Who of its group goes on after it, and does not just take a moment to end."""
        if self.group_lives():
            time.sleep(_SETTLE)
        return lives(self.group) if self.group_lives() else ""

    def close(self) -> None:
        """What has not begun never will; and what has not ended must not outlive us, however we came here."""
        if self._order >= 0:
            os.close(self._order)
        if self.status is None:
            self.send(signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self.group, 0)
        os.close(self._answer)


def _execute(argv: Sequence[str], parent: int, order: int, answer: int) -> NoReturn:
    """In the fork."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # what Python set for itself
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
        added = {os.fsencode(key): os.fsencode(value) for key, value in json.loads(said).items()}
        environment = {**given_environment(), **added}
        if not words[0]:  # looked for on the path it would be the first directory there
            raise FileNotFoundError(errno.ENOENT, "")
        os.execvpe(words[0], words, environment)  # noqa: S606  (without a shell: that is the point)
    except OSError as error:
        os.write(answer, str(error.errno).encode())
    except ValueError:  # what no locale can say; a NUL cannot come from a command line
        os.write(answer, b"22")
    os._exit(CANNOT_RUN)
