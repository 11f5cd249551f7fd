"""Claims that live by a connection of their own: session mode, where the server frees what an ended session held.

`SessionPool` has the connections: one for each claim that waits or holds, and a few idle ones. `SessionClaims` knows
which claim lives by which connection, and tells a claim when its connection has ended.

A claim's connection has one user at a time. The user takes it from the claim, and then puts it back, gives it back to
the pool or drops it. A connection that an interrupt loses in between is closed by its destructor. If anything about the
state of a connection is in doubt, it is closed, and the server frees what it held.

A connection that waits has asked, and the server replies when its turn has come. The sockets of all waiting connections
are one source of messages (core/runtime.py): in threads one of the waiters reads for all, in asyncio the loop does.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
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
"""Seconds between two looks at a connection that somebody else uses."""
_CLOSING = 1.0
"""Seconds that closing waits for the reader."""


class SessionConnection(Connection):
    """A connection that a claim can live by."""

    readiness: Readiness
    is_flushed = True
    """All of the request has been sent."""
    claim_id: bytes | None = None
    """The claim that lives by it."""
    is_ended = False
    """The kernel has reported its end."""

    def fileno(self) -> int:
        """Also of a closed one, which may still be watched."""
        raise NotImplementedError


C = TypeVar("C", bound=SessionConnection)
T = TypeVar("T")


class SessionPool(Generic[C]):
    """Each connection has a lease of its own: the server ends one that is silent for longer than the client's lease."""

    def __init__(
        self, connect: Connect[C], runtime: Runtime, me: ClientIdentity, round_trip: RoundTrip, shown: str, keep: int
    ) -> None:
        """`keep`: idle connections that are kept."""
        self._connect = connect
        self._now = runtime.now
        self._me = me
        self._keep = keep
        self._pool = Pool(self._connected, runtime.now, round_trip, shown, keep=keep, dials=SESSION_DIALS)
        self._idle = self._pool.idle
        self._open: Living[C] = Living()
        """Weakly: one that an interrupt has dropped is closed by that."""
        self._disconnects = Disconnects(runtime, self._ended, self._tidy)
        self._closed = False

    async def take(self, claim: Claim, runtime: Runtime, until: float) -> C:
        """A connection for that claim alone. One that does not arrive in time is left to the next caller."""
        connection = self.take_idle()
        if connection is None:
            connection = await runtime.offload(lambda: self._pool.take(until))
        connection.claim_id = claim.id
        return connection

    def take_idle(self) -> C | None:
        """One that can be used at once."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            age = self._now() - connection.used_at
            # An older one could be ended by the server before the request arrives there.
            if not connection.is_ended and age < self._me.lease / 2 and (age < _TRUSTED or not connection.is_stale()):
                return connection
            self.drop(connection)
        return None

    def give(self, connection: C) -> None:
        """It holds nothing, and no reply is on its way."""
        connection.claim_id = None
        connection.used_at = self._now()
        if connection.is_ended or not connection.is_reusable() or len(self._idle) >= self._keep:
            self.drop(connection)
            return
        self._idle.append(connection)
        if self._closed:  # not before: close() may just have looked
            self._pool.close()

    def drop(self, connection: C) -> None:
        """The server frees what it held."""
        self._disconnects.ignore(connection.fileno(), connection)
        self._open.discard(connection)
        connection.end()

    def close(self) -> None:
        self._closed = True
        self._disconnects.close()
        self._pool.close()

    def abandon(self) -> None:
        """In a forked child."""
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
        """End those that nobody will use any more, before the server does and writes it into its log."""
        before = self._now() - self._me.lease / 2
        for connection in expired(self._idle, lambda one: one.used_at <= before):
            self.drop(connection)

    def _ended(self, connection: C) -> None:
        """In the thread of `Disconnects`."""
        connection.is_ended = True  # first: a caller may give it back at this moment
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
        """Its connection, while nobody uses it."""
        self.is_forsaken = False
        """Given up by a caller that did not get the connection: the user of the connection closes it."""
        self.revoked = False

    def take(self) -> C | None:
        """Its connection, for the caller alone. None: somebody else uses it, or it is gone."""
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
        """`hear`: read the reply to a waiting claim, without blocking. None: it has not come; else the claim has its
        new state, and the signal is for the waiter. `subscriber`: a source that is read together with this one."""
        self.pool = pool
        self._hear = hear
        self._now = now
        self._subscriber = subscriber
        self._claims: dict[bytes, S] = {}
        self._waiting: dict[int, S] = {}
        """By the number of the socket."""
        self._buried: dict[bytes, float] = {}
        """Claims that were given up, until when a late copy of their join could come."""
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
        """Its join may still come, from another thread, and must do nothing then."""
        now = self._now()
        for id, by in list(self._buried.items()):
            if by < now:
                self._buried.pop(id, None)
        self._buried[claim.id] = claim.by

    def is_void(self, claim: Claim) -> bool:
        """Too late, or given up before."""
        return self._now() > claim.by or claim.id in self._buried

    async def have(self, one: S, runtime: Runtime, until: float) -> C | None:
        """Its connection, once nobody else uses it. None: it is gone, or was used until then."""
        while one.state is not GONE:
            connection: C | None = one.take()
            if connection is not None or self._now() >= until:
                return connection
            await runtime.sleep(_NAP)
        return None

    def put_back(self, one: S, connection: C) -> None:
        one.free.append(connection)
        if one.is_forsaken or self._closed:  # not before: forsake() or close() may just have looked
            self._clear(one)

    def give_back(self, one: S, connection: C) -> None:
        """It holds nothing any more."""
        one.state = GONE
        self.pool.give(connection)

    def drop(self, one: S, connection: C) -> None:
        """With its connection goes what it holds or waits for."""
        self.stop_waiting(one, connection)
        one.state = GONE
        self.pool.drop(connection)

    def forsake(self, one: S) -> None:
        """Somebody else may use its connection, and then closes it."""
        one.is_forsaken = True
        self._clear(one)

    def _clear(self, one: S) -> None:
        while (connection := one.take()) is not None:
            self.drop(one, connection)

    def wait(self, one: S, connection: C) -> None:
        """It has asked the server, which replies when its turn has come."""
        one.state = WAITS
        self._waiting[connection.fileno()] = one
        try:
            self._wakeup.attend(connection.fileno())
        except ValueError:  # this client was closed meanwhile
            one.state = GONE

    def stop_waiting(self, one: S, connection: C) -> None:
        fd = connection.fileno()
        if self._waiting.get(fd) is one:  # not another's whose socket has its number by now
            self._waiting.pop(fd, None)
            self._wakeup.ignore(fd)

    def look(self, one: S) -> list[Message]:
        """Whether the turn of a waiting claim has come; never blocks. If somebody uses its connection, they see it."""
        if one.state is not WAITS or (connection := one.take()) is None:
            return []
        signal: Signal | None = None
        try:
            if one.state is WAITS:  # still, now that nobody else can change that
                signal = self._hear(one, connection)
            if signal is not None:
                self.stop_waiting(one, connection)
            if one.state is GONE:
                self.give_back(one, connection)
            else:
                self.put_back(one, connection)
        except (StoreError, Refusal):
            self.drop(one, connection)
            signal = LOOK  # it asks again, and is told why
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
        self._wakeup.settle()
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
        was_read = self._reading.acquire(timeout=_CLOSING)  # a caller that still reads is about to stop
        for one in list(self._claims.values()):
            self.forsake(one)
        self._wakeup.close()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """A forked child lets go of what is its parent's, of which no lock can be trusted."""
        self.pool.abandon()
        self._wakeup.close()


def readable_in(runtime: Runtime) -> Callable[[SessionConnection, float], Awaitable[bool]]:
    """How to wait until a connection can be read, or written while its request is not all sent. False: not by then."""
    now = runtime.now
    if runtime.call_soon is None:

        async def in_threads(connection: SessionConnection, until: float) -> bool:
            return connection.readiness.wait(until - now(), writable=not connection.is_flushed)

        return in_threads
    from dibs.backends.common import aio_wait  # noqa: PLC0415  (threads do not need asyncio)

    async def in_a_loop(connection: SessionConnection, until: float) -> bool:
        return await aio_wait.readable(connection.fileno(), until - now(), writable=not connection.is_flushed)

    return in_a_loop


def expired(idle: deque[T], is_old: Callable[[T], bool]) -> Iterator[T]:
    """Pop the idle connections that are too old; safe beside threads that take and give.

    >>> idle = deque([1, 2, 7, 8])
    >>> list(expired(idle, lambda used_at: used_at < 5)), idle
    ([1, 2], deque([7, 8]))
    """
    while idle:
        try:
            one = idle.popleft()
        except IndexError:  # another thread was quicker
            return
        if not is_old(one):
            idle.appendleft(one)
            return
        yield one
