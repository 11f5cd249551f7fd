"""The stage: a clock that a test can advance, and the turns of the workers of all clients of the test.

The clock runs with the real one. `Clock.advance` adds time in steps, from one due instant (a renewal, the end of a
lease, a timeout) to the next. At each instant the calling thread runs the turn of every worker. So everything happens
as it would have in that time, and a day takes only as long as its renewals. Real time does not count meanwhile: a slow
machine costs no lease.

One mutex covers a worker's turn and a step of the clock. The clock makes no step while another thread is in the middle
of an acquire or a release: an hour that passes there would cost that thread its lease. A call that waits for a signal
or an event is not in the middle: it is *parked*.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Self, TypeVar, cast

from dibs._shared import ExcType, Raised, Trace
from dibs.core.client import Client
from dibs.core.deadline import FOREVER, seconds
from dibs.core.give_backs import GiveBacks
from dibs.core.grants import ASKING, HELD
from dibs.core.runtime import Event, Runtime, Worker
from dibs.core.watchdog import Watchdog
from dibs.runtime.aio import AioRuntime, running_loop
from dibs.runtime.threads import ThreadRuntime, boottime, step

T = TypeVar("T")
Turn = Callable[[], Coroutine[Any, Any, float | None]]

NAP = 0.01
"""Seconds after which a waiting thread or task notices that the clock was advanced."""
_POLL_INTERVAL = 0.0005
MOST_POLLS = 2000
"""Polls before a step stops waiting for other threads, about a second: a stuck thread must not stop the clock. Polls
are counted, not seconds: on a stalled machine no thread makes progress."""
_BEHIND = 1e-6
"""Seconds by which a step goes past its instant: floats are rounded."""


class Clock:
    """The clock of a test: the real one, and the time that was added to it.

    Example:
        >>> clock = Stage().clock
        >>> before = clock.now()
        >>> clock.advance(3600)
        >>> clock.now() - before >= 3600
        True
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._reading: tuple[float | None, float] = None, 0.0
        """The real time when it was stopped (None: it runs), and the time added; one tuple, so one atomic read."""
        self._advancing = threading.RLock()
        self.is_stopped = False
        """Whether `stop` was called; `advance` stops the clock only for its own duration."""

    def now(self) -> float:
        """Seconds since some moment in the past."""
        stopped_at, added = self._reading
        return (boottime() if stopped_at is None else stopped_at) + added

    def advance(self, length: float | timedelta) -> None:
        """Let time pass at once, for every client of the test: renewals and losses happen on the way.

        Args:
            length: Seconds, or a `timedelta`.
        """
        left = seconds(length, "the time to advance by")
        with self._stopped():
            self._advance(left)
        self._stage.ring()

    def stop(self) -> None:
        """Stop the clock: from now on only `advance` moves it."""
        self._reading = boottime(), self._reading[1]
        self.is_stopped = True

    def go_on(self) -> None:
        """Let the clock run with the real one again."""
        self._reading = None, self.now() - boottime()
        self.is_stopped = False

    def after_fork(self) -> None:
        """Reset it in a forked child, where the thread that may have advanced it does not exist."""
        self._reading = None, self._reading[1]
        self._advancing = threading.RLock()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        with self._advancing:
            stopped_at, added = self._reading
            if stopped_at is not None:  # a turn that `advance` runs in this thread called it again
                yield
                return
            begun = boottime()
            self._reading = begun, added
            try:
                yield
            finally:
                self._reading = None, self._reading[1] - (boottime() - begun)

    def _advance(self, left: float) -> None:
        with self._stage.between_calls():
            self._stage.take_turns()  # an overdue renewal is no later instant: it would be skipped
        while True:
            with self._stage.between_calls():
                now = self.now()
                stride = min(left, self._stage.next_instant(now) + _BEHIND - now)
                self._reading = self._reading[0], self._reading[1] + stride
                self._stage.take_turns()
            left -= stride
            self._stage.finish_expired(self.now())
            if left <= 0:
                return


