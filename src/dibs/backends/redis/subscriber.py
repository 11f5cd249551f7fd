"""The one subscription connection of a client, however many wait: where it hears who holds, and of what has changed.

A client listens to a channel of its own, to which scripts send the ids of its claims that now hold, and, while somebody
wants to hear of a name, to the channel that bears its key's name. Whoever waits reads the socket: in threads one of
those who wait, in asyncio the loop. Connecting, and connecting again after a loss, is done by a thread of the ear's
own; it also asks a silent server for a sign of life while somebody waits. After a loss all who wait are told to look:
what was said meanwhile is lost. A message grants only by a claim's full id; anything else is a hint, or nothing.
"""

from __future__ import annotations

import socket
import ssl
from _thread import allocate_lock
from collections.abc import Callable
from typing import Any

from dibs.backends.common.connections import CONNECTING, STEP, own
from dibs.backends.common.wakeup import Wakeup
from dibs.backends.redis.address import Place
from dibs.backends.redis.answers import Refusal, final
from dibs.backends.redis.connection import NOTHING, Answers, broken, dial
from dibs.backends.redis.scripts import Command
from dibs.backends.redis.servers import Dialler
from dibs.backends.redis.where import Where
from dibs.core.line import LOOK, Me
from dibs.core.runtime import Event, Runtime
from dibs.errors import Closed, StoreError, StoreUnavailable

