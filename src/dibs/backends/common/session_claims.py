"""Session mode: each claim lives by its own connection, and the server frees the locks of a session that ends.

`SessionPool` has the connections: one for each claim that waits or holds, and a few idle ones. `SessionClaims` knows
the connection of each claim, and tells a claim when its connection has ended.

A claim's connection has one user at a time. The user takes it from the claim, and then puts it back, returns it to the
pool or drops it. A connection that an interrupt loses in between is closed by its destructor. If the state of a
connection is in doubt, it is closed, and the server frees its locks.

A waiting connection has sent its request, and the server replies when the lock is granted. The sockets of all waiting
connections are one source of messages (core/runtime.py): in threads one waiter reads for all, in asyncio the loop does.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from dibs.backends.common.connections import SESSION_DIALS, Begun, Connect, Connection, Pool
from dibs.backends.common.disconnects import Disconnects
from dibs.backends.common.executor import Refusal
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.common.wakeup import Readiness, Wakeup
from dibs.core.queue import LOOK, ClientIdentity, Signal
from dibs.core.rule import Claim
from dibs.core.runtime import Runtime, Source
from dibs.errors import StoreError
from dibs.runtime.living import Living

Message = tuple[bytes, bytes]
_TRUSTED = 0.1
"""Seconds after which an idle connection is checked before it is used."""
_NAP = 0.001
"""Seconds between two checks of a connection that another caller uses."""
_CLOSING = 1.0
"""Seconds that closing waits for the reader."""


class SessionConnection(Connection):
    """A connection that a claim can live by."""

    readiness: Readiness
    is_flushed = True
    """All of the request has been sent."""
    claim_id: bytes | None = None
    """The id of its claim."""
    is_ended = False
    """The kernel has reported its end."""

    def fileno(self) -> int:
        """The socket; also after it was closed, because it may still be watched."""
        raise NotImplementedError


C = TypeVar("C", bound=SessionConnection)


class SessionPool(Generic[C]):
    """The server ends a connection that is idle for longer than the client's lease."""

    def __init__(
        self, connect: Connect[C], runtime: Runtime, me: ClientIdentity, round_trip: RoundTrip, shown: str, keep: int
    ) -> None:
        """`keep`: idle connections to keep."""
        self._connect = connect
        self._now = runtime.now
        self._me = me
        self._keep = keep
        self._pool = Pool(self._connected, runtime.now, round_trip, shown, keep=keep, dials=SESSION_DIALS)
        self._idle = self._pool.idle
        self._open: Living[C] = Living()
        """Weak references, so that the destructor closes a connection that an interrupt dropped."""
        self._disconnects = Disconnects(runtime, self._ended, self._tidy)
        self._closed = False

    async def take(self, claim: Claim, runtime: Runtime, until: float) -> C:
        """Take a connection for the claim. One that does not arrive in time is left to the next caller."""
        connection = self.take_idle()
        if connection is None:
            connection = await runtime.offload(lambda: self._pool.take(until))
        connection.claim_id = claim.id
        return connection

    def take_idle(self) -> C | None:
        """Take a connection that can be used at once, if there is one."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            age = self._now() - connection.used_at
            # The server could end an older one before the request arrives.
            if not connection.is_ended and age < self._me.lease / 2 and (age < _TRUSTED or not connection.is_stale()):
                return connection
            self.drop(connection)
        return None

    def give(self, connection: C) -> None:
        """Return a connection that holds nothing and expects no reply."""
        connection.claim_id = None
        connection.used_at = self._now()
        if connection.is_ended or not connection.is_reusable() or len(self._idle) >= self._keep:
            self.drop(connection)
            return
        self._idle.append(connection)
        if self._closed:  # not earlier: close() may have looked just before
            self._pool.close()

    def drop(self, connection: C) -> None:
        """Close the connection; the server frees its locks."""
        self._disconnects.ignore(connection.fileno(), connection)
        self._open.discard(connection)
        connection.end()

    def close(self) -> None:
        self._closed = True
        self._disconnects.close()
        self._pool.close()

    def abandon(self) -> None:
        """In a forked child: close the sockets without a message to the server."""
        self._closed = True
        self._disconnects.abandon()
        for connection in self._open.now():
            connection.abandon()

    def _connected(self, until: float, begun: Begun) -> C:
        connection = self._connect(until, begun)
        self._open.add(connection)
        self._disconnects.attend(connection.fileno(), connection)
        return connection

    def _tidy(self) -> None:
        """Close old idle connections before the server does, which would write to its log."""
        before = self._now() - self._me.lease / 2
        while self._idle:
            try:
                connection = self._idle.popleft()
            except IndexError:  # another thread was quicker
                return
            if connection.used_at > before:
                self._idle.appendleft(connection)
                return
            self.drop(connection)

    def _ended(self, connection: C) -> None:
        """Called in the thread of `Disconnects`."""
        connection.is_ended = True  # first: a caller may be returning it now
        try:
            self._idle.remove(connection)
        except ValueError:
            if connection.claim_id is not None:
                self._me.news(connection.claim_id)
        else:
            self.drop(connection)


class State(Enum):
    ASKS = auto()
    WAITS = auto()
    HOLDS = auto()
    GONE = auto()


ASKS, WAITS, HOLDS, GONE = State


class SessionClaim(Generic[C]):
    __slots__ = ("claim", "free", "is_forsaken", "revoked", "state")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.state = ASKS
        self.free: list[C] = []
        """Its connection, while no caller uses it."""
        self.is_forsaken = False
        """The caller gave up without the connection, so the connection's user closes it."""
        self.revoked = False

    def take(self) -> C | None:
        """Take its connection. None: another caller uses it, or it is gone."""
        try:
            return self.free.pop()
        except IndexError:
            return None


