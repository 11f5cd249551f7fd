"""The asyncio runtime. A client belongs to the first loop that uses it, and binds to another one once that is closed.

The watchdog's thread calls into the loop with `call_soon_threadsafe` only. Blocking calls (a statement on a busy file)
run in a thread of the client, so that they never block the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from dibs.core.runtime import Event, Gate, Inbox, Job, Runtime, Source, TaskGroup
from dibs.runtime.threads import LAST_CALL, CallQueue, ThreadRuntime, boottime, run_logged

T = TypeVar("T")

_LONGEST_NAP = 15.0
"""Longest sleep, in seconds: the loop's timers stop while the machine is suspended."""
_JOIN_PATIENCE = 0.1
"""Seconds; it blocks the loop."""


async def _nap(future: asyncio.Future[T | None], longest: float) -> T | None:
    """The result of the future, or None after `longest` seconds."""
    timer = future.get_loop().call_later(longest, _give_up, future)
    try:
        return await future
    finally:
        timer.cancel()


def _give_up(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_result(None)


class AioEvent:
    __slots__ = ("_runtime", "_set", "_waiters")

    def __init__(self, runtime: AioRuntime) -> None:
        self._runtime = runtime
        self._set = False
        self._waiters: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._runtime.in_loop(self._wake)

    async def wait(self, until: float) -> bool:
        runtime = self._runtime
        while not self._set and (left := until - runtime.now()) > 0:
            future = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            try:
                await _nap(future, min(left, runtime.nap))
            finally:
                self._waiters.remove(future)
        return self._set

    def _wake(self) -> None:
        for future in self._waiters:
            _give_up(future)


class AioGate:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def once(self, known: Callable[[], T | None], make: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            there = known()
            return there if there is not None else await make()


class AioInbox:
    """The loop reads for all waiters."""

    def __init__(self, runtime: AioRuntime) -> None:
        self._runtime = runtime
        self.expected: dict[bytes, asyncio.Future[bytes | None] | bytes | None] = {}
        self._source: Source | None = None
        self._reader: tuple[asyncio.AbstractEventLoop, int] | None = None

    def expect(self, key: bytes) -> None:
        self.expected[key] = None

    def forget(self, key: bytes) -> None:
        self.expected.pop(key, None)

    def deliver(self, key: bytes, message: bytes) -> None:
        if key in self.expected:
            self._runtime.in_loop(lambda: self._hand_over(key, message))

    def deliver_all(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Wake the loop once for all messages: that is the expensive part."""

        def hand_over() -> None:
            for key, message in messages:
                self._hand_over(key, message)

        self._runtime.in_loop(hand_over)

    async def wait(self, key: bytes, until: float) -> bytes | None:
        self._attach()
        runtime = self._runtime
        while True:
            there = self.expected.get(key)
            if isinstance(there, bytes):
                self.expected[key] = None
                return there
            if (left := until - runtime.now()) <= 0:
                return None
            future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            self.expected[key] = future
            try:
                message = await _nap(future, min(left, runtime.nap))
            finally:
                if self.expected.get(key) is future:
                    self.expected[key] = None
            if message is not None:
                return message

    def lead(self) -> object | None:
        return None  # the loop reads

    def resign(self) -> None:
        """Does nothing: `lead` never succeeds."""

    def listen(self, source: Source) -> None:
        self._source = source

    def unlisten(self) -> None:
        self._source = None
        if self._reader is not None:
            loop, fileno = self._reader
            self._reader = None
            if not loop.is_closed():
                self._runtime.in_loop(lambda: loop.remove_reader(fileno))

    def _attach(self) -> None:
        """Register the reader; the first wait in another loop registers a new one."""
        loop = asyncio.get_running_loop()
        if self._source is not None and (self._reader is None or self._reader[0] is not loop):
            fileno = self._source.fileno()
            loop.add_reader(fileno, self._read)
            self._reader = (loop, fileno)

    def _read(self) -> None:
        if self._source is not None:
            for key, message in self._source.read():
                self._hand_over(key, message)

    def _hand_over(self, key: bytes, message: bytes) -> None:
        there = self.expected.get(key)
        if isinstance(there, asyncio.Future) and not there.done():
            there.set_result(message)
        elif key in self.expected:  # also if the wait just ended and its task has not resumed yet
            self.expected[key] = message


class Offloader:
    """A thread that runs blocking calls, one after the other."""

    def __init__(self, threads: ThreadRuntime) -> None:
        self._queue = CallQueue(threads)
        self.retire = self._queue.retire

    async def offload(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001  (raised in the waiting task)
                self._answer(loop, future, future.set_exception, error)
            else:
                self._answer(loop, future, future.set_result, result)

        self._queue.put(run)
        return await future

    @staticmethod
    def _answer(
        loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], answer: Callable[[Any], None], value: object
    ) -> None:
        with suppress(RuntimeError):  # the loop was closed: no task waits
            loop.call_soon_threadsafe(lambda: None if future.done() else answer(value))


class SeparateOffloader:
    """A runtime with its own thread for blocking calls; otherwise another one."""

    def __init__(self, runtime: AioRuntime, offloader: Offloader) -> None:
        self._runtime = runtime
        self.offload = offloader.offload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class AioTaskGroup:
    """One task per job."""

    def __init__(self, runtime: AioRuntime) -> None:
        self._runtime = runtime

    async def gather(self, jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        now, began, end = self._runtime.now, self._runtime.now(), until
        tasks = [asyncio.create_task(job()) for job in jobs if job is not None]
        pending = set(tasks)
        try:
            while pending and (left := end - now()) > 0:
                done, pending = await asyncio.wait(
                    pending, timeout=min(left, self._runtime.nap), return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                if end == until and enough():
                    end = min(until, now() + max(now() - began, LAST_CALL))
        finally:
            for task in tasks:
                task.cancel()
                task.add_done_callback(_look_at)

    def close(self) -> None:
        """Tasks end with their jobs."""


def _look_at(task: asyncio.Task[None]) -> None:
    """Read the exception of an abandoned task: asyncio would report it as never retrieved."""
    if not task.cancelled():
        task.exception()


class AioRuntime:
    """See core/runtime.py. `nap` is as in `ThreadRuntime`."""

    def __init__(self, now: Callable[[], float] = boottime, nap: float = math.inf) -> None:
        self.now = now
        self.nap = min(nap, _LONGEST_NAP)
        self.after_fork()

    def after_fork(self) -> None:
        self._threads = threads = ThreadRuntime(self.now, self.nap)
        self.mutex, self.worker = threads.mutex, threads.worker
        self.fresh_id, self.jitter = threads.fresh_id, threads.jitter
        self._loop: asyncio.AbstractEventLoop | None = None
        self._offloaders = [Offloader(self._threads)]

    def is_through(self, caller: object) -> bool:
        if isinstance(caller, asyncio.Task):
            return caller.done() or not caller.get_loop().is_running()
        return self._threads.is_through(caller)

    def bind(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(
                "this client belongs to another event loop, which is still open: use one client per loop"
            )
        self._loop = loop

    def in_loop(self, call: Callable[[], object]) -> None:
        """Run `call` in the client's loop: at once if this is that loop, else with its next iteration."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if running_loop() is loop:
            call()
        else:
            with suppress(RuntimeError):  # closed in between: no task waits
                loop.call_soon_threadsafe(call)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def event(self) -> Event:
        return AioEvent(self)

    def gate(self) -> Gate:
        return AioGate()

    def inbox(self) -> Inbox:
        return AioInbox(self)

    def caller(self) -> object:
        task = asyncio.current_task()
        return threading.current_thread() if task is None else task

    def caller_name(self) -> str:
        task = asyncio.current_task()
        return self._threads.caller_name() if task is None else task.get_name()

    def call_soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    async def offload(self, work: Callable[[], T]) -> T:
        return await self._offloaders[0].offload(work)

    def separate(self) -> Runtime:
        self._offloaders.append(Offloader(self._threads))
        return cast("Runtime", SeparateOffloader(self, self._offloaders[-1]))

    def task_group(self, count: int) -> TaskGroup:
        return AioTaskGroup(self)

    def call_back(self, callback: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(run_logged, callback)

    def close(self) -> None:
        for offloader in self._offloaders:
            offloader.retire()
        self._threads.close(_JOIN_PATIENCE)

    def blocking(self) -> Runtime:
        return self._threads


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
