"""The one connection on which a client hears messages, however many of its callers wait.

A waiting caller reads it for all (sync API), or the event loop does (async API). A thread of the subscriber connects,
connects again after a loss, and pings a silent server while somebody waits. Messages are lost with a connection, so the
next one begins by telling all waiters to look.
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
"""Seconds without a byte from the server after which it is pinged; half as many later the connection counts as lost."""
PAUSE = 0.25
"""Seconds between two attempts to connect."""
_CLOSING = 1.0
Messages = list[tuple[bytes, bytes]]
"""Keys of the inbox, each with its message."""


class Subscription(Protocol):
    """A connection that hears messages."""

    def fileno(self) -> int: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """In a forked child: close what the parent opened, without a word to the server."""


S = TypeVar("S", bound=Subscription)
S_contra = TypeVar("S_contra", bound=Subscription, contravariant=True)


class MessageProtocol(Protocol[S_contra]):
    """A store's own part."""

    failures: type[Exception]
    """Raised by `read` and `ping` when the connection broke."""

    def connect(self) -> None:
        """Blocks. Subscribes, and calls `Subscriber.adopt`."""

    def failed(self, error: Exception) -> float | None:
        """It did not connect. Gives the seconds until the next attempt; None: once the next caller waits."""

    def read(self, connection: S_contra, found: Messages) -> bool:
        """Add the messages that have arrived; never blocks. False: the server has sent nothing."""

    def ping(self, connection: S_contra) -> None:
        """Have the server send something; never blocks. Called with the mutex."""

    def closed(self) -> None:
        """Tell the callers that wait for anything but a message."""


class Waiters:
    """The callers that wait for messages, and the thread that works while there are any."""

    def __init__(self, runtime: Runtime, inbox: Inbox, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> None:
        self._inbox = inbox
        self.keys: dict[bytes, None] = {}
        """Their keys in the inbox."""
        self.is_awake = False
        """The thread sees a new key without being rung."""
        self.worker = runtime.blocking().worker(turn)

    def listen(self, key: bytes) -> None:
        """Until `ignore`."""
        self.keys[key] = None
        if not self.is_awake:
            self.worker.ring()

    def ignore(self, key: bytes) -> None:
        self.keys.pop(key, None)

    async def hear(self, key: bytes, until: float) -> bytes | None:
        """The next message for that key: about a claim of this client, or about something that it watches."""
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
        """The keys of callers that wait for a connection: the thread goes on trying for them too."""
        self.rest_until = 0.0
        """No attempt to connect is made before."""
        self._heard_at = self._pinged_at = 0.0
        self._closed = False
        self.mutex = runtime.blocking().mutex()
        """For what only one thread at a time may do with a connection."""
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
        """Hear by this connection. `is_first`: nobody can have missed a message. Called with the mutex."""
        self.check_open()
        if not is_first:
            self.tell_to_look()  # earlier messages to these waiters are lost
        self._wakeup.attend(connection.fileno())
        self._heard_at = self._now()
        self.connection = connection
        self.check_open()  # again: `close` takes no mutex, and may have seen no connection

    def lose(self, connection: S) -> None:
        """Called with the mutex. The caller rings afterwards, for the next connection."""
        if self.connection is connection:
            self.connection = None
            self._wakeup.ignore(connection.fileno())
            connection.close()

    def tell_to_look(self) -> None:
        self._inbox.deliver_all([(key, LOOK.value) for key in list(self._waiters.keys)])

    def close(self) -> None:
        """Without the mutex: a signal's handler may close what its own thread is reading."""
        self._closed = True
        self._waiters.worker.stop()
        self._protocol.closed()
        self.poke()
        was_read = self._reading.acquire(timeout=_CLOSING)  # a caller that still reads is about to stop
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()
        self._wakeup.close()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """A forked child lets go of what is its parent's, of which no lock can be trusted."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()
        self._wakeup.close()

    # As a source of messages: see core/runtime.py.

    def read(self) -> Messages:
        self._wakeup.settle()
        connection = self.connection
        if connection is None:
            return []
        found: Messages = []
        try:
            if self._protocol.read(connection, found):
                self._heard_at = self._now()
            return found
        except BaseException as error:  # after an interrupt too: what was read may be lost, so all must look
            with self.mutex:
                self.lose(connection)
            self.ring()  # without the mutex: while Python ends, it is this very thread that connects
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
        self._waiters.is_awake = False  # first: a caller that comes from now on is seen below, or rings
        if self._closed:
            return None
        connection, now = self.connection, self._now()
        if connection is None:
            if now < self.rest_until:
                return self._again(self.rest_until - now)
            try:
                self._protocol.connect()
            except Exception as error:  # noqa: BLE001  (also of a user's own function; callers are told)
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
        """While nobody waits the thread may end, and with it what keeps a forgotten client here."""
        self._waiters.is_awake = bool(self._waiters.keys or self.wanted)
        return pause if self._waiters.is_awake else None
