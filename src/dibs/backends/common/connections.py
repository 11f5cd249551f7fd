"""Connections to one server: the pool of the sync API, and connecting in the background for both APIs.

A connection is opened by a daemon thread with its own time limit, never by a caller. If a caller runs out of time, the
dial goes on, and the next caller gets the connection. A connection that arrives while nobody waits becomes idle.

New and returned connections always become idle, and waiters are only woken. So a waiter that is interrupted, cancelled
or late cannot lose a connection. Callers may be interrupted at any line, dial threads never: only they change the count
of dials. A connection that an interrupt drops is closed by its destructor, which also returns its seat in the pool.
"""

from __future__ import annotations

import _thread
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

from dibs.backends.common.executor import Refusal
from dibs.backends.common.round_trip import RoundTrip
from dibs.core.queue import Unsent
from dibs.errors import Closed, StoreError, StoreUnavailable

CONNECTING = 10.0
"""Seconds that a dial may take."""
STEP = 5.0
"""Seconds that one step of a dial may take (TCP, the login, a first request)."""
DIALS = 2
"""Dials of a pool at the same time; a crowd of callers shares the connections."""
SESSION_DIALS = 8
"""Dials at the same time if every caller needs its own connection."""
REST = 0.25
"""Seconds after a failed dial without another one."""
TRUSTED = 1.0
"""Seconds after which an idle connection is checked before it is used."""
_STARTING = 0.1
"""Seconds for which a dial thread that has not begun keeps others from being started."""
CLOSED = -1
"""A generation that no connection has."""
NAP = 0.5
"""Seconds after which a waiter looks again, in case an interrupt swallowed its wake-up."""


Abort = Callable[[], None]
Begun = Callable[[Abort], None]
"""Called by a dial before it blocks, with a function that makes the dial fail at once when the pool is closed."""


class Connection:
    """A connection in a pool, with one user at a time. Any exception during an exchange closes it: the late reply to an
    unfinished request must not be read as the reply to the next one.

    `offset` is a lower bound of how far the server's clock is ahead of ours. Replies contain the server's time, which
    was read before the reply arrived.
    """

    seat: object = None
    """Its seat in the pool."""
    generation = 0
    """The pool's generation when it was opened: see `Dials.generation`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.round_trip = RoundTrip(STEP)
        """Its own until it is open, because the first reply may take a whole step."""
        self.offset = -inf
        self.used_at = self.sent_at = now()

    def opened(self, round_trip: RoundTrip) -> None:
        """End the dial. Its last reply is the first sample of the shared round trip."""
        self.round_trip = round_trip
        round_trip.add(self.used_at - self.sent_at)

    def note_reply(self, there: float | None) -> None:
        """Measure the reply that just arrived. `there`: the server's time in the reply, or None. That time was read
        after the request was sent and before now, so a late reply cannot lower `offset`."""
        sent_at = self.sent_at
        self.used_at = now = self._now()
        self.round_trip.add(now - sent_at)
        if there is not None:
            offset, late = there - now, there - sent_at
            offset = max(offset, self.offset)
            self.offset = min(late, offset)

    def exchange(self, request: Any, until: float) -> Any:
        """Send a request, and wait for the reply. A Refusal may leave the connection reusable."""
        raise NotImplementedError

    def is_reusable(self) -> bool:
        """Whether nothing of an earlier request is left on it."""
        raise NotImplementedError

    def is_stale(self) -> bool:
        """Whether the server closed it while it was idle, or sent something unexpected."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it at once, and return its seat."""
        raise NotImplementedError

    def end(self) -> None:
        """Close an idle connection, with a farewell message if the protocol has one."""
        self.close()

    def abandon(self) -> None:
        """In a forked child: close it without a message to the server, because it is the parent's."""
        self.close()


C = TypeVar("C", bound=Connection)
Connect = Callable[[float, Begun], C]
"""Blocks until the given instant, and raises StoreError."""


class Seat:
    """The right of one connection to exist. It returns when the connection drops it, or is itself dropped."""

    __slots__ = ("_dials",)

    def __init__(self, dials: ReferenceType[Dials[Any]]) -> None:
        self._dials = dials

    def __del__(self) -> None:
        dials = self._dials()
        if dials is not None:
            dials.vacate()