S = TypeVar("S", bound=SessionClaim[Any])


class SessionClaims(Generic[S, C]):
    """The claims of one client, and a source of messages: see core/runtime.py."""

    def __init__(
        self, pool: SessionPool[C], hear: Callable[[S, C], Signal | None], now: Callable[[], float],
        subscriber: Source | None = None,
    ) -> None:  # fmt: skip
        """`hear`: read the reply for a waiting claim, without blocking. It gives None if there is none yet; else it has
        set the claim's state, and gives the signal for the waiter. `subscriber`: a source to read together with this
        one."""
        self.pool = pool
        self._hear = hear
        self._now = now
        self._subscriber = subscriber
        self._claims: dict[bytes, S] = {}
        self._waiting: dict[int, S] = {}
        """By file descriptor."""
        self._buried: dict[bytes, float] = {}
        """Abandoned claims, with the deadline until which a late copy of the join may come."""
        self._reading = allocate_lock()
        self._closed = False
        self._wakeup = Wakeup()
        self.fileno, self.poke = self._wakeup.fileno, self._wakeup.poke
        if subscriber is not None:
            self._wakeup.attend(subscriber.fileno())

    def find(self, claim: Claim) -> S | None:
        return self._claims.get(claim.id)

    def begin(self, one: S) -> None:
        self._claims[one.claim.id] = one

    def finish(self, claim: Claim) -> None:
        self._claims.pop(claim.id, None)

    def bury(self, claim: Claim) -> None:
        """Make a late join of this claim, from another thread, do nothing."""
        now = self._now()
        for id in list(self._buried):
            if self._buried.get(id, now) < now:
                self._buried.pop(id, None)
        self._buried[claim.id] = claim.by

    def is_void(self, claim: Claim) -> bool:
        """Whether the join is too late, or was given up before."""
        return self._now() > claim.by or claim.id in self._buried

    async def have(self, one: S, runtime: Runtime, until: float) -> C | None:
        """Take its connection once it is free. None: it is gone, or in use until then."""
        while one.state is not GONE:
            connection: C | None = one.take()
            if connection is not None or self._now() >= until:
                return connection
            await runtime.sleep(_NAP)
        return None

    def put_back(self, one: S, connection: C) -> None:
        one.free.append(connection)
        if one.is_forsaken or self._closed:  # not earlier: both may have looked just before
            self._clear(one)

    def give_back(self, one: S, connection: C) -> None:
        """Return the connection of a claim that holds nothing any more."""
        one.state = GONE
        self.pool.give(connection)

    def drop(self, one: S, connection: C) -> None:
        """Close its connection, which ends its hold or its wait."""
        self.stop_waiting(one, connection)
        one.state = GONE
        self.pool.drop(connection)

    def forsake(self, one: S) -> None:
        """Give the claim up. If another caller uses its connection, that caller closes it."""
        one.is_forsaken = True
        self._clear(one)

    def _clear(self, one: S) -> None:
        while (connection := one.take()) is not None:
            self.drop(one, connection)

    def wait(self, one: S, connection: C) -> None:
        """The claim waits for the reply to a request that was sent on the connection."""
        one.state = WAITS
        self._waiting[connection.fileno()] = one
        try:
            self._wakeup.attend(connection.fileno())
        except ValueError:  # this client was closed meanwhile
            one.state = GONE

    def stop_waiting(self, one: S, connection: C) -> None:
        fd = connection.fileno()
        if self._waiting.get(fd) is one:  # the descriptor may belong to another claim by now
            self._waiting.pop(fd, None)
            self._wakeup.ignore(fd)

    def look(self, one: S) -> list[Message]:
        """Check without blocking whether a waiting claim holds now. A caller that uses its connection checks too."""
        if one.state is not WAITS or (connection := one.take()) is None:
            return []
        signal: Signal | None = None
        try:
            if one.state is WAITS:  # again: now no other caller can change it
                signal = self._hear(one, connection)
            if signal is not None:
                self.stop_waiting(one, connection)
            if one.state is GONE:
                self.give_back(one, connection)
            else:
                self.put_back(one, connection)
        except (StoreError, Refusal):
            self.drop(one, connection)
            signal = LOOK  # the waiter asks again, and gets the reason
        except BaseException:
            self.drop(one, connection)
            raise
        return [] if signal is None else [(one.claim.id, signal.value)]

    def read(self) -> list[Message]:
        return self._read(self._wakeup.readable())

    def receive(self, patience: float) -> list[Message]:
        with self._reading:
            return [] if self._closed else self._read(self._wakeup.sleep(patience))

    def _read(self, ready: list[int]) -> list[Message]:
        self._wakeup.clear()
        messages = [] if self._subscriber is None else self._subscriber.read()
        for fd in ready:
            one = self._waiting.get(fd)
            if one is not None:
                messages += self.look(one)
        return messages

    def close(self) -> None:
        self._closed = True
        self.pool.close()
        self.poke()
        was_read = self._reading.acquire(timeout=_CLOSING)  # a reader stops soon
        for one in list(self._claims.values()):
            self.forsake(one)
        self._wakeup.close()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """In a forked child: close the parent's sockets. Takes no lock: a thread of the parent may have held it."""
        self.pool.abandon()
        self._wakeup.close()


def readable_in(runtime: Runtime) -> Callable[[SessionConnection, float], Awaitable[bool]]:
    """A function that waits until a connection is readable, or writable while its request is not flushed. It gives
    False at the deadline."""
    now = runtime.now
    if runtime.call_soon is None:

        async def in_threads(connection: SessionConnection, until: float) -> bool:
            return connection.readiness.wait(until - now(), writable=not connection.is_flushed)

        return in_threads
    import asyncio  # noqa: PLC0415  (threads do not need it)

    async def in_a_loop(connection: SessionConnection, until: float) -> bool:
        loop, fd = asyncio.get_running_loop(), connection.fileno()
        ready: asyncio.Future[bool] = loop.create_future()

        def finish(is_ready: bool) -> None:
            if not ready.done():
                ready.set_result(is_ready)

        loop.add_reader(fd, finish, True)
        if not connection.is_flushed:
            loop.add_writer(fd, finish, True)
        timer = loop.call_later(max(until - now(), 0.0), finish, False)
        try:
            return await ready
        finally:
            timer.cancel()
            loop.remove_reader(fd)
            loop.remove_writer(fd)

    return in_a_loop
