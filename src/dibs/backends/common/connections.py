"""Connections to one server: the pool of the sync API, connecting in the background, and the measured round trip.

A connection is opened by a daemon thread with a budget of its own, never by a caller. A caller that runs out of time
leaves it on its way, and the next caller takes it over. A connection that arrives while nobody waits becomes idle.

Arrived and returned connections always go to the idle ones, and waiters are only woken. So a waiter that is
interrupted, cancelled or late cannot lose a connection. A caller may be interrupted at any line, and dial threads never
are: only they change the count of dials. A connection that an interrupt drops is closed by its destructor, and its seat
in the pool comes back in the same way.
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
"""Connections of a pool that may be on their way at a time: a crowd of callers shares what has arrived."""
SESSION_DIALS = 8
"""The same where every caller needs a connection of its own."""
REST = 0.25
"""Seconds during which a server that could not be reached is not dialled again."""
TRUSTED = 1.0
"""Seconds after which an idle connection is checked before it is used."""
_STARTING = 0.1
"""Seconds for which a thread that was started and has not begun yet keeps others from being started."""
CLOSED = -1
"""The generation that no connection has."""
NAP = 0.5
"""Seconds after which a waiter looks again, in case an interrupt swallowed its wake-up."""


Abort = Callable[[], None]
Begun = Callable[[Abort], None]
"""Called by a dial when it begins to block on a socket, with what makes it fail at once: the pool was closed."""


class Connection:
    """A connection, as a pool uses it. One user at a time; anything that ends an exchange early closes it, also an
    interrupt, because the reply to an unfinished request must not be taken for the reply to the next one.

    `offset` is how far the server's clock is ahead of ours, at least: each reply of ours says the server's time, and
    that was read before the reply arrived.
    """

    seat: object = None
    """Its place in the pool, which comes back with it."""
    generation = 0
    """The state of knowledge about the server when it was opened: see `Dials.generation`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.round_trip = RoundTrip(STEP)
        """Its own until it is open: a first reply may take a whole step."""
        self.offset = -inf
        self.used_at = self.sent_at = now()

    def opened(self, round_trip: RoundTrip) -> None:
        """The dial is done; its last reply is the first that counts for all."""
        self.round_trip = round_trip
        round_trip.add(self.used_at - self.sent_at)

    def note_reply(self, there: float | None) -> None:
        """Measure the reply that just arrived. It says the server's time of an instant after the request was sent, and
        before now; None: it says nothing. A late reply says less than what is already known."""
        sent_at = self.sent_at
        self.used_at = now = self._now()
        self.round_trip.add(now - sent_at)
        if there is not None:
            offset, late = there - now, there - sent_at
            offset = max(offset, self.offset)
            self.offset = min(late, offset)

    def exchange(self, request: Any, until: float) -> Any:
        """Ask, and wait for the reply. A Refusal may leave it reusable."""
        raise NotImplementedError

    def is_reusable(self) -> bool:
        """Nothing of an earlier request is left on it."""
        raise NotImplementedError

    def is_stale(self) -> bool:
        """While it was idle the server closed it, or sent what nobody asked for."""
        raise NotImplementedError

    def close(self) -> None:
        """At once. Gives its seat back."""
        raise NotImplementedError

    def end(self) -> None:
        """Close it in order: an idle one says goodbye, where the protocol has that."""
        self.close()

    def abandon(self) -> None:
        """In a forked child: close it without a word to the server, whose other end is the parent's."""
        self.close()


C = TypeVar("C", bound=Connection)
Connect = Callable[[float, Begun], C]
"""Blocks until the given instant, and raises StoreError."""


class Seat:
    """The right of one connection to exist. It comes back when the connection drops it, or is itself dropped."""

    __slots__ = ("_dials",)

    def __init__(self, dials: ReferenceType[Dials[Any]]) -> None:
        self._dials = dials

    def __del__(self) -> None:
        dials = self._dials()
        if dials is not None:
            dials.vacate()