_LETTER = 17
"""An id and one byte that says what about it."""
_ACKNOWLEDGED = 1.5
"""How long a subscription is waited for: who does not hear looks, and must not be kept from it for longer."""
_SILENCE = 5.0
_PAUSE = 0.25
_CLOSING = 1.0
_CHUNK = 65_536
_PING = Command("PING").packed(0.0)
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class RedisSubscriber:
    def __init__(self, dialler: Dialler, where: Where, runtime: Runtime, me: Me, channel: bytes) -> None:
        self._dialler = dialler
        self._where = where
        self._now = runtime.now
        self._me = me
        self._channel = channel
        self._waiting: dict[bytes, None] = {}
        """The claims that wait to hear."""
        self._listeners: dict[bytes, dict[bytes, None]] = {}
        """By channel: the keys in the inbox of those who listen to it."""
        self._sent: dict[bytes, int] = {}
        """By channel: subscriptions that the server has not acknowledged."""
        self._unheard: dict[bytes, bytes] = {}
        """The keys of those who wait for an acknowledgement, each with its channel."""
        self._refusal: Exception | None = None
        """Why there is no subscription, for good: the server's word, or what a user's own function raised."""
        self._wanted: dict[bytes, None] = {}
        """Who waits for the first subscription."""
        self._is_awake = False
        """Its thread comes by again, without being rung."""
        self._line: _Line | None = None
        self._ready: Event = runtime.event()
        self._trouble: StoreUnavailable | None = None
        self._mutex = runtime.blocking().mutex()
        self._reading = allocate_lock()
        self._poked = Wakeup()
        self.fileno, self.poke = self._poked.fileno, self._poked.poke
        self._worker = runtime.blocking().worker(self._turn)
        self._closed = False
        self._dialled = 0
        self._fresh_id = runtime.fresh_id
        me.inbox.listen(self)

    def is_ready(self) -> bool:
        return self._line is not None

    async def ready(self, until: float) -> None:
        """Once: from then on the client's own channel is heard, or whoever waits is told to look."""
        if self._ready.is_set() and self._refusal is None:
            self._worker.ring()  # it was lost: not to hear for a while costs time, and nothing else
            return
        refused = self._refusal  # it stays until a try succeeds: all who come meanwhile are told
        wanted = self._fresh_id()
        self._wanted[wanted] = None  # before it rings: a try that failed by then is made again for whoever wants it
        try:
            self._worker.ring()
            if refused is not None:
                raise _own(refused)
            if not await self._ready.wait(until):
                raise _own(self._trouble or StoreUnavailable("no subscription was made in time"))
        finally:
            self._wanted.pop(wanted, None)
        self._check_open()
        if self._refusal is not None:
            raise _own(self._refusal)

    async def hear(self, claim: bytes, until: float) -> bytes | None:
        """What is said about a claim of this client."""
        self._waiting[claim] = None
        if not self._is_awake:
            self._worker.ring()
        try:
            return await self._me.inbox.wait(claim, until)
        finally:
            self._waiting.pop(claim, None)

    async def listen(self, channel: bytes, key: bytes, until: float) -> None:
        """From its return on whatever is said there is told the inbox, under the key; until `ignore`."""
        if not self.is_ready():
            await self.ready(until)
        until = min(until, self._now() + _ACKNOWLEDGED)
        heard = self._fresh_id()
        self._me.inbox.expect(heard)
        try:
            with self._mutex:
                self._check_open()
                known = channel in self._listeners and not self._sent.get(channel)
                if not known:
                    self._unheard[heard] = channel
                if channel not in self._listeners:
                    self._send("SUBSCRIBE", channel)
                self._listeners.setdefault(channel, {})[key] = None
            if not self._is_awake:
                self._worker.ring()
            if known:
                return
            if await self._me.inbox.wait(heard, until) is None:
                raise StoreUnavailable("the subscription was not acknowledged in time")
            self._check_open()
            if self._refusal is not None:
                raise _own(self._refusal)
        finally:
            self._unheard.pop(heard, None)
            self._me.inbox.forget(heard)

    def hears(self, channel: bytes, key: bytes) -> bool:
        return key in self._listeners.get(channel, ())

    def ignore(self, channel: bytes, key: bytes) -> None:
        with self._mutex:
            keys = self._listeners.get(channel)
            if keys is None or key not in keys:
                return
            del keys[key]
            if not keys:
                del self._listeners[channel]
                self._send("UNSUBSCRIBE", channel)

    def close(self) -> None:
        with self._mutex:  # whoever begins to listen has not yet, or is told
            self._closed = True
        self._worker.stop()
        self._ready.set()
        self._me.inbox.deliver_all([(key, b"no") for key in list(self._unheard)])
        self.poke()
        was_read = self._reading.acquire(timeout=_CLOSING)  # who still reads is about to stop
        self.abandon()
        if was_read:
            self._reading.release()

    def abandon(self) -> None:
        """Let go of what is open; a forked child does so with what is its parent's, of which no lock can be trusted."""
        line, self._line = self._line, None
        if line is not None:
            line.sock.close()
        self._poked.close()

    # As a source of messages: see core/runtime.py.

    def read(self) -> list[tuple[bytes, bytes]]:
        self._poked.settle()
        line = self._line
        return [] if line is None else self._heard_on(line)

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        with self._reading:
            if self._closed:
                return []
            self._poked.sleep(patience)
            return self.read()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client was closed", step="connect again")

    def _heard_on(self, line: _Line) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        try:
            while True:
                with self._mutex:  # TLS cannot read and write at the same time
                    received = line.sock.recv(_CHUNK)
                line.answers.feed(received)
                line.heard_at = self._now()
                while (reply := line.answers.next()) is not NOTHING:
                    self._understand(reply, found)
                if len(received) < _CHUNK and not isinstance(line.sock, ssl.SSLSocket):
                    return found
        except _NOT_NOW:
            return found
        except OSError:  # StoreUnavailable too
            self._lose(line)
            return found
        except BaseException:  # what was read may be lost: all look, once it is made anew
            self._lose(line)
            raise

    def _understand(self, reply: Any, found: list[tuple[bytes, bytes]]) -> None:
        if isinstance(reply, Refusal):
            self._refusal = final(reply, self._channel)
            found.extend((key, b"no") for key in list(self._unheard))
            return
        if not isinstance(reply, list) or len(reply) != 3:
            return
        what, channel, said = reply
        if what == b"message" and isinstance(said, bytes):
            if channel == self._channel:
                if len(said) % _LETTER == 0:
                    found.extend((said[at : at + 16], said[at + 16 : at + 17]) for at in range(0, len(said), _LETTER))
            else:
                found.extend((key, LOOK.value) for key in list(self._listeners.get(channel, ())))
        elif what == b"subscribe":
            self._refusal = None
            with self._mutex:
                left = self._sent.get(channel, 1) - 1
                if left:
                    self._sent[channel] = left
                else:
                    self._sent.pop(channel, None)
            if not left:
                found.extend((key, b"yes") for key, wanted in list(self._unheard.items()) if wanted == channel)

    def _send(self, verb: str, channel: bytes) -> None:
        """Called with the mutex. What cannot be sent at once is made up for by connecting anew."""
        line = self._line
        try:
            if line is not None:
                line.send(Command(verb, channel).packed(0.0))
        except OSError:
            if line is not None:
                self._lose(line)
        if verb == "SUBSCRIBE":
            self._sent[channel] = self._sent.get(channel, 0) + 1

    def _lose(self, line: _Line) -> None:
        if self._line is not line:
            return
        self._line = None
        self._poked.ignore(line.sock)
        line.sock.close()
        if not self._closed:
            self._worker.ring()

    # What its own thread does.

    async def _turn(self) -> float | None:
        self._is_awake = False  # first: who comes from now on is seen below, or rings
        if self._closed:
            return None
        line = self._line
        if line is None:
            try:
                self._connect()
            except StoreUnavailable as error:
                self._trouble = error
                return self._again(_PAUSE)
            except Exception as error:  # noqa: BLE001  (also a user's own credentials; whoever asks is told)
                self._refusal = error
                self._ready.set()
                return None
        elif (self._waiting or self._listeners) and self._now() - line.heard_at >= _SILENCE:
            if line.pinged_at > line.heard_at:
                self._lose(line)
                return 0.0
            with self._mutex:
                try:
                    line.pinged_at = self._now()
                    line.send(_PING)
                except OSError:
                    self._lose(line)
        return self._again(_SILENCE / 2)

    def _again(self, pause: float) -> float | None:
        """While nobody listens the thread may end, and with it what keeps a forgotten client here."""
        self._is_awake = bool(self._waiting or self._listeners or self._wanted)
        return pause if self._is_awake else None

    def _connect(self) -> None:
        place = self._place(self._now() + CONNECTING)
        try:
            self._connect_to(place)
        except StoreUnavailable:
            self._where.forget(place)  # all who would find that out may be waiting for this very line
            raise

    def _connect_to(self, place: Place) -> None:
        line = _Line(dial(self._dialler.address, place, STEP), self._now)
        try:
            with self._mutex:
                # Whoever begins to listen after this is sent by itself, on the line that stands then.
                channels = [self._channel, *self._listeners]
                self._sent = dict.fromkeys(self._listeners, 1)
            line.begin(channels)
            with self._mutex:
                more = [channel for channel in self._listeners if channel not in channels]
                line.sock.setblocking(False)
                for channel in more:
                    line.send(Command("SUBSCRIBE", channel).packed(0.0))
                self._sent = {**dict.fromkeys(channels[1:], 0), **dict.fromkeys(more, 1)}
                self._check_open()
                self._poked.attend(line.sock)
                self._line = line
        except BaseException as error:
            line.sock.close()
            if isinstance(error, OSError) and not isinstance(error, StoreError):
                raise broken(error) from None
            raise
        self._refusal = self._trouble = None
        was_deaf = self._ready.is_set()
        self._ready.set()
        heard = [(key, b"yes") for key, channel in list(self._unheard.items()) if channel in channels]
        self._me.inbox.deliver_all(heard)
        if was_deaf:
            listening = [key for keys in list(self._listeners.values()) for key in list(keys)]
            self._me.inbox.deliver_all([(key, LOOK.value) for key in [*self._waiting, *listening]])

    def _place(self, until: float) -> Place:
        """In a cluster any node will do; each time another one."""
        if not self._where.all():
            self._where.learn(until)
        places = self._where.all()
        if not places:
            raise StoreUnavailable("no server is known now")
        self._dialled += 1
        return places[self._dialled % len(places)]


