"""The runtime of the sync API: coroutines that never suspend, run by one `send`.

All code that an interrupt can hit (KeyboardInterrupt, a Celery time limit) uses `_thread.lock`, `SimpleQueue` and
`deque`: each operation is a single step in C, either done or not done. `threading.Event` is not safe here: a signal
inside `Event.set()` can leave its lock held for ever.
"""

from __future__ import annotations

import _thread
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from dibs.core.log import fields, log
from dibs.core.runtime import Event, Gate, Inbox, Job, Runtime, TaskGroup, Worker
from dibs.runtime.inbox import ThreadInbox

T = TypeVar("T")

LINGER = 60.0
"""Seconds that an idle worker keeps its thread."""
AFTER_A_FAILURE = 0.05
"""Seconds between a failed turn and the next one; short leases depend on it."""
LONGEST_NAP = 1.0
"""Longest sleep, in seconds: timers stop while the machine is suspended, so look at the clock often."""
LAST_CALL = 0.05
"""Seconds that the remaining jobs get at least, once enough others are done."""
_LAST_MOMENT = 0.001
_ID_SIZE = 16

if hasattr(time, "CLOCK_BOOTTIME"):
    boottime: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:  # macOS, Windows
    boottime = time.monotonic
mutex: Callable[[], AbstractContextManager[Any]] = _thread.allocate_lock

ending = [math.inf]
"""Deadline of the waits for client threads at interpreter exit."""


