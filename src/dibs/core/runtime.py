"""What the core needs of the world it runs in; `dibs.runtime` has one for threads and one for asyncio.

A blocking runtime's coroutines never suspend. What an interrupted thread may touch is made in C in both: an interrupt
between two lines must not leave anything locked for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Event(Protocol):
    """Set once; waits look at the clock of the runtime."""

    def is_set(self) -> bool: ...

    def set(self) -> None:
        """From any thread, and from within an interrupt."""

    async def wait(self, until: float) -> bool: ...


class Source(Protocol):
    """Where messages from other processes arrive."""

    def fileno(self) -> int: ...

    def read(self) -> list[tuple[bytes, bytes]]:
        """What has arrived, as key and message; never blocks."""

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        """As `read`, but waits for something to arrive."""

    def poke(self) -> None:
        """Make it readable, from any thread."""


class Inbox(Protocol):
    """One wake-up source, many waiters. A message that comes between `expect` and `wait` is kept."""

    expected: dict[bytes, Any]
    """The keys that are expected. The free path sets one to None and pops it itself: it never waits."""

    def expect(self, key: bytes) -> None: ...

    def forget(self, key: bytes) -> None: ...

    def deliver(self, key: bytes, message: bytes) -> None:
        """From any thread; for a key that nobody expects it does nothing."""

    def deliver_all(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """The same for many, by their keys."""

    async def wait(self, key: bytes, until: float) -> bytes | None: ...

    def lead(self) -> object | None:
        """Read the source for all who wait, until `resign`, or until what this gives is gone with the frame that has
        it (an interrupt within an interrupt). None: somebody leads, perhaps this very thread, below a signal's
        handler."""

    def resign(self) -> None: ...

    def listen(self, source: Source) -> None:
        """Take messages from there too."""

    def unlisten(self) -> None: ...


class Gate(Protocol):
    """First use goes through one: what `make` does happens once, whoever comes at the same time."""

    async def once(self, known: Callable[[], T | None], make: Callable[[], Awaitable[T]]) -> T: ...


class Worker(Protocol):
    """A thread of its own that takes a turn whenever it is rung, and when the last turn asked to be called again."""

    def ring(self) -> None: ...

    def stop(self) -> None: ...

    def retire(self) -> None:
        """Do what is to be done, and do not linger for more."""


Job = Callable[[], Coroutine[Any, Any, None]]


class Hands(Protocol):
    """So many who work side by side, each at one thing after the other."""

    async def gather(self, jobs: Sequence[Job | None], until: float, enough: Callable[[], bool]) -> None:
        """One job for each of them, at once. Ends when all are done; at `until`; or, once `enough()`, when the others
        have had about as long again. What is not done then is not waited for: a thread goes on with it, a task is
        cancelled. What a job raises is raised here, if it is still waited for."""

    def close(self) -> None: ...


class Runtime(Protocol):
    def now(self) -> float:
        """Seconds of the clock that also counts suspended time."""

    async def sleep(self, seconds: float) -> None: ...

    def event(self) -> Event: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Never held over an await."""

    def gate(self) -> Gate: ...

    def inbox(self) -> Inbox: ...

    def taker(self) -> object:
        """The thread or task that runs now, as an object; numbers are re-used."""

    def taker_name(self) -> str: ...

    def fresh_id(self) -> bytes: ...

    def jitter(self, most: float) -> float: ...

    @property
    def bind(self) -> Callable[[], None] | None:
        """Called at every entry, where there is one: an asyncio runtime belongs to the first loop that uses it."""

    @property
    def soon(self) -> Callable[[Callable[[], None]], object] | None:
        """Where there is an event loop: have something done in it when all that can go on now has; only from there."""

    async def offload(self, work: Callable[[], T]) -> T:
        """Run what may block where it disturbs nobody; one such thing after the other."""

    def aside(self) -> Runtime:
        """The same, with a place of its own for what may block: what one store waits for keeps no other waiting."""

    def worker(self, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> Worker:
        """`turn` gives the seconds until the next one, at most; None: no more until rung."""

    def hands(self, count: int) -> Hands: ...

    def call_back(self, callback: Callable[[], object]) -> None:
        """Run a user's function where a slow one disturbs nobody; its exceptions are logged."""

    def is_through(self, taker: object) -> bool:
        """At interpreter exit: that thread or task runs no more."""

    def after_fork(self) -> None:
        """In the child: the parent's threads are not here."""

    def close(self) -> None:
        """Its client was closed: what still runs here ends as soon as it has done what was put down."""

    def blocking(self) -> Runtime:
        """The runtime that workers' turns are stepped in."""
