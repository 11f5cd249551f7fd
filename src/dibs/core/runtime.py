"""The runtime that the core needs; `dibs.runtime` implements it for threads and for asyncio.

Coroutines of a blocking runtime never suspend. Both runtimes build events, mutexes and queues from types written in C:
an interrupt between two lines of Python must not leave anything locked for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Event(Protocol):
    """Set once; waits use the clock of the runtime."""

    def is_set(self) -> bool: ...

    def set(self) -> None:
        """Safe from any thread and from a signal handler."""

    async def wait(self, until: float) -> bool: ...


class Source(Protocol):
    """A readable source of messages from other processes."""

    def fileno(self) -> int: ...

    def read(self) -> list[tuple[bytes, bytes]]:
        """Read the pending messages, each with its key; never blocks."""

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        """Wait up to `patience` seconds for messages, then read them, each with its key."""

    def poke(self) -> None:
        """Make it readable, from any thread."""


class Inbox(Protocol):
    """One source of wakeups, many waiters. A message that comes between `expect` and `wait` is kept."""

    expected: dict[bytes, Any]
    """The expected keys. The free path never waits: it sets its key to None and pops it, without a call."""

    def expect(self, key: bytes) -> None: ...

    def forget(self, key: bytes) -> None: ...

    def deliver(self, key: bytes, message: bytes) -> None:
        """Safe from any thread; does nothing if the key is not expected."""

    def deliver_all(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """Deliver many messages, each with its key."""

    async def wait(self, key: bytes, until: float) -> bytes | None: ...

    def lead(self) -> object | None:
        """Become the one reader of the source for all waiters, until `resign`. It also ends when the returned object
        dies with its frame (an interrupt within an interrupt). None: there is a reader already, perhaps this thread
        itself below a signal handler."""

    def resign(self) -> None: ...

    def listen(self, source: Source) -> None:
        """Also receive messages from this source."""

    def unlisten(self) -> None: ...


class Gate(Protocol):
    """Runs `make` once on first use, even if several callers arrive at the same time."""

    async def once(self, known: Callable[[], T | None], make: Callable[[], Awaitable[T]]) -> T: ...


class Worker(Protocol):
    """A thread that runs a turn when it is rung, and again after the delay that the last turn returned."""

    def ring(self) -> None: ...

    def stop(self) -> None: ...

    def retire(self) -> None:
        """Finish the pending work, then end the thread."""


Job = Callable[[], Coroutine[Any, Any, None]]


class TaskGroup(Protocol):
    """A fixed number of workers that run in parallel; each runs its own jobs one after the other."""

    async def gather(self, jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        """Run one job per worker in parallel. Returns when all are done, or at `until`. Once `enough()` is true, the
        other jobs get about as long again. A job that is not done then goes on in its thread, or its task is
        cancelled. An exception of a job is raised here while it is waited for."""

    def close(self) -> None: ...


class Runtime(Protocol):
    def now(self) -> float:
        """Seconds of a monotonic clock that also counts suspended time."""

    async def sleep(self, seconds: float) -> None: ...

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Never held over an await."""

    def gate(self) -> Gate: ...

    def inbox(self) -> Inbox: ...

    def caller(self) -> object:
        """The current thread or task, as an object, because thread numbers are re-used."""

    def caller_name(self) -> str: ...

    def fresh_id(self) -> bytes: ...

    def jitter(self, most: float) -> float: ...

    @property
    def bind(self) -> Callable[[], None] | None:
        """In asyncio, a function to call at every entry: the runtime belongs to the first event loop that uses it."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], object] | None:
        """In asyncio, `loop.call_soon`; call it only from the event loop."""

    async def offload(self, work: Callable[[], T]) -> T:
        """Run blocking work on another thread, one call after the other."""

    def separate(self) -> Runtime:
        """The same runtime with a separate thread for blocking work, so that one store cannot delay another."""

    def worker(self, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> Worker:
        """`turn` returns the longest delay in seconds until the next turn; None: wait until rung."""

    def task_group(self, count: int) -> TaskGroup: ...

    def call_back(self, callback: Callable[[], object]) -> None:
        """Run a callback of the user where a slow one delays nothing; its exceptions are logged."""

    def is_through(self, caller: object) -> bool:
        """At interpreter exit: whether that thread or task has ended."""

    def after_fork(self) -> None:
        """In the child: forget the threads of the parent."""

    def close(self) -> None:
        """After the client was closed: threads end once their pending work is done."""

    def blocking(self) -> Runtime:
        """The blocking runtime in which workers run."""