def step(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends.

    >>> async def double(n: int) -> int:
    ...     return 2 * n
    >>> step(double(21))
    42
    """
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # StopIteration is not generic
    coroutine.close()
    raise RuntimeError("a sync store suspended: this is a bug in dibs")


class ThreadEvent:
    __slots__ = ("_bells", "_nap", "_now", "_set")

    def __init__(self, now: Callable[[], float], nap: float) -> None:
        self._now = now
        self._nap = nap
        self._set = False
        self._bells: deque[_thread.LockType] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._bells:
            with suppress(IndexError, RuntimeError):
                self._bells.popleft().release()

    async def wait(self, until: float) -> bool:
        bell = _thread.allocate_lock()
        bell.acquire()
        self._bells.append(bell)
        try:
            while not self._set and (left := until - self._now()) > 0:
                bell.acquire(timeout=min(left, self._nap))
            return self._set
        finally:
            with suppress(ValueError):
                self._bells.remove(bell)


class ThreadGate:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = mutex()

    async def once(self, known: Callable[[], T | None], make: Callable[[], Awaitable[T]]) -> T:
        with self._lock:
            there = known()
            return there if there is not None else await make()


Join = Callable[[float], object]
"""Waits until a thread has ended; the argument is a timeout in seconds."""


def start_thread(function: Callable[[], object]) -> Join:
    """Start a daemon thread. Not with `threading.Thread`: an interrupt in its `start` can make it wait for ever. Before
    Python 3.13 the thread may exist for a moment after its function returned."""
    if sys.version_info >= (3, 13):
        handle = _thread.start_joinable_thread(function, daemon=True)
        return handle.join
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            function()
        finally:
            ended.release()

    def join(seconds: float) -> None:
        if ended.acquire(timeout=seconds):
            ended.release()

    _thread.start_new_thread(run, ())
    return join


class ThreadWorker:
    """A daemon thread that exists while there is work, and a minute longer."""

    def __init__(self, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._turn = turn
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._starting = mutex()
        self._running = False
        self._stopped = False
        self._linger = LINGER
        self._ident = 0
        self._joins: deque[Join] = deque(maxlen=4)
        """The latest threads: a race can start more than one."""

    def ring(self) -> None:
        self._bell.put(None)
        self._ensure_thread()

    def stop(self) -> None:
        self._stopped = True
        self._bell.put(None)

    def retire(self) -> None:
        self._linger = 0.0
        self._bell.put(None)

    def join(self, until: float) -> bool:
        """Wait for the threads that `stop` or `retire` ended. False: there are none, or the caller is one."""
        if not self._joins or _thread.get_ident() == self._ident:
            return False
        while self._joins:
            with suppress(IndexError):
                self._joins.popleft()(max(until - boottime(), 0.0))
        return True

    def _ensure_thread(self) -> None:
        # The thread marks itself as running: an interrupt just after its start could leave a wrong mark. A race may
        # start two threads; the second one sees the mark and ends.
        if not self._running and not self._stopped:
            try:
                self._joins.append(start_thread(self._run))
            except RuntimeError:
                if threading.main_thread().is_alive():
                    raise
                self._run_here()

    def _run_here(self) -> None:
        """The interpreter ends and starts no more threads (Python 3.12): do the remaining work here."""
        self._running = True
        try:
            while not self._bell.empty():
                self._bell.get_nowait()
                self._take_turn()
        finally:
            self._running = False

    def _run(self) -> None:
        with self._starting:
            if self._running:
                return
            self._running = True
            self._ident = _thread.get_ident()
        try:
            while not self._stopped:
                pause = self._take_turn()
                try:
                    self._bell.get(timeout=self._linger if pause is None else min(pause, LONGEST_NAP))
                    while not self._bell.empty():
                        self._bell.get_nowait()
                except Empty:
                    if pause is None:
                        return
        finally:
            self._running = False
            self._ident = 0
            if not self._bell.empty():
                self._ensure_thread()

    def _take_turn(self) -> float | None:
        try:
            return step(self._turn())
        except BaseException:  # noqa: BLE001  (locks depend on this thread: it continues with the next turn)
            extra = fields("background_failed")
            log().exception("a background task failed; the next run is in %s s", AFTER_A_FAILURE, extra=extra)
            return AFTER_A_FAILURE


class _Gathering:
    """The results of jobs that one caller waits for."""

    def __init__(self, now: Callable[[], float], until: float) -> None:
        self._now = now
        self._until = until
        self._bell = _thread.allocate_lock()
        self._bell.acquire()
        self._ended: deque[BaseException | None] = deque()

    def run(self, job: Job) -> None:
        """Runs in another thread; does nothing after the deadline."""
        raised: BaseException | None = None
        try:
            if self._now() < self._until:
                step(job())
        except BaseException as error:  # noqa: BLE001  (raised in the waiting thread)
            raised = error
        self._ended.append(raised)
        with suppress(RuntimeError):
            self._bell.release()

    def ended(self) -> int:
        """The number of finished jobs; raises the first exception of a job."""
        for raised in list(self._ended):
            if raised is not None:
                raise raised
        return len(self._ended)

    def wait(self, patience: float) -> None:
        self._bell.acquire(timeout=patience)


class CallQueue:
    """A worker that calls functions, one after the other."""

    def __init__(self, runtime: ThreadRuntime) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._worker = runtime.worker(self._call_all)
        self.retire = self._worker.retire

    def put(self, call: Callable[[], object]) -> None:
        self._calls.put(call)
        self._worker.ring()

    async def _call_all(self) -> float | None:
        while not self._calls.empty():
            self._calls.get_nowait()()
        return None


class ThreadTaskGroup:
    """One thread per job; idle threads linger like those of a worker."""

    def __init__(self, count: int, runtime: ThreadRuntime, nap: float) -> None:
        self._now = runtime.now
        self._nap = nap
        self._queues = [CallQueue(runtime) for _ in range(count)]

    async def gather(self, jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        gathering = _Gathering(self._now, until)
        began, end, count = self._now(), until, 0
        for job, queue in zip(jobs, self._queues, strict=True):
            if job is not None:
                count += 1
                queue.put(partial(gathering.run, job))
        while gathering.ended() < count and (now := self._now()) < end:
            if end == until and enough():
                end = min(until, now + max(now - began, LAST_CALL))
            gathering.wait(min(max(end - now, 0.0), self._nap))

    def close(self) -> None:
        for queue in self._queues:
            queue.retire()


class _Here(threading.local):
    """The thread that runs now, without the Python call of `current_thread`."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()


class ThreadRuntime:
    """See core/runtime.py. `nap`: longest wait between two looks at the clock, for clocks that can be set forward."""

    bind = None
    """Only an event loop needs it."""
    call_soon = None

    def __init__(self, now: Callable[[], float] = boottime, nap: float = math.inf) -> None:
        self.now = now
        self._nap = nap
        self.after_fork()

    def after_fork(self) -> None:
        self._workers: list[ThreadWorker] = []
        self._callbacks = CallQueue(self)

    def is_through(self, caller: object) -> bool:
        return caller is threading.main_thread() or (isinstance(caller, threading.Thread) and not caller.is_alive())

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def event(self) -> Event:
        return ThreadEvent(self.now, min(self._nap, LONGEST_NAP))

    def mutex(self) -> AbstractContextManager[Any]:
        return mutex()

    def gate(self) -> Gate:
        return ThreadGate()

    def inbox(self) -> Inbox:
        return ThreadInbox(self.now, self._nap)

    caller = staticmethod(partial(getattr, _Here(), "thread"))

    def caller_name(self) -> str:
        return threading.current_thread().name

    fresh_id = staticmethod(partial(os.urandom, _ID_SIZE))
    """No pool of random bytes: a snapshot of the machine would copy it."""

    def jitter(self, most: float) -> float:
        return most * int.from_bytes(os.urandom(4)) / 2**32

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    def separate(self) -> Runtime:
        return self

    def worker(self, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> Worker:
        worker = ThreadWorker(turn)
        self._workers.append(worker)
        return worker

    def task_group(self, count: int) -> TaskGroup:
        return ThreadTaskGroup(count, self, min(self._nap, LONGEST_NAP))

    def call_back(self, callback: Callable[[], object]) -> None:
        self._callbacks.put(partial(run_logged, callback))

    def close(self, patience: float = 0.5) -> None:
        """Wait for the threads: one that outlives its client blocks the end of a subinterpreter."""
        until = min(boottime() + patience, ending[0])
        for worker in self._workers:
            worker.retire()
        joined = [worker.join(until) for worker in self._workers]
        if any(joined) and sys.version_info < (3, 13):
            time.sleep(_LAST_MOMENT)  # see start_thread

    def blocking(self) -> Runtime:
        return self


def run_logged(callback: Callable[[], object]) -> None:
    """An exception of a user's function must not end the thread that runs it."""
    try:
        callback()
    except Exception:  # noqa: BLE001  (it is logged)
        log("lock").exception("on_lost failed", extra=fields("on_lost_failed"))
