"""The pool of the async API: connections to one server in an event loop, opened by threads as in connections.py."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from dibs.backends.common.connections import NAP, C, Connect, Dials, closed, own
from dibs.backends.common.executor import Refusal
from dibs.backends.common.round_trip import RoundTrip
from dibs.errors import StoreError, StoreUnavailable


class Watched(Protocol):
    """A connection in an event loop."""

    def is_usable(self) -> bool: ...

    def is_quiet(self) -> bool:
        """Whether no request uses it, so that it should be idle."""

    def close(self, error: StoreUnavailable) -> None:
        """Raise the error in callers that wait for a reply. May be called again, and from anywhere once the loop is
        closed."""

    def abandon(self) -> None:
        """In a forked child: leave the loop alone, it is the parent's."""


A = TypeVar("A", bound=Watched)


class _Waiter:
    __slots__ = ("bell", "failure")

    def __init__(self) -> None:
        self.bell: asyncio.Future[None] | None = None
        """None: the task runs, and checks for itself."""
        self.failure: StoreError | None = None

    def is_rung(self) -> bool:
        bell = self.bell
        return bell is not None and bell.done()

    def ring(self) -> bool:
        """False: it was rung before."""
        bell = self.bell
        if bell is None or bell.done():
            return False
        bell.set_result(None)
        return True