class Stage:
    """The clock, the clients and their workers of one test."""

    def __init__(self, nap: float = NAP, clock: type[Clock] = Clock) -> None:
        self.clock = clock(self)
        self.clients: list[Client] = []
        self.waits: dict[object, float] = {}
        """The threads and tasks that wait for a signal, each with the deadline of its wait."""
        self._nap = nap
        self._mutex = threading.Lock()
        self._workers: list[StagedWorker] = []
        self._calls: dict[object, StageCall] = {}
        self._pauses: list[Pause] = []
        self._pid = os.getpid()

    def runtime(self, inner: Runtime, *, may_pause: bool = True) -> Runtime:
        """A runtime for the same API as `inner`, on this stage."""
        of_its_api = AioRuntime if isinstance(inner, AioRuntime) else ThreadRuntime
        return cast("Runtime", StagedRuntime(self, of_its_api(self.clock.now, self._nap), may_pause))

    def call(self, runtime: Runtime, deadline: float) -> StageCall:
        """A context manager around an acquire or a release."""
        return StageCall(self._mutex, self._calls, runtime.caller(), deadline)

    @contextmanager
    def parked(self, caller: object, until: float = FOREVER) -> Iterator[None]:
        """Mark the caller as waiting: a call that waits does not hold the clock up."""
        call = self._calls.get(caller)
        self.waits[caller] = until
        if call is not None:
            call.active = False
        try:
            yield
        finally:
            self.waits.pop(caller, None)
            if call is not None:
                with self._mutex:
                    call.active = True

    def pause(self, watchdogs: list[Watchdog] | None) -> Pause:
        """Pause these watchdogs, or all. When it returns, none of them is in a turn."""
        pause = Pause(self, watchdogs)
        with self._mutex:
            self._pauses.append(pause)
        return pause

    def resume(self, *pauses: Pause) -> None:
        """End these pauses, and run the turns that the watchdogs missed."""
        with self._mutex:
            self._pauses = [pause for pause in self._pauses if pause not in pauses]
            self.take_turns()
        self.ring()

    def resume_all(self) -> None:
        self.resume(*self._pauses)

    def is_paused(self, worker: StagedWorker) -> bool:
        return worker.lane is not None and any(pause.covers(worker.lane) for pause in self._pauses)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Run no turn and add no time during the `with`."""
        with self._mutex:
            yield

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """Run no turn and add no time during the `with`; it begins when no other thread is in the middle of a call."""
        for poll in count(1):
            with self._mutex:
                if poll > MOST_POLLS or not any(call.is_busy_elsewhere() for call in list(self._calls.values())):
                    yield
                    return
            time.sleep(_POLL_INTERVAL)

    def next_instant(self, now: float) -> float:
        """The next instant at which a renewal, an end of a lease or a timeout is due."""
        instants = [call.deadline for call in list(self._calls.values()) if not call.is_here()]
        for client in self.clients:
            for grant in list(client.watchdog.renewing.values()):
                if grant.state is HELD:
                    instants += (grant.renew_at, grant.until, grant.ends_at)
                elif grant.state is not ASKING:
                    instants.append(grant.renew_at)
        return min((instant for instant in instants if instant > now), default=FOREVER)

    def take_turns(self) -> None:
        """Run one turn of every worker in this thread. Their requests to a memory store never wait."""
        for worker in list(self._workers):
            worker.asks_for_more = step(worker.go()) is not None

    def ring(self) -> None:
        """Wake the workers' own threads: they sleep until an instant that may have passed."""
        for worker in list(self._workers):
            if worker.asks_for_more:
                worker.ring()

    def finish_expired(self, now: float) -> None:
        """Wait until the calls whose deadline has passed have returned, before more time passes."""
        late = [call for call in list(self._calls.values()) if call.deadline <= now and not call.is_here()]
        for _ in range(MOST_POLLS):
            if not any(self._calls.get(call.caller) is call for call in late):
                break
            time.sleep(_POLL_INTERVAL)
        for call in late:
            call.deadline = FOREVER  # a stuck call is not waited for again

    def worker(self, turn: Turn, runtime: Runtime, may_pause: bool) -> Worker:
        worker = StagedWorker(self, turn, runtime, may_pause)
        self._workers.append(worker)
        return worker

    def dismiss(self, worker: StagedWorker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)

    def after_fork(self) -> None:
        """Reset it in a forked child, where the threads that may have held the mutex do not exist."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._mutex = threading.Lock()
            self._workers, self._calls = [], {}
            self.clock.after_fork()


class StageCall:
    """An acquire or release that has begun and has not returned."""

    def __init__(self, mutex: threading.Lock, calls: dict[object, StageCall], caller: object, deadline: float) -> None:
        self.caller = caller
        self.deadline = deadline
        self.active = True
        self._mutex = mutex
        self._calls = calls
        self._loop = running_loop()

    def is_here(self) -> bool:
        """Whether the call belongs to this thread or its event loop: then it cannot continue before we return."""
        return self._loop is running_loop() if self._loop is not None else self.caller is threading.current_thread()

    def is_busy_elsewhere(self) -> bool:
        return self.active and not self.is_here()

    def __enter__(self) -> None:
        with self._mutex:
            self._calls[self.caller] = self

    def __exit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        self._calls.pop(self.caller, None)


class Pause:
    """A pause of background renewal, until `resume()` or the end of `with`: see `KitClient.pause_watchdog`."""

    def __init__(self, stage: Stage, watchdogs: list[Watchdog] | None) -> None:
        self._stage = stage
        self._watchdogs = watchdogs

    def covers(self, lane: Watchdog | GiveBacks) -> bool:
        return self._watchdogs is None or any(lane in (one, one.give_backs) for one in self._watchdogs)

    def resume(self) -> None:
        """Resume the renewal. A second call does nothing."""
        self._stage.resume(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        self.resume()


class StagedWorker:
    """A worker of the inner runtime. All workers of a stage take their turns one at a time."""

    def __init__(self, stage: Stage, turn: Turn, runtime: Runtime, may_pause: bool) -> None:
        self.asks_for_more = False
        self.lane = _lane_of(turn) if may_pause else None
        """The watchdog or give-backs that the turn belongs to; None: the worker cannot be paused."""
        self._stage = stage
        self._turn = turn
        self._worker = runtime.worker(self._turn_on_stage)
        self.ring = self._worker.ring
        self.retire = self._worker.retire

    def stop(self) -> None:
        self._stage.dismiss(self)
        self._worker.stop()

    async def go(self) -> float | None:
        """Take one turn, unless paused. The caller holds the stage's mutex."""
        return None if self._stage.is_paused(self) else await self._turn()

    async def _turn_on_stage(self) -> float | None:
        with self._stage.still():
            return await self.go()


