"""The one connection on which a client receives messages, however many of its callers wait.

A waiting caller reads it for all (sync API), or the event loop does (async API). A thread of the subscriber connects,
reconnects after a loss, and pings a silent server while anybody waits. Messages are lost with a connection, so after a
reconnect all waiters are told to look.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from dibs.backends.common.wakeup import Wakeup
from dibs.core.queue import LOOK, ClientIdentity
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import Closed

SILENCE = 5.0
"""Seconds without a byte from the server until it is pinged. The connection is lost after half as many more."""
PAUSE = 0.25
"""Seconds between two attempts to connect."""
_CLOSING = 1.0
Messages = list[tuple[bytes, bytes]]
"""Keys of the inbox, each with its message."""


class Subscription(Protocol):
    """A connection that receives messages."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close it without a message to the server."""


S = TypeVar("S", bound=Subscription)
S_contra = TypeVar("S_contra", bound=Subscription, contravariant=True)


class MessageProtocol(Protocol[S_contra]):
    """A store's part of the subscriber."""

    failures: type[Exception]
    """Raised by `read` and `ping` when the connection broke."""

    def connect(self) -> None:
        """Connect, subscribe, and call `Subscriber.adopt`. Blocks."""

    def failed(self, error: Exception) -> float | None:
        """Called after `connect` failed. Gives the seconds until the next attempt; None: when the next caller waits."""

    def read(self, connection: S_contra, found: Messages) -> bool:
        """Add the messages that have arrived, without blocking. Gives whether the server has sent anything."""

    def ping(self, connection: S_contra) -> None:
        """Send a request that makes the server reply, without blocking. Called with the mutex."""

    def closed(self) -> None:
        """Wake the callers that wait for something other than a message."""


class Waiters:
    """The callers that wait for messages, and the thread that works while there are any."""

    def __init__(self, runtime: Runtime, inbox: Inbox, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._inbox = inbox
        self.keys: dict[bytes, None] = {}
        """Their keys in the inbox."""
        self.is_awake = False
        """The thread notices a new key by itself."""
        self.worker = runtime.blocking().worker(turn)

    def listen(self, key: bytes) -> None:
        """Keep the thread working for this key until `ignore`."""
        self.keys[key] = None
        if not self.is_awake:
            self.worker.ring()

    def ignore(self, key: bytes) -> None:
        self.keys.pop(key, None)

    async def hear(self, key: bytes, until: float) -> bytes | None:
        """Wait for the next message for a key: a claim of this client, or something that it watches."""
        is_listening = key in self.keys
        try:
            self.listen(key)
            return await self._inbox.wait(key, until)
        finally:
            if not is_listening:
                self.ignore(key)


class Subscriber(Generic[S]):
    def __init__(self, protocol: MessageProtocol[S], runtime: Runtime, me: ClientIdentity) -> None:
        self._protocol = protocol
        self._now = runtime.now
        self._inbox = me.inbox
        self.connection: S | None = None
        self.wanted: dict[bytes, None] = {}
        """The keys of callers that wait for a connection; the thread connects for them too."""
        self.rest_until = 0.0
        """The instant of the next attempt to connect."""
        self._heard_at = self._pinged_at = 0.0
        self._closed = False
        self.mutex = runtime.blocking().mutex()
        """Guards operations on a connection that only one thread may do at a time."""
        self._reading = allocate_lock()
        self._wakeup = Wakeup()
        self.fileno, self.poke = self._wakeup.fileno, self._wakeup.poke
        self._waiters = waiters = Waiters(runtime, me.inbox, self._turn)
        self.listen, self.ignore, self.hear = waiters.listen, waiters.ignore, waiters.hear
        self.ring = waiters.worker.ring
        me.inbox.listen(self)

    def check_open(self) -> None:
        if self._closed:
            raise Closed("this client was closed", step="connect again")

    def adopt(self, connection: S, *, is_first: bool = False) -> None:
        """Use this connection. `is_first`: nobody can have missed a message. Called with the mutex."""
        self.check_open()
        if not is_first:
            self.tell_to_look()  # earlier messages to these waiters are lost
        self._wakeup.attend(connection.fileno())
        self._heard_at = self._now()
        self.connection = connection
        self.check_open()  # again: `close` takes no mutex, and may have seen no connection

    def lose(self, connection: S) -> None:
        """Close the connection. Called with the mutex; the caller rings afterwards, for the next connection."""
        if self.connection is connection:
            self.connection = None
            self._wakeup.ignore(connection.fileno())
            connection.close()

    def tell_to_look(self) -> None:
        self._inbox.deliver_all([(key, LOOK.value) for key in list(self._waiters.keys)])

    def close(self) -> None:
        """Does not take the mutex: a signal handler may close the client while its own thread is reading."""
        self._closed = True
        self._waiters.worker.stop()
        self._protocol.closed()
        self.poke()
        was_read = self._reading.acquire(timeout=_CLOSING)  # a reader stops soon
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self._wakeup.close()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """In a forked child: close the parent's sockets. Takes no lock: a thread of the parent may have held it."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()
        self._wakeup.close()

    # As a source of messages: see core/runtime.py.

    def read(self) -> Messages:
        self._wakeup.clear()
        connection = self.connection
        if connection is None:
            return []
        found: Messages = []
        try:
            if self._protocol.read(connection, found):
                self._heard_at = self._now()
            return found
        except BaseException as error:  # also an interrupt: messages may be lost, so all must look
            with self.mutex:
                self.lose(connection)
            self.ring()  # without the mutex: at shutdown this thread connects itself
            if isinstance(error, self._protocol.failures):
                return found
            raise

    def receive(self, patience: float) -> Messages:
        with self._reading:
            if self._closed:
                return []
            self._wakeup.sleep(patience)
            return self.read()

    # In its own thread.

    async def _turn(self) -> float | None:
        self._waiters.is_awake = False  # first: a caller that comes later is seen below, or rings
        if self._closed:
            return None
        connection, now = self.connection, self._now()
        if connection is None:
            if now < self.rest_until:
                return self._again(self.rest_until - now)
            try:
                self._protocol.connect()
            except Exception as error:  # noqa: BLE001  (also from a user's function; callers are told)
                pause = self._protocol.failed(error)
                return None if pause is None else self._again(pause)
        elif self._waiters.keys and now - self._heard_at >= SILENCE:
            self._ping(connection)
        return self._again(0.0 if self.connection is None else SILENCE / 2)

    def _ping(self, connection: S) -> None:
        with self.mutex:
            if self._pinged_at > self._heard_at:
                self.lose(connection)
                return
            self._pinged_at = self._now()
            try:
                self._protocol.ping(connection)
            except self._protocol.failures:
                self.lose(connection)

    def _again(self, pause: float) -> float | None:
        """Seconds until the next turn. None if nobody waits: the thread ends, and a forgotten client can be freed."""
        self._waiters.is_awake = bool(self._waiters.keys or self.wanted)
        return pause if self._waiters.is_awake else None
