"""Supervise the command and the hold that it runs under, until the command has ended.

| event                                                    | the command's process group gets                          |
|----------------------------------------------------------|-----------------------------------------------------------|
| a signal to us                                           | the same signal                                           |
| a quarter of the lease (renewal failed) or max-hold left | TERM, then KILL at the deadline                           |
| the lock was taken away (`dibs break`)                   | TERM at once, KILL after min(5 s, a quarter of the lease) |
| the deadline passed while we were stopped                | KILL at once                                              |
| Ctrl-Z stops the command                                 | we stop too; `fg` and `bg` continue both                  |
| Ctrl-Z reaches us: the command has no terminal           | SIGTSTP, then we stop                                     |

A suspended job does not renew: if its lease is over when it is continued, the command is killed.
"""

from __future__ import annotations

import math
import os
import signal

import dibs
from dibs.cli.child import Child, Guard
from dibs.cli.signals import Signals
from dibs.cli.system import LONGEST_NAP, now
from dibs.cli.terminal import Terminal, suspend

BROKEN, MAX_HOLD, UNREACHABLE, STANDSTILL = "broken", "max_hold", "unreachable", "standstill"
"""As in `LockLost.reason`."""
_LONGEST_GRACE = 5.0
_FULL = 0.9
"""The part of a lease that a hold has left at best: the rest is the safety margin."""
_START_TOLERANCE = 0.1
"""Seconds by which the hold may have begun before we learned of it."""
_POLL_INTERVAL = 0.02
"""Seconds between checks whether processes left by the command are gone."""
_BY_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Supervision:
    def __init__(
        self, child: Child, guard: Guard, terminal: Terminal, signals: Signals, lease: float, max_hold: float | None
    ) -> None:
        self.child = child
        self.terminal = terminal
        self.signals = signals
        self.cause = ""
        """Why we end the command, one of the words above; empty: we do not."""
        self.interrupted = False
        """We got SIGINT; Ctrl-C may also go to the command alone."""
        self.by_ctrl_c = False
        """SIGINT ended the command while it had the terminal."""
        self._guard = guard
        self._lease = lease
        self._max_hold = math.inf if max_hold is None else max_hold
        self._quarter = min(lease, self._max_hold) / 4
        self._began = 0.0
        self._most = 0.0
        """The longest remaining time seen."""
        self._until = 0.0
        self._kill_at: float | None = None
        self._killed = False
        self._hung_up = False

    def begin(self, hold: dibs.Hold) -> None:
        """Call it before the command starts: the guard then knows the deadline. LockLost: do not start the command."""
        self.child.send(signal.SIGCONT)  # it may have been stopped while it waited for its order
        hold.check()
        self._began = now()
        self._until = self._began + hold.remaining
        self._guard.valid_until(self._until)

    def watch(self, hold: dibs.Hold) -> None:
        while not self._over():
            pause = self._check(hold)
            for number in self.signals.wait(pause if self.child.status is None else min(pause, _POLL_INTERVAL)):
                self._pass_on(number)
            self.child.reap()
            if self.child.stopped:
                self._follow_stop(hold)
        self.by_ctrl_c = self.child.killed_by == signal.SIGINT and self.terminal.lent
        self.terminal.take_back(restore=bool(self.child.killed_by))
        if not self.cause and self.child.killed_by == signal.SIGKILL and hold.lost.is_set() and now() >= self._until:
            self.cause = STANDSTILL  # the guard killed it

    def _over(self) -> bool:
        """Whether the command has ended and, if the lock is lost, its whole group."""
        if self.child.status is None:
            return False
        return not self.cause or self._killed or not self.child.group_lives()

    def _grace(self, left: float) -> float:
        """The remaining time at which the command must end. A new hold may have less left than its lease (it waited in
        the queue, or the server grants shorter sessions): that is no failed renewal."""
        self._most = max(self._most, left)
        return min(self._quarter, self._most / _FULL / 4)

    def _check(self, hold: dibs.Hold) -> float:
        """Act on the state of the hold; return the seconds until the next check."""
        at, left = now(), hold.remaining
        kill_at = self._kill_at
        if kill_at is None:
            if hold.lost.is_set():
                if at < self._until:
                    kill_at = self._terminate(BROKEN, at + min(_LONGEST_GRACE, self._lease / 4))
                else:
                    kill_at = self._terminate(self._ends_by(at, STANDSTILL), at)
            else:
                self._until = at + left
                self._guard.valid_until(self._until)
                grace = self._grace(left)
                if left > grace:
                    return min(left - grace, self._lease / 6, LONGEST_NAP)
                kill_at = self._terminate(self._ends_by(self._until, UNREACHABLE), self._until)
        if at < kill_at:
            return min(kill_at - at, LONGEST_NAP)
        self._killed = True
        self.child.send(signal.SIGKILL)
        return LONGEST_NAP

    def _ends_by(self, end: float, otherwise: str) -> str:
        """MAX_HOLD if this deadline is the one set by max_hold."""
        return MAX_HOLD if end >= self._began + self._max_hold - _START_TOLERANCE else otherwise

    def _terminate(self, cause: str, kill_at: float) -> float:
        """Send TERM, and note when to send KILL. Past its deadline it gets no TERM: it could still act on it."""
        self.cause = cause
        self._kill_at = kill_at
        if now() < kill_at:
            self.child.send(signal.SIGTERM)
        return kill_at

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTSTP and self.child.stopped:
            return
        self.interrupted = self.interrupted or number == signal.SIGINT
        if number == signal.SIGCONT:  # we were continued, or put into the foreground
            self.terminal.lend(self.child.group)
        self.child.send(number)

    def _follow_stop(self, hold: dibs.Hold) -> None:
        """Stop with the command if the terminal stopped it. After a SIGSTOP from elsewhere we keep renewing; but if the
        command has the terminal, and a shell waits for us, it may have stopped itself (`suspend`)."""
        by_itself = self.child.stopped == signal.SIGSTOP and self.terminal.lent and os.getpgrp() == os.getpid()
        if not (self.terminal.there and (by_itself or self.child.stopped in (signal.SIGTSTP, *_BY_TERMINAL))):
            return
        if self.child.stopped in _BY_TERMINAL and self.terminal.lend(self.child.group, asked=True):
            self.child.send(signal.SIGCONT)
            return
        self.terminal.take_back()
        suspend()
        self._check(hold)  # before it continues: the lease may be over
        if self.child.stopped in _BY_TERMINAL and not self.signals.came(signal.SIGCONT):
            # Without us the kernel would have refused the terminal with EIO; it will never get it.
            self.child.send(signal.SIGKILL if self._hung_up else signal.SIGHUP)
            self._hung_up = True
        self._pass_on(signal.SIGCONT)