class AioPool(Dials[C], Generic[C, A]):
    def __init__(
        self, connect: Connect[C], made: Callable[[C, AioPool[C, A]], A], now: Callable[[], float],
        round_trip: RoundTrip, shown: str, *, limit: int, patience: float = inf,
    ) -> None:  # fmt: skip
        """`made`: adds a new connection to the running loop."""
        super().__init__(connect, now, round_trip, shown, limit, patience)
        self._made = made
        self.loop = asyncio.get_running_loop()
        self.open: set[A] = set()
        self.idle: deque[A] = deque()
        self._waiters: deque[_Waiter] = deque()

    def take_idle(self, *, waits: bool = False) -> A | None:
        """Take an idle connection that is usable. New callers do not overtake waiting ones."""
        while self.idle and (waits or not self._waiters):
            found = self.idle.pop()
            if found.is_usable():
                return found
            found.close(StoreUnavailable("the connection is not used any more"))
        return None

    async def take(self, until: float) -> A:
        found = self.take_idle()
        if found is not None:
            return found
        self.check()
        end, waiter = self.end_of_wait(until), _Waiter()
        self._waiters.append(waiter)
        try:
            while True:
                if not self.idle:
                    self._reclaim()
                found = self.take_idle(waits=True)
                if found is not None:
                    return found
                if waiter.failure is not None:
                    raise own(waiter.failure)
                if self._closed:
                    raise closed()
                self.dial()
                left = end - self.now()
                if left <= 0:
                    raise self.too_late()
                waiter.bell = self.loop.create_future()
                timer = self.loop.call_later(min(left, NAP), waiter.ring)
                try:
                    await waiter.bell
                finally:
                    timer.cancel()
                    waiter.bell = None
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)
            if self.idle:  # pass on a wake-up that it did not use
                self._ring()

    def give(self, connection: A) -> None:
        """Return a connection that can be used again."""
        self.idle.append(connection)
        if self._waiters:
            self._ring()

    def lost(self, connection: A) -> None:
        """Remove a connection that was closed."""
        self.open.discard(connection)
        with suppress(ValueError):
            self.idle.remove(connection)

    async def connect(self, until: float) -> None:
        """Make sure that one connection is open, idle or in use."""
        if not self.open:
            self.give(await self.take(until))

    def close(self) -> None:
        self._closed = True
        self.abort()
        for connection in list(self.open):
            connection.close(StoreUnavailable("this client was closed"))
        if not self.loop.is_closed():
            for waiter in tuple(self._waiters):
                waiter.ring()

    def abandon(self) -> None:
        self._closed = True
        for connection in list(self.open):
            connection.abandon()

    def _ring(self) -> None:
        for waiter in self._waiters:
            if waiter.ring():
                return

    def _reclaim(self) -> None:
        """Return connections whose tasks were interrupted between two lines."""
        self.idle.extend(one for one in self.open if one.is_quiet())

    # Called by dial threads, and by callers that drop a connection.

    def wanted(self) -> int:
        return sum(not waiter.is_rung() for waiter in tuple(self._waiters))

    def arrived(self, connection: C) -> None:
        self.landed()
        try:
            self.loop.call_soon_threadsafe(self._take_in, connection)
        except RuntimeError:  # the loop was closed
            connection.close()

    def failed(self, error: StoreError) -> None:
        self._in_loop(self._tell_all, error)

    def vacated(self) -> None:
        self._in_loop(self._ring)

    def _in_loop(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed, so nobody waits
            self.loop.call_soon_threadsafe(call, *args)

    def _take_in(self, connection: C) -> None:
        if self._closed:
            connection.close()
            return
        made = self._made(connection, self)
        self.open.add(made)
        self.give(made)
        self.dial()

    def _tell_all(self, error: StoreError) -> None:
        for waiter in self._waiters:
            waiter.failure = error
            waiter.ring()


class Asked(Protocol):
    """A connection with one request at a time, used without blocking. `begin` and `received` raise `failures`."""

    failures: tuple[type[Exception], ...]
    generation: int
    is_flushed: bool
    """All of the request has been sent."""

    def begin(self, request: Any) -> None: ...

    def received(self) -> Any:
        """The reply, if it is complete, else None. Raises Refusal."""

    def note(self, reply: Any) -> None:
        """Measure the reply that just arrived."""

    def broken(self, error: Exception) -> StoreUnavailable: ...

    def fileno(self) -> int: ...

    def is_open(self) -> bool: ...

    def is_reusable(self) -> bool: ...

    def close(self) -> None: ...

    def end(self) -> None: ...

    def abandon(self) -> None: ...


class AioConnection:
    """A connection in an event loop, with one request at a time. If the task stops waiting, the connection is reused
    after the reply has arrived. It is closed if that takes longer than an attempt."""

    def __init__(self, connection: Asked, pool: AioPool[Any, AioConnection]) -> None:
        self.connection = connection
        self._pool = pool
        self._loop = pool.loop
        self._fd = connection.fileno()
        self._future: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writes = False
        self._loop.add_reader(self._fd, self._readable)

    def is_usable(self) -> bool:
        return self.connection.is_open() and self.connection.generation == self._pool.generation

    def is_quiet(self) -> bool:
        return self._future is None

    def ask(self, request: Any, patience: float) -> asyncio.Future[Any]:
        self._future = future = self._loop.create_future()
        try:
            self._timer = self._loop.call_later(patience, self._too_long)
            self.connection.begin(request)
            self._watch_writing()
        except BaseException as error:
            if not self._is_closed_by(error):
                raise
        return future

    def close(self, error: StoreUnavailable) -> None:
        if self._timer is not None:
            self._timer.cancel()
        future, self._future = self._future, None
        if self.connection.is_open():
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
                self._loop.remove_writer(self._fd)
            if future is None:
                self.connection.end()
            else:
                self.connection.close()
        if future is not None and not future.done() and not self._loop.is_closed():
            future.set_exception(error)
        self._pool.lost(self)

    def abandon(self) -> None:
        self.connection.abandon()

    def _too_long(self) -> None:
        self.close(StoreUnavailable("the server did not answer in time"))

    def _readable(self) -> None:
        try:
            if self._future is None:
                raise StoreUnavailable("the server closed the connection")
            reply = self.connection.received()
            self._watch_writing()
            if reply is not None:
                self.connection.note(reply)
                self._done(reply)
        except Refusal as refusal:
            self._done(refusal)
        except BaseException as error:
            if not self._is_closed_by(error):
                raise

    def _is_closed_by(self, error: BaseException) -> bool:
        """Close the connection. Gives whether its caller gets the error, so that it must not be raised here."""
        if isinstance(error, StoreUnavailable):
            self.close(error)
        elif isinstance(error, self.connection.failures):
            self.close(self.connection.broken(error))
        else:
            self.close(StoreUnavailable("the request was interrupted"))
            return False
        return True

    def _watch_writing(self) -> None:
        if self.connection.is_flushed == self._writes:
            self._writes = not self.connection.is_flushed
            if self._writes:
                self._loop.add_writer(self._fd, self._readable)
            else:
                self._loop.remove_writer(self._fd)

    def _done(self, reply: Any) -> None:
        future, self._future = self._future, None
        if self._timer is not None:
            self._timer.cancel()
        if future is not None and not future.done():
            if isinstance(reply, Refusal):
                future.set_exception(reply)
            else:
                future.set_result(reply)
        if self.connection.is_reusable() and self.is_usable():
            self._pool.give(self)
        else:
            self.close(StoreUnavailable("the connection is not used any more"))


class AioTransport(Generic[C]):
    """The async API's connections to one server. A client that moves to another event loop gets another pool."""

    def __init__(
        self, connect: Connect[C], now: Callable[[], float], round_trip: RoundTrip, shown: str, limit: int
    ) -> None:
        self._connect = connect
        self._now = now
        self._shown = shown
        self._limit = limit
        self.round_trip = round_trip
        self._pool: AioPool[C, AioConnection] | None = None
        self._closed = False
        self._generation = 0

    async def exchange(self, request: Any, until: float) -> Any:
        pool = self._current()
        connection = pool.take_idle() or await pool.take(until)
        trip = self.round_trip
        return await connection.ask(request, min(max(until - self._now(), trip.least), trip.attempt))

    def take_now(self) -> AioConnection | None:
        """Take an idle connection of the running loop, if there is one."""
        pool = self._pool
        return pool.take_idle() if pool is not None and pool.loop is asyncio.get_running_loop() else None

    def give(self, connection: AioConnection, *, is_checked: bool = False) -> None:
        if self._pool is not None:
            self._pool.give(connection)

    async def connect(self, until: float) -> None:
        await self._current().connect(until)

    def renew(self) -> None:
        """Stop using the connections that are open now."""
        self._generation += 1
        if self._pool is not None:
            self._pool.generation = self._generation

    def close(self) -> None:
        self._closed = True
        if self._pool is not None:
            self._pool.close()

    def abandon(self) -> None:
        if self._pool is not None:
            self._pool.abandon()

    def _current(self) -> AioPool[C, AioConnection]:
        """The pool of the running loop."""
        pool = self._pool
        if pool is not None and pool.loop is asyncio.get_running_loop():
            return pool
        if self._closed:
            raise closed()
        if pool is not None:
            pool.close()
        self._pool = made = AioPool(
            self._connect, AioConnection, self._now, self.round_trip, self._shown, limit=self._limit
        )
        made.generation = self._generation
        return made