class _Line:
    """One subscription connection while it lasts."""

    __slots__ = ("answers", "heard_at", "pinged_at", "sock")

    def __init__(self, sock: socket.socket, now: Callable[[], float]) -> None:
        self.sock = sock
        self.answers = Answers()
        self.heard_at = now()
        self.pinged_at = 0.0

    def send(self, packed: bytes) -> None:
        if self.sock.send(packed) < len(packed):
            raise StoreUnavailable("the server takes no more")

    def begin(self, channels: list[bytes]) -> None:
        """Subscribe, and hear that it was done. Whoever may not publish is told so here: scripts keep it to themselves,
        and those who wait would be woken late without anybody knowing why."""
        self.sock.settimeout(STEP)
        may_publish = Command("PUBLISH", channels[0], b"").packed(0.0)
        self.sock.sendall(may_publish + Command("SUBSCRIBE", *channels).packed(0.0))
        missing = len(channels)
        while missing:
            reply = self.answers.next()
            if reply is NOTHING:
                self.answers.feed(self.sock.recv(_CHUNK))
            elif isinstance(reply, Refusal):
                raise final(reply, channels[0])
            elif isinstance(reply, list) and reply[0] == b"subscribe":
                missing -= 1


def _own(error: Exception) -> Exception:
    """One for each who is told: the lock that it is about is written into it."""
    return own(error) if isinstance(error, StoreError) else error
