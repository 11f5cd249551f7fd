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
FOREVER = float("inf")
_POLL = 0.005
_NAP = 0.005
"""How soon a thread or task notices that a stopped clock was moved."""
_INSTANT = 1e-7
_FIRST_STRIDE = 0.05
_LONGEST_STRIDE = 1.0
_LONGEST_WAIT = 120.0
"""How long a condition may take on the stopped clock: nobody was at work all that time."""


class RealClock:
    """For stores that live by real time: nothing but waiting makes it pass."""

    poll = PATIENCE
    """How long an actor may be waited for before the next step of a `Pace`."""
    longest_step = 0.05
    """What a step may count for: one that takes longer is a machine that stood still."""
    earshot = 20.0
    """How long a message may be on its way."""
    silence = 0.05
    """How long one listens before one says that nothing was said."""

    def now(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass, for this thread and its event loop alike."""
        time.sleep(seconds)

    def runtime(self) -> Runtime:
        """For a seat."""
        return ThreadRuntime()

    def pace(self, within: float = PATIENCE) -> RealPace:
        return RealPace(within)


class RealPace:
    """How somebody waits for a condition: between two looks comes a step."""

    def __init__(self, within: float) -> None:
        self._end = time.monotonic() + within

    def is_over(self) -> bool:
        """The condition has taken too long."""
        return time.monotonic() > self._end

    async def step(self, left: float = FOREVER) -> None:
        """Wait a moment; `left`: at most for that long."""
        await asyncio.sleep(min(_POLL, left))

    def step_here(self) -> None:
        """The same without an event loop."""
        time.sleep(_POLL)


class _KitClock(Clock):
    """Knows which thread has seen its last move. As on a real clock no two readings are the same: sums of floats that
    ought to be equal need not be."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.moves = 1
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
    longest_step = _LONGEST_WAIT
    earshot = silence = 0.0

    def __init__(self, stage: Stage, clock: _KitClock) -> None:
        self._stage = stage
        self._clock = clock
        self.is_anybody_at_work: Callable[[], bool] = lambda: False
        self.now = clock.now
        clock.stop()

    def advance(self, seconds: float) -> None:
        self._clock.moves += 1
        self._clock.advance(seconds)

    def runtime(self) -> Runtime:
        return self._stage.runtime(ThreadRuntime())

    def pace(self, within: float = PATIENCE) -> StoppedPace:
        return StoppedPace(self, within)

    def go_on(self) -> None:
        """At the end of a test, when nobody moves it any more: it runs with the real clock."""
        self._clock.go_on()

    def waits(self, caller: object) -> bool:
        """That thread or task waits for a signal, or for the end of its time."""
        return caller in self._stage.waits

    def moves(self) -> int:
        """How often it was moved, if all have seen the last move and wait; else 0."""
        threads = [caller for caller in list(self._stage.waits) if isinstance(caller, threading.Thread)]
        if self.is_anybody_at_work() or not all(map(self._clock.was_seen_by, threads)):
            return 0
        return self._clock.moves

    def move(self, most: float) -> None:
        """At most to the end of the first wait."""
        now = self.now()
        ends = [end - now for end in list(self._stage.waits.values()) if end > now]
        self.advance(min(most, *ends) if ends else most)


class StoppedPace:
    """Steps of two kinds: the others get on; then, if all of them wait and the condition is not true yet, time does."""

    def __init__(self, clock: StoppedClock, within: float) -> None:
        self._clock = clock
        self._end, self._real_end = clock.now() + _LONGEST_WAIT, time.monotonic() + within
        self._stride = _FIRST_STRIDE
        self._settled = 0
        """How often the clock had been moved when all waited."""

    def is_over(self) -> bool:
        return self._clock.now() > self._end or time.monotonic() > self._real_end

    async def step(self, left: float = FOREVER) -> None:
        if not self._moved(left):
            before = self._clock.moves()
            await asyncio.sleep(1.5 * _NAP)  # behind every nap in this loop that began before
            self._settle(before)

    def step_here(self) -> None:
        if not self._moved():
            before = self._clock.moves()
            time.sleep(_NAP)
            if threading.current_thread() is threading.main_thread():
                self._settle(before)

    def _settle(self, before: int) -> None:
        now = self._clock.moves()
        self._settled = now if now == before else 0

    def _moved(self, left: float = FOREVER) -> bool:
        settled, self._settled = self._settled, 0
        if not settled or settled != self._clock.moves():
            return False
        self._clock.move(min(left, self._stride))
        self._stride = min(2 * self._stride, _LONGEST_STRIDE)
        return True


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