class Dials(Generic[C]):
    """Connects to one server in the background, at most as often as callers wait. The base of both pools, whose own
    methods are called by dial threads."""

    def __init__(
        self, connect: Connect[C], now: Callable[[], float], round_trip: RoundTrip, shown: str,
        limit: int | None, patience: float, dials: int = DIALS,
    ) -> None:  # fmt: skip
        """`shown`: the server in error texts. `limit`: how many connections may exist, dials included; None: any
        number. `patience`: how many seconds a caller waits at most, if it can try another server."""
        self._connect = connect
        self.now = now
        self._shown = shown
        self._patience = patience
        self._most = dials
        self.round_trip = round_trip
        self.generation = 0
        """Raised when something learned about the server makes older connections unusable."""
        self._free: SimpleQueue[None] | None = None
        if limit is not None:
            self._free = SimpleQueue()
            for _ in range(limit):
                self._free.put(None)
        self._mutex = _thread.allocate_lock()
        self._under_way = 0
        self._starting_until = 0.0
        self._aborts: dict[int, Abort] = {}
        """The abort function of each dial, by thread."""
        self._rests_until = 0.0
        self._failure: StoreError = Unsent("")
        self._closed = False

    def wanted(self) -> int:
        """The number of callers that wait for a connection and were not woken yet."""
        raise NotImplementedError

    def arrived(self, connection: C) -> None:
        """Must call `landed`."""
        raise NotImplementedError

    def failed(self, error: StoreError) -> None:
        raise NotImplementedError

    def vacated(self) -> None:
        """A seat is free again. Called by the thread that dropped the connection."""
        raise NotImplementedError

    def dial(self) -> None:
        """Start a dial if fewer are under way than wanted. Returns at once."""
        if self._closed or self._under_way >= min(self.wanted(), self._most):
            return
        now = self.now()
        if now < self._starting_until or (self._free is not None and self._free.empty()):
            return
        self._starting_until = now + _STARTING  # a crowd of callers must not start a crowd of threads
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
            self._run()  # Python 3.12 starts no thread at shutdown

    def vacate(self) -> None:
        if self._free is not None:
            self._free.put(None)
            self.vacated()

    def check(self) -> None:
        """Raise if the client was closed, or if a dial failed a moment ago: a dead server must not cost every caller
        its timeout."""
        if self._closed:
            raise closed()
        if self.now() < self._rests_until:
            raise self._failed_before()

    def _failed_before(self) -> Unsent:
        return Unsent(f"{self._failure.what}, a moment ago", step=self._failure.step)

    def end_of_wait(self, until: float) -> float:
        now = self.now()
        return min(max(until, now + self.round_trip.least), now + max(self._patience, self.round_trip.attempt))

    def too_late(self) -> Unsent:
        if self.now() < self._rests_until + CONNECTING:  # the last dial failed: its reason explains more
            return self._failed_before()
        if self._free is not None and self._free.empty() and not self._under_way:
            return Unsent("all connections of this client are in use", step="raise connections=")
        step = "check that the server runs there and is not too far away"
        return Unsent(f"no connection to {self._shown} in time", step=step)

    def _is_needed(self) -> bool:
        with self._mutex:
            if self._closed or self._under_way >= min(self.wanted(), self._most):
                return False
            try:
                if self._free is not None:
                    self._free.get_nowait()
            except Empty:
                return False
            self._under_way += 1
            return True

    def _run(self) -> None:
        """Dial in a thread of its own, which also decides whether the dial is needed: it cannot be interrupted."""
        is_needed = self._is_needed()
        self._starting_until = 0.0
        self.dial()  # for callers that came meanwhile
        if not is_needed:
            return
        seat = None if self._free is None else Seat(ref(self))
        generation = self.generation
        failure: StoreError
        try:
            connection = self._connect(self.now() + CONNECTING, self._begun)
        except StoreError as error:
            failure = own(error)  # without the traceback: its frames lead back here
        except BaseException as error:  # noqa: BLE001  (the waiters are told)
            failure = Unsent(f"no connection: {type(error).__name__}", step="look at the cause of this error")
            failure.__cause__ = error.with_traceback(None)
        else:
            connection.seat, connection.generation = seat, generation
            del seat
            self._rests_until = 0.0
            self.arrived(connection)
            return
        del seat
        if isinstance(failure, StoreUnavailable):
            self._failure, self._rests_until = failure, self.now() + REST
        self.landed()
        self.failed(failure)

    def landed(self) -> None:
        self._aborts.pop(_thread.get_ident(), None)
        with self._mutex:
            self._under_way -= 1

    def _begun(self, abort: Abort) -> None:
        self._aborts[_thread.get_ident()] = abort
        if self._closed:  # not earlier: close() may have looked just before
            raise closed()

    def abort(self) -> None:
        """End all dials, after the pool was closed."""
        for abort in tuple(self._aborts.values()):
            abort()


