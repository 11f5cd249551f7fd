"""How a client receives messages about grants and changes: by LISTEN, on the connection of its subscriber.

Each client listens to its own channel. The routines send the ids of its claims that now hold, and the keys of watches
that changed. A connection is trusted only after a test message, sent by another connection, has arrived: a pooler that
shares connections by transaction accepts LISTEN but delivers nothing. Then all waiters poll. After a loss the next
connection is tested again. A message grants only by a claim's full id; anything else is a hint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from dibs.backends.common.connections import CONNECTING
from dibs.backends.common.subscriber import PAUSE, Messages, Subscriber
from dibs.backends.postgresql.connection import Dialler, PostgresqlConnection
from dibs.backends.postgresql.errors import Refusal
from dibs.core.queue import ClientIdentity
from dibs.core.runtime import Runtime
from dibs.errors import StoreUnavailable

_PROBE, _POOLED = 1.0, 0.25
"""Seconds to wait for the test message; less if a pooler replies, because it will hardly arrive."""
_FIRST = 3.0
"""Seconds that the first waiter waits for the connection."""
_DEAF = 30.0
"""Seconds until the next attempt if notifications do not arrive."""
_TRIED = b"tried"
"""The message to callers that wait for a connection, after each attempt."""
_LETTER = 33
"""Length of a message: an id in hexadecimal, and one letter."""


class PostgresqlSubscriber:
    failures: type[Exception] = psycopg.Error

    def __init__(self, dialler: Dialler, runtime: Runtime, me: ClientIdentity) -> None:
        self._dialler = dialler
        self._now = runtime.now
        self._inbox = me.inbox
        self._channel = f"dibs_{me.id.hex()}"
        self._fresh_id = runtime.fresh_id
        self.proven: PostgresqlConnection | None = None
        """The connection on which the test message has arrived."""
        self.source = self._subscriber = Subscriber[PostgresqlConnection](self, runtime, me)
        self.hear, self.close, self.abandon = self._subscriber.hear, self._subscriber.close, self._subscriber.abandon

    def hears(self) -> bool:
        connection = self._subscriber.connection
        return connection is not None and connection is self.proven

    def is_deaf(self) -> bool:
        """Whether messages were tried and do not arrive now."""
        return self._now() < self._subscriber.rest_until

    def begin(self) -> None:
        """Connect in the background."""
        if self._subscriber.connection is None and not self.is_deaf():
            self._subscriber.wanted.setdefault(b"", None)
            self._subscriber.ring()

    async def ready(self, send: Callable[[str, str], Awaitable[object]], until: float) -> bool:
        """Whether notifications arrive; the first callers wait for the test. `send` sends a message to a channel, by
        another connection."""
        if self.hears() or self.is_deaf():
            return self.hears()
        inbox, key, subscriber = self._inbox, self._fresh_id(), self._subscriber
        inbox.expect(key)
        subscriber.wanted[key] = None
        try:
            if subscriber.connection is None:
                subscriber.ring()
                await inbox.wait(key, min(until, self._now() + _FIRST))
            subscriber.check_open()
            connection = subscriber.connection
            if connection is not None:
                await send(self._channel, f"{key.hex()}l")
                probed = self._now() + (_PROBE if connection.is_direct else _POOLED)
                while (heard := await inbox.wait(key, probed)) == _TRIED:  # the thread has just connected
                    pass
                with subscriber.mutex:
                    if heard is None and not self.hears():
                        subscriber.rest_until = self._now() + _DEAF
                        subscriber.lose(connection)
                    elif subscriber.connection is connection:
                        self.proven = connection
        finally:
            subscriber.wanted.pop(key, None)
            inbox.forget(key)
        return self.hears()

    # For the subscriber: see common/subscriber.py.

    def connect(self) -> None:
        self._subscriber.wanted.pop(b"", None)
        until = self._now() + CONNECTING
        connection = self._dialler.connect(until)
        try:
            connection.simple(f'LISTEN "{self._channel}"'.encode(), until)
            with self._subscriber.mutex:
                self._subscriber.adopt(connection)
        except Refusal as refusal:
            connection.close()
            raise StoreUnavailable(refusal.text) from None
        except BaseException:
            connection.close()
            raise
        self._tell_wanting(_TRIED)

    def failed(self, error: Exception) -> float | None:
        if not isinstance(error, StoreUnavailable):  # a final error, which callers of acquire get, too
            self._subscriber.rest_until = self._now() + _DEAF
        self._subscriber.tell_to_look()
        self._tell_wanting(_TRIED)
        return PAUSE

    def read(self, connection: PostgresqlConnection, found: Messages) -> bool:
        with self._subscriber.mutex:  # libpq's connection is for one thread at a time
            conn = connection.conn
            if conn is None:
                return False
            conn.consume_input()
            has_heard = False
            while (notice := conn.notifies()) is not None:
                has_heard = True
                if (message := _parsed(notice.extra)) is not None:
                    found.append(message)
            while not conn.is_busy() and conn.get_result() is not None:  # the reply to a ping
                has_heard = True
        return has_heard

    def ping(self, connection: PostgresqlConnection) -> None:
        if connection.conn is not None:
            connection.conn.send_query(b"")
            connection.conn.flush()

    def closed(self) -> None:
        self._tell_wanting(b"no")

    def _tell_wanting(self, message: bytes) -> None:
        self._inbox.deliver_all([(key, message) for key in list(self._subscriber.wanted)])


def _parsed(letter: bytes) -> tuple[bytes, bytes] | None:
    if len(letter) != _LETTER:
        return None
    with suppress(ValueError):
        return bytes.fromhex(letter[:-1].decode()), letter[-1:]
    return None
