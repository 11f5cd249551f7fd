"""The command of `dibs run`: its process, its process group, and the terminal that it is lent.

The process is forked before the lock is asked for, while we have neither threads nor connections, and waits on a pipe
for the order to execute. An order says what the environment is to hold; a pipe that closes without one says that there
will be none. `argv` goes to `execve` as it came, without a shell; a script without a #! line is not run.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from dibs.cli.system import die_with, lives
from dibs.cli.talk import BY_SIGNAL, CANNOT_RUN, NOT_FOUND

_SETTLE = 0.05
"""How long those whom the command leaves behind may take to end by themselves."""

_STOPS_WITHIN = 0.05


class CannotRun(Exception):
    """The command cannot be executed; its status is as that of `env`."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.status = NOT_FOUND if FileNotFoundError is type(OSError(number, "")) else CANNOT_RUN


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
        """To the whole group; what is stopped is woken, or it would not hear."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)
            if self.stopped and number != signal.SIGKILL:
                os.killpg(self.group, signal.SIGCONT)
        if number == signal.SIGCONT:
            self.stopped = 0

    def reap(self) -> None:
        """Whatever has ended or stopped; as process 1 also orphans that others left us."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    return
                if pid == self.group:
                    self._note(status)

    def _note(self, status: int) -> None:
        if os.WIFSTOPPED(status):
            self.stopped = os.WSTOPSIG(status)
            return
        self.stopped = 0
        self.killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.status = BY_SIGNAL + self.killed_by if self.killed_by else os.WEXITSTATUS(status)

    def group_lives(self) -> bool:
        """Whether anybody is left of its group, itself apart once it was reaped."""
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return lives(self.group)

    def leaves_others(self) -> bool:
        """Whether processes of its group go on after it, and do not just take a moment to end."""
        if self.group_lives():
            time.sleep(_SETTLE)
        return self.group_lives()

    def close(self) -> None:
        """No order any more: one that has not begun ends."""
        if self._order >= 0:
            os.close(self._order)
            self.send(signal.SIGKILL)  # by itself it would not, if somebody stopped it
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
        environment = {**os.environb, **added}
        if not words[0]:  # looked for on the path it would be the first directory there
            raise FileNotFoundError(errno.ENOENT, "")
        os.execvpe(words[0], words, environment)  # noqa: S606  (without a shell: that is the point)
    except OSError as error:
        os.write(answer, str(error.errno).encode())
    except ValueError:  # what no locale can say; a NUL cannot come from a command line
        os.write(answer, b"22")
    os._exit(CANNOT_RUN)


class Terminal:
    """The controlling terminal: lent to the command while we are its foreground, and taken back.

    Beside a pipe it is lent once the command asks for it (and is stopped for that): the keyboard may be meant for
    another one of our job, as in `dibs run x -- journalctl | less`.
    """

    def __init__(self) -> None:
        self.lent = False
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
            if self.there and self._wanted and not self.lent and os.tcgetpgrp(self._file) == os.getpgrp():
                self._modes = self._modes or _modes(self._file)
                self._give(group)
                self.lent = True
        return self.lent

    def take_back(self, *, restore: bool = False) -> None:
        """`restore`: with the modes that it was lent with. A command that was killed could not tidy up, and a shell
        that sees us end in peace does not."""
        with suppress(OSError):
            if self.lent:
                self.lent = False
                self._give(os.getpgrp())
                if restore and self._modes is not None:
                    _set_modes(self._file, self._modes)

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
    """Stop our own job, as the terminal would have; returns when it is continued. Where nobody could continue it (its
    group is orphaned) the kernel lets it run on."""
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
