"""The one connection on which a client listens, however many wait: where it hears who holds, and of what has changed.

A client listens to a channel of its own, to which the routines send the ids of its claims that now hold, and the keys
of what it watches and has changed. Whoever waits reads the socket: in threads one of those who wait, in asyncio the
loop. Connecting, and connecting again after a loss, is done by a thread of the ear's own; it also asks a silent server
for a sign of life while somebody waits. It is trusted only once a message that its first user sent by another
connection has arrived: through a pooler that shares connections by transaction none does, LISTEN notwithstanding, and
everybody looks instead. After a loss all who wait are told to look, and it is to be proven again. A message grants only
by a claim's full id; anything else is a hint.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from dibs.backends.common.connections import CONNECTING
from dibs.backends.common.wakeup import Wakeup
from dibs.backends.postgresql.answers import Refusal
from dibs.backends.postgresql.connection import Dialler, PostgresqlConnection
from dibs.core.line import LOOK, Me
from dibs.core.runtime import Runtime
from dibs.errors import Closed, StoreError, StoreUnavailable

_PROBE, _POOLED = 1.0, 0.25
"""How long the message that proves it is waited for; less where a pooler answers, and it hardly comes."""
_FIRST = 3.0
"""How long a first wait is kept for it."""
_SILENCE = 5.0
_PAUSE = 0.25
_DEAF = 30.0
"""Seconds until it is tried again where messages do not get through."""
_CLOSING = 1.0
_LETTER = 33
"""An id in hexadecimal digits, and one letter that says what about it."""


class PostgresqlSubscriber:
    def __init__(self, dialler: Dialler, runtime: Runtime, me: Me) -> None:
        self._dialler = dialler
        self._now = runtime.now
        self._me = me
        self._channel = f"dibs_{me.id.hex()}"
        self._waiting: dict[bytes, None] = {}
        """The claims and keys that wait to hear."""
        self._wanted: dict[bytes, None] = {}
        """The keys of those who wait for a connection, or for the proof that it hears."""
        self._is_awake = False
        """Its thread comes by again, without being rung."""
        self._link: PostgresqlConnection | None = None
        self._is_proven = False
        self._heard_at = self._pinged_at = 0.0
        self._deaf_until = 0.0
        self._fresh_id = runtime.fresh_id
        self._mutex = runtime.blocking().mutex()
        self._reading = allocate_lock()
        self._poked = Wakeup()
        self.fileno, self.poke = self._poked.fileno, self._poked.poke
        self._worker = runtime.blocking().worker(self._turn)
        self._closed = False

    def hears(self) -> bool:
        return self._is_proven

    def is_deaf(self) -> bool:
        """Messages were tried, and do not get through now."""
        return self._now() < self._deaf_until

    def begin(self) -> None:
        """Whoever asks something of the server first need not wait for this meanwhile."""
        if self._link is None and not self.is_deaf():
            self._wanted.setdefault(b"", None)
            self._worker.ring()

    async def ready(self, send: Callable[[str, str], Awaitable[object]], until: float) -> bool:
        """Whether messages get through; who asks first waits for that, a while. `send` sends one to a channel, by
        another connection."""
        if self._is_proven or self.is_deaf():
            return self._is_proven
        inbox, key = self._me.inbox, self._fresh_id()
        inbox.expect(key)
        self._wanted[key] = None
        try:
            if self._link is None:
                self._worker.ring()
                await inbox.wait(key, min(until, self._now() + _FIRST))
            if self._closed:
                raise Closed("this client was closed", step="connect again")
            link = self._link
            if link is not None:
                await send(self._channel, f"{key.hex()}l")
                heard = await inbox.wait(key, self._now() + (_PROBE if link.is_direct else _POOLED))
                with self._mutex:
                    if heard is None and not self._is_proven:
                        self._deaf_until = self._now() + _DEAF
                        self._lose(link)
                    elif self._link is link:
                        self._is_proven = True
        finally:
            self._wanted.pop(key, None)
            inbox.forget(key)
        return self._is_proven

    async def hear(self, key: bytes, until: float) -> bytes | None:
        """What is said about a claim of this client, or about what it watches."""
        self._waiting[key] = None
        if not self._is_awake:
            self._worker.ring()
        try:
            return await self._me.inbox.wait(key, until)
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        self._closed = True
        self._worker.stop()
        self._me.inbox.deliver_all([(key, b"no") for key in list(self._wanted)])
        self.poke()
        was_read = self._reading.acquire(timeout=_CLOSING)  # who still reads is about to stop
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._poked.close()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """A forked child lets go of what is its parent's, of which no lock can be trusted."""
        link, self._link = self._link, None
        if link is not None:
            link.abandon()
        self._poked.close()

    # As a source of messages: see core/runtime.py.

    def read(self) -> list[tuple[bytes, bytes]]:
        self._poked.settle()
        with self._mutex:  # libpq's connection is for one thread at a time
            link = self._link
            return [] if link is None else self._heard_on(link)

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        with self._reading:
            if self._closed:
                return []
            self._poked.sleep(patience)
            return self.read()

    def _heard_on(self, link: PostgresqlConnection) -> list[tuple[bytes, bytes]]:
        conn, found = link.conn, []
        if conn is None:
            return []
        try:
            conn.consume_input()
            self._heard_at = self._now()
            while (notice := conn.notifies()) is not None:
                found.append(_understood(notice.extra))
            while not conn.is_busy() and conn.get_result() is not None:  # what a ping is answered with
                pass
        except psycopg.Error:
            self._lose(link)
        except BaseException:  # what was read may be lost: all look, once it is made anew
            self._lose(link)
            raise
        return [letter for letter in found if letter is not None]

    def _lose(self, link: PostgresqlConnection) -> None:
        """Called with the mutex."""
        if self._link is not link:
            return
        self._link = None
        self._is_proven = False
        with suppress(StoreUnavailable):
            self._poked.ignore(link.fileno())
        link.close()
        if not self._closed:
            self._worker.ring()

    # What its own thread does.

    async def _turn(self) -> float | None:
        self._is_awake = False  # first: who comes from now on is seen below, or rings
        if self._closed:
            return None
        if self._link is None:
            if self.is_deaf():
                return self._again(self._deaf_until - self._now())
            self._wanted.pop(b"", None)
            try:
                self._connect()
            except StoreUnavailable:
                return self._again(_PAUSE)
            except StoreError:  # refused for good: whoever asks for a lock is told the same
                self._deaf_until = self._now() + _DEAF
            finally:
                if self._link is None:
                    self._tell_to_look()
                self._me.inbox.deliver_all([(key, b"tried") for key in list(self._wanted)])
        elif self._waiting and self._now() - self._heard_at >= _SILENCE:
            self._ping(self._link)
        return self._again(_SILENCE / 2)

    def _ping(self, link: PostgresqlConnection) -> None:
        with self._mutex:
            if self._pinged_at > self._heard_at:
                self._lose(link)
                return
            self._pinged_at = self._now()
            try:
                if link.conn is not None:
                    link.conn.send_query(b"")
                    link.conn.flush()
            except psycopg.Error:
                self._lose(link)

    def _again(self, pause: float) -> float | None:
        """While nobody listens the thread may end, and with it what keeps a forgotten client here."""
        self._is_awake = bool(self._waiting or self._wanted)
        return pause if self._is_awake else None

    def _tell_to_look(self) -> None:
        self._me.inbox.deliver_all([(key, LOOK.value) for key in list(self._waiting)])

    def _connect(self) -> None:
        until = self._now() + CONNECTING
        link = self._dialler.connect(until)
        try:
            link.simple(f'LISTEN "{self._channel}"'.encode(), until)
            with self._mutex:
                if self._closed:
                    raise Closed("this client was closed")
                self._tell_to_look()  # earlier messages to these waiters are lost
                self._poked.attend(link.fileno())
                self._heard_at = self._now()
                self._link = link
        except Refusal as refusal:
            link.close()
            raise StoreUnavailable(refusal.text) from None
        except BaseException:
            link.close()
            raise


def _understood(letter: bytes) -> tuple[bytes, bytes] | None:
    if len(letter) != _LETTER:
        return None
    with suppress(ValueError):
        return bytes.fromhex(letter[:-1].decode()), letter[-1:]
    return None