class StagedRuntime:
    """A runtime on the stage's clock. The stage can run the turns of its workers."""

    def __init__(self, stage: Stage, inner: Runtime, may_pause: bool) -> None:
        self._stage = stage
        self._inner = inner
        self._may_pause = may_pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def worker(self, turn: Turn) -> Worker:
        return self._stage.worker(turn, self._inner, self._may_pause)

    def event(self) -> Event:
        return StagedEvent(self._stage, self._inner)

    async def sleep(self, length: float) -> None:
        if self._stage.clock.is_stopped and length > 0:
            await self.event().wait(self._inner.now() + length)
            return
        with self._stage.parked(self._inner.caller()):
            await self._inner.sleep(length)

    def after_fork(self) -> None:
        self._stage.after_fork()
        self._inner.after_fork()


class StagedEvent:
    """An event whose waiters do not hold the clock up."""

    def __init__(self, stage: Stage, runtime: Runtime) -> None:
        self._stage = stage
        self._runtime = runtime
        self._event = runtime.event()
        self.is_set = self._event.is_set
        self.set = self._event.set

    async def wait(self, until: float) -> bool:
        with self._stage.parked(self._runtime.caller(), until):
            return await self._event.wait(until)


def _lane_of(turn: Turn) -> Watchdog | GiveBacks | None:
    """The watchdog or give-backs of a turn. None: it watches deadlines, which a pause does not stop."""
    owner = getattr(turn, "__self__", None)
    if isinstance(owner, Watchdog):
        return None if turn == owner.watch else owner
    return owner if isinstance(owner, GiveBacks) else None