class Dials(Generic[C]):
    """Connections on their way to one server, at most as many as callers wait for. The base of both pools: what they
    add is called by dial threads."""

    def __init__(
        self, connect: Connect[C], now: Callable[[], float], round_trip: RoundTrip, shown: str,
        limit: int | None, patience: float, dials: int = DIALS,
    ) -> None:  # fmt: skip
        """`shown`: the server, for error texts. `limit`: connections that may exist at a time, those on their way
        included; None: any number. `patience`: seconds that a caller waits for a connection at most, where it may have
        another server to go to."""
        self._connect = connect
        self.now = now
        self._shown = shown
        self._patience = patience
        self._most = dials
        self.round_trip = round_trip
        self.generation = 0
        """Counts what was learned about the server that makes older connections unusable."""
        self._free: SimpleQueue[None] | None = None
        if limit is not None:
            self._free = SimpleQueue()
            for _ in range(limit):
                self._free.put(None)
        self._mutex = _thread.allocate_lock()
        self._under_way = 0
        self._starting_until = 0.0
        self._aborts: dict[int, Abort] = {}
        """How to abort each dial that is under way, by its thread."""
        self._rests_until = 0.0
        self._failure: StoreError = Unsent("")
        self._closed = False

    def wanted(self) -> int:
        """How many callers wait for a connection and were not woken yet."""
        raise NotImplementedError

    def arrived(self, connection: C) -> None:
        """Must call `landed`."""
        raise NotImplementedError

    def failed(self, error: StoreError) -> None:
        raise NotImplementedError

    def vacated(self) -> None:
        """A seat is free again. By whichever thread dropped the connection."""
        raise NotImplementedError

    def dial(self) -> None:
        """Once more, if fewer are on their way than wanted. Returns at once."""
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
            self._run()  # the interpreter ends and starts no thread any more (Python 3.12)

    def vacate(self) -> None:
        if self._free is not None:
            self._free.put(None)
            self.vacated()

    def check(self) -> None:
        """Raises if the client was closed, or what went wrong a moment ago: a dead server must not cost every caller
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
        if self.now() < self._rests_until + CONNECTING:  # the last dial failed, and its reason says more
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
        """In a thread of its own, which decides by itself whether it is needed: nobody can interrupt that."""
        is_needed = self._is_needed()
        self._starting_until = 0.0
        self.dial()  # for callers that came meanwhile, or want a second one
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
        if self._closed:  # only now: close() may just have looked
            raise closed()

    def abort(self) -> None:
        """After it was closed: end the dials on their way."""
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
    """The connections of one line of the sync API to one server. A waiting claim uses none of them."""

    def __init__(
        self, connect: Connect[C], now: Callable[[], float], round_trip: RoundTrip, shown: str,
        *, limit: int | None = None, keep: int, patience: float = inf, dials: int = DIALS,
    ) -> None:  # fmt: skip
        """`keep`: idle connections that are kept. `dials`: how many may be on their way at a time."""
        super().__init__(connect, now, round_trip, shown, limit, patience, dials)
        self._keep = keep
        self._waiters: deque[Waiter] = deque()
        self.waiters = self._waiters
        self.idle: deque[C] = deque()
        """The last one in is used first, so the first ones in grow old."""

    def take(self, until: float) -> C:
        return self.take_now() or self._wait(until)

    def take_now(self) -> C | None:
        """An idle one; None: there is none."""
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
        """After a whole exchange, or a refusal. `is_checked`: it is reusable for sure."""
        is_reusable = is_checked or connection.is_reusable()
        if not is_reusable or connection.generation != self.generation or len(self.idle) >= self._keep:
            connection.end()
            return
        self.idle.append(connection)
        if self._waiters:
            self._ring()
        if self._closed:  # only now: close() may just have looked
            self._end_all()

    async def exchange(self, request: Any, until: float) -> Any:
        connection = self.take(until)
        try:
            reply = connection.exchange(request, until)  # whatever ends it early closes it
        except Refusal:
            self.give(connection)
            raise
        self.give(connection)
        return reply

    async def connect(self, until: float) -> None:
        """Have one connection open and idle."""
        if not self.idle:
            self.give(self.take(until))

    def renew(self) -> None:
        """Use no connection any more that is open now."""
        self.generation += 1

    def close(self) -> None:
        self._closed, self.generation = True, CLOSED
        self.abort()
        self._end_all()
        for waiter in tuple(self._waiters):
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
        self._waiters.append(waiter)
        try:
            while True:
                waiter.rung = False
                with suppress(IndexError):
                    return self.idle.pop()  # it has just come
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
                self._waiters.remove(waiter)
            if self.idle:  # it may have been woken for one that it did not take
                self._ring()

    def _ring(self) -> None:
        for waiter in tuple(self._waiters):
            if not waiter.rung:
                waiter.ring()
                return

    def wanted(self) -> int:
        return sum(not waiter.rung for waiter in tuple(self._waiters))

    def arrived(self, connection: C) -> None:
        self.idle.append(connection)
        self._ring()
        self.landed()
        if self._closed:
            self._end_all()
        else:
            self.dial()

    def failed(self, error: StoreError) -> None:
        for waiter in tuple(self._waiters):
            waiter.failure = error
            waiter.ring()

    def vacated(self) -> None:
        self._ring()


def shut_down(sock: socket.socket | None) -> None:
    """Make what blocks on it fail; its owner closes it."""
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def not_watched(abort: Abort) -> None:
    """For a dial that nobody ends early."""


def closed() -> Closed:
    return Closed("this client was closed", step="connect again")


def own(error: StoreError) -> StoreError:
    """A copy: each caller writes the name of its lock into the error that it raises."""
    copy = type(error)(error.what, step=error.step)
    copy.__cause__ = error.__cause__
    return copy
