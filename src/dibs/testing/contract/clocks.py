"""The clocks that the suite runs by: one text for stores that live by real time and for memory, where no test waits.

A test says that time passes (`passed`), or waits for something that time may bring (`eventually`, an actor's answer).
On the real clock that is waiting. In a memory store it is the clock of the test kit, stopped: it moves on only while
the test waits and nobody is at work, and no further than to the end of somebody's wait. So a machine that stands still
costs nobody a lease there.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import cast

from dibs.core.runtime import Runtime
from dibs.runtime.threads import ThreadRuntime
from dibs.testing.contract.stores import Subject
from dibs.testing.kit import Kit
from dibs.testing.stage import Clock, Stage

PATIENCE = 60.0
"""How long a condition may take to come true, in real seconds. It is an end, not a measurement."""
_POLL = 0.005
_NAP = 0.002
"""How soon a thread or task notices that a stopped clock was moved."""
_INSTANT = 1e-7
_FIRST_STRIDE = 0.05
_LONGEST_STRIDE = 1.0
_LONGEST_WAIT = 600.0
"""How long a condition may take on the stopped clock: nobody was at work all that time."""


class RealClock:
    """For stores that live by real time: nothing but waiting makes it pass."""

    poll = PATIENCE
    """How long somebody may be waited for before the next `tick`."""
    longest_tick = 0.05
    """What a tick may count for: one that takes longer is a machine that stood still."""
    earshot = 30.0
    """How long a message may be on its way."""
    silence = 0.05
    """How long one listens before one says that nothing was said."""

    def now(self) -> float:
        return time.monotonic()

    async def tick(self, left: float = float("inf")) -> None:
        """Wait a moment."""
        await asyncio.sleep(_POLL)

    def advance(self, seconds: float) -> None:
        """Let time pass, for this thread and its event loop alike."""
        time.sleep(seconds)

    def wait_a_moment(self) -> None:
        """As `tick`, for a test without an event loop."""
        time.sleep(_POLL)

    def runtime(self) -> Runtime:
        """For a seat."""
        return ThreadRuntime()

    def patience(self, within: float) -> Callable[[], bool]:
        """Says whether a condition has taken too long by now."""
        end = time.monotonic() + within
        return lambda: time.monotonic() > end


class _KitClock(Clock):
    """Knows which thread has seen its last move. As on a real clock no two readings are the same: sums of floats that
    ought to be equal need not be."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.moves = 0
        self._readings = count(1)
        self._seen: dict[int, int] = {}

    def now(self) -> float:
        self._seen[threading.get_ident()] = self.moves
        return super().now() + next(self._readings) * _INSTANT

    def was_seen_by(self, thread: threading.Thread) -> bool:
        return self._seen.get(thread.ident or 0) == self.moves


class StoppedClock:
    """The clock of a kit, for a memory store."""

    poll = _NAP
    longest_tick = _LONGEST_WAIT
    earshot = silence = 0.0

    def __init__(self, stage: Stage, clock: _KitClock) -> None:
        self._stage = stage
        self._clock = clock
        self._stride = _FIRST_STRIDE
        self.is_anybody_at_work: Callable[[], bool] = lambda: False
        self.now = clock.now
        clock.stop()

    async def tick(self, left: float = float("inf")) -> None:
        """Let the others get on; once all of them wait, time passes, at most until the first wait is over."""
        before = self._clock.moves
        await asyncio.sleep(1.5 * _NAP)  # behind every nap in this loop that began before
        if self._clock.moves == before and self._all_wait():
            self._move_on(left)

    def wait_a_moment(self) -> None:
        time.sleep(_NAP)
        if threading.current_thread() is threading.main_thread() and self._all_wait():
            self._move_on()

    def runtime(self) -> Runtime:
        return self._stage.runtime(ThreadRuntime())

    def advance(self, seconds: float) -> None:
        self._clock.moves += 1
        self._clock.advance(seconds)

    def patience(self, within: float) -> Callable[[], bool]:
        self._stride = _FIRST_STRIDE
        end, real_end = self.now() + _LONGEST_WAIT, time.monotonic() + within
        return lambda: self.now() > end or time.monotonic() > real_end

    def go_on(self) -> None:
        """At the end of a test, when nobody moves it any more: it runs with the real clock."""
        self._clock.go_on()

    def waits(self, taker: object) -> bool:
        """That thread or task waits for a signal, or for the end of its time."""
        return taker in self._stage.waits

    def _move_on(self, left: float = float("inf")) -> None:
        now = self.now()
        ends = [end - now for end in list(self._stage.waits.values()) if end > now]
        self.advance(min(left, self._stride, *ends))
        self._stride = min(2 * self._stride, _LONGEST_STRIDE)

    def _all_wait(self) -> bool:
        threads = [taker for taker in list(self._stage.waits) if isinstance(taker, threading.Thread)]
        return all(map(self._clock.was_seen_by, threads)) and not self.is_anybody_at_work()


AnyClock = RealClock | StoppedClock
_current: AnyClock = RealClock()


def current() -> AnyClock:
    """The clock of the test that runs."""
    return _current


@contextmanager
def clock_of(subject: Subject) -> Iterator[AnyClock]:
    """The clock for a test of this store, until the test is over."""
    global _current  # noqa: PLW0603  (one test at a time runs in a process)
    if not subject.is_memory:
        yield _current
        return
    kit = Kit(stage := Stage(_NAP, _KitClock))
    kit.begin()
    before, _current = _current, StoppedClock(stage, cast("_KitClock", stage.clock))
    try:
        yield _current
    finally:
        _current = before
        kit.end()
