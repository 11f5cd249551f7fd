"""The clocks of the suite: the real one, and for the memory store a stopped one, so that its tests never wait.

A test lets time pass (`passed`), or waits for a condition (`eventually`, the result of an actor). On the real clock it
then waits. For the memory store it uses the stopped clock of the test kit. That clock advances only while the test and
all actors wait, and at most to the end of the first wait. So a stalled machine costs no lease there.
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
"""Real seconds after which a test gives up on a condition. It is a limit, not a measurement."""
FOREVER = float("inf")
_POLL = 0.005
_NAP = 0.005
"""Real seconds after which a thread or task notices that a stopped clock was advanced."""
_INSTANT = 1e-7
_FIRST_STRIDE = 0.05
_LONGEST_STRIDE = 1.0
_LONGEST_WAIT = 120.0
"""Seconds of the stopped clock after which a test gives up on a condition."""


class RealClock:
    """The clock for stores that use real time."""

    poll = PATIENCE
    """Seconds to wait for an actor before the next step of a pace."""
    longest_step = 0.05
    """The most seconds that one step counts for: a longer step means that the machine stalled."""
    earshot = 20.0
    """Seconds to wait for an expected message."""
    silence = 0.05
    """Seconds to wait before concluding that no message came."""

    def now(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass, blocking this thread and its event loop."""
        time.sleep(seconds)

    def runtime(self) -> Runtime:
        """A runtime on this clock, for a seat."""
        return ThreadRuntime()

    def pace(self, within: float = PATIENCE) -> RealPace:
        return RealPace(within)


class RealPace:
    """Waits for a condition: call `step` between two checks, until `is_over`."""

    def __init__(self, within: float) -> None:
        self._end = time.monotonic() + within

    def is_over(self) -> bool:
        """Whether the condition has taken too long."""
        return time.monotonic() > self._end

    async def step(self, left: float = FOREVER) -> None:
        """Wait for a moment, at most `left` seconds."""
        await asyncio.sleep(min(_POLL, left))

    def step_here(self) -> None:
        """Wait for a moment, in a thread without an event loop."""
        time.sleep(_POLL)


class _KitClock(Clock):
    """A clock that knows which threads read it since it was last advanced. No two readings are equal, as on a real
    clock: otherwise comparisons of rounded sums could differ."""

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
    """The stopped clock of a kit, for the memory store."""

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
        """Let it run with the real clock: at the end of a test, when nothing advances it any more."""
        self._clock.go_on()

    def waits(self, caller: object) -> bool:
        """Whether that thread or task waits for a signal or a timeout."""
        return caller in self._stage.waits

    def moves(self) -> int:
        """How often it was advanced; 0 if a thread or task does not wait, or has not seen the last advance."""
        threads = [caller for caller in list(self._stage.waits) if isinstance(caller, threading.Thread)]
        if self.is_anybody_at_work() or not all(map(self._clock.was_seen_by, threads)):
            return 0
        return self._clock.moves

    def move(self, most: float) -> None:
        """Advance it by `most` seconds, but at most to the end of the first wait."""
        now = self.now()
        ends = [end - now for end in list(self._stage.waits.values()) if end > now]
        self.advance(min(most, *ends) if ends else most)


class StoppedPace:
    """Waits for a condition: a step lets the others run; if all of them wait, the next one advances the clock."""

    def __init__(self, clock: StoppedClock, within: float) -> None:
        self._clock = clock
        self._end, self._real_end = clock.now() + _LONGEST_WAIT, time.monotonic() + within
        self._stride = _FIRST_STRIDE
        self._idle_at = 0
        """The number of moves at which all threads and tasks waited; 0: not all of them did."""

    def is_over(self) -> bool:
        return self._clock.now() > self._end or time.monotonic() > self._real_end

    async def step(self, left: float = FOREVER) -> None:
        if not self._moved(left):
            before = self._clock.moves()
            await asyncio.sleep(1.5 * _NAP)  # longer than every nap of this loop that has begun
            self._note_idle(before)

    def step_here(self) -> None:
        if not self._moved():
            before = self._clock.moves()
            time.sleep(_NAP)
            if threading.current_thread() is threading.main_thread():
                self._note_idle(before)

    def _note_idle(self, before: int) -> None:
        now = self._clock.moves()
        self._idle_at = now if now == before else 0

    def _moved(self, left: float = FOREVER) -> bool:
        idle_at, self._idle_at = self._idle_at, 0
        if not idle_at or idle_at != self._clock.moves():
            return False
        self._clock.move(min(left, self._stride))
        self._stride = min(2 * self._stride, _LONGEST_STRIDE)
        return True


AnyClock = RealClock | StoppedClock
_current: AnyClock = RealClock()


def current() -> AnyClock:
    """The clock of the running test."""
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