class Waiter:
    """A thread that waits for a connection."""

    __slots__ = ("bell", "failure", "rung")

    def __init__(self) -> None:
        self.bell = _thread.allocate_lock()
        self.bell.acquire()
        self.failure: StoreError | None = None
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        with suppress(RuntimeError):  # two rang at once
            self.bell.release()


class Pool(Dials[C]):
    """The connections of one queue of the sync API to one server. A waiting claim uses none of them."""

    def __init__(
        self, connect: Connect[C], now: Callable[[], float], round_trip: RoundTrip, shown: str,
        *, limit: int | None = None, keep: int, patience: float = inf, dials: int = DIALS,
    ) -> None:  # fmt: skip
        """`keep`: idle connections to keep. `dials`: dials at the same time."""
        super().__init__(connect, now, round_trip, shown, limit, patience, dials)
        self._keep = keep
        self.waiters: deque[Waiter] = deque()
        self.idle: deque[C] = deque()
        """Used last in, first out, so that surplus connections age."""

    def take(self, until: float) -> C:
        return self.take_now() or self._wait(until)

    def take_now(self) -> C | None:
        """Take an idle connection that is usable, if there is one."""
        while self.idle:
            try:
                connection = self.idle.pop()
            except IndexError:  # another thread was quicker
                break
            if connection.generation == self.generation and (
                self.now() - connection.used_at < TRUSTED or not connection.is_stale()
            ):
                return connection
            connection.close()
        return None

    def give(self, connection: C, *, is_checked: bool = False) -> None:
        """Return a connection after a complete exchange or a refusal. `is_checked`: it is known to be reusable."""
        is_reusable = is_checked or connection.is_reusable()
        if not is_reusable or connection.generation != self.generation or len(self.idle) >= self._keep:
            connection.end()
            return
        self.idle.append(connection)
        if self.waiters:
            self._ring()
        if self._closed:  # not earlier: close() may have looked just before
            self._end_all()

    async def exchange(self, request: Any, until: float) -> Any:
        connection = self.take(until)
        try:
            reply = connection.exchange(request, until)  # any other exception closes it
        except Refusal:
            self.give(connection)
            raise
        self.give(connection)
        return reply

    async def connect(self, until: float) -> None:
        """Make sure that one connection is open and idle."""
        if not self.idle:
            self.give(self.take(until))

    def renew(self) -> None:
        """Stop using the connections that are open now."""
        self.generation += 1

    def close(self) -> None:
        self._closed, self.generation = True, CLOSED
        self.abort()
        self._end_all()
        for waiter in tuple(self.waiters):
            waiter.ring()

    def abandon(self) -> None:
        self._closed = True
        while self.idle:
            self.idle.pop().abandon()

    def _end_all(self) -> None:
        while self.idle:
            with suppress(IndexError):
                self.idle.pop().end()

    def _wait(self, until: float) -> C:
        self.check()
        end, waiter = self.end_of_wait(until), Waiter()
        self.waiters.append(waiter)
        try:
            while True:
                waiter.rung = False
                with suppress(IndexError):
                    return self.idle.pop()
                if waiter.failure is not None:
                    raise own(waiter.failure)
                if self._closed:
                    raise closed()
                self.dial()
                left = end - self.now()
                if left <= 0:
                    raise self.too_late()
                waiter.bell.acquire(timeout=min(left, NAP))
        finally:
            with suppress(ValueError):
                self.waiters.remove(waiter)
            if self.idle:  # pass on a wake-up that it did not use
                self._ring()

    def _ring(self) -> None:
        for waiter in tuple(self.waiters):
            if not waiter.rung:
                waiter.ring()
                return

    def wanted(self) -> int:
        return sum(not waiter.rung for waiter in tuple(self.waiters))

    def arrived(self, connection: C) -> None:
        self.idle.append(connection)
        self._ring()
        self.landed()
        if self._closed:
            self._end_all()
        else:
            self.dial()

    def failed(self, error: StoreError) -> None:
        for waiter in tuple(self.waiters):
            waiter.failure = error
            waiter.ring()

    def vacated(self) -> None:
        self._ring()


def shut_down(sock: socket.socket | None) -> None:
    """Make threads that block on it fail; its owner closes it."""
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def not_watched(abort: Abort) -> None:
    """The `Begun` of a dial that is never aborted."""


def closed() -> Closed:
    return Closed("this client was closed", step="connect again")


def own(error: StoreError) -> StoreError:
    """Copy an error, because each caller writes the name of its lock into the error that it raises."""
    copy = type(error)(error.what, step=error.step)
    copy.__cause__ = error.__cause__
    return copy
