"""One session, shared by all queues and cells of one client of dibs.

A `SessionClient` has its own thread, the *heart*. It connects, resumes the session at another server, sends heartbeats,
runs due work, and closes a session that nobody used for a minute. It also reads while no caller does, so that a quiet
holder hears at once about its node. For an event loop it always reads.

Each request ends done, refused or lost; the outcome of a lost one is unknown. A session past its own deadline is over,
whatever a server would say. It is resumed only to be closed, and a new session begins.
"""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dibs.backends.zookeeper.address import Address
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Request
from dibs.backends.zookeeper.wire.dial import Dial, Handshake
from dibs.backends.zookeeper.wire.exchange import CallSoon, Exchange, Messages
from dibs.backends.zookeeper.wire.session import PATIENCE, PendingRequest, Phase, Session, Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError, StoreUnavailable

QUIET = 0.2
"""Seconds without a caller, after which the heart reads."""
IDLE = 60.0
"""Seconds without any use, after which the session is closed."""
_SLICE, _SHORT_SLICE = 1.0, 0.1
"""Seconds that the heart reads at a time; the second one while a heartbeat is unanswered."""
_ATTEMPT = 2.0
"""Seconds that one round trip may take at most while a connection is made."""
_GREETING = 0.5
"""The same limit while other servers have not been tried yet."""
_SHORTEST = 0.2
_PAUSES = (0.02, 0.1, 0.25, 0.5)
"""Seconds between two rounds of all servers."""
_GOODBYE = 1.0
_HEART = b"heart"


class Owner(Protocol):
    """The owner of all that lives as long as the session."""

    def attached(self) -> None:
        """A server began or resumed the session."""

    def beaten(self) -> None:
        """A heartbeat was answered, so the session lives longer than was known."""

    def ended(self) -> None:
        """The session is over, with all its ephemeral nodes."""

    def tidy(self, now: float) -> float:
        """Do the work that is due. Returns when to call it next."""

    def busy(self) -> bool:
        """Whether the session is still needed."""


class SessionClient:
    def __init__(
        self, address: Address, lease: float, runtime: Runtime, inbox: Inbox, owner: Owner,
        feed: Callable[[Messages], None] | None,
    ) -> None:  # fmt: skip
        """`runtime`: a blocking one. `inbox`: its waiters lead. `feed` delivers messages to an event loop, if there is
        one."""
        self._address = address
        self._lease = lease
        self.now = self._now = runtime.now
        self.mutex = runtime.mutex()
        """Protects what claims of this client share."""
        self.epoch = 0
        """The number of the current connection."""
        self._inbox = inbox
        self._owner = owner
        self._quiet = QUIET if feed is None else 0.0
        self._heart = runtime.worker(self._turn)
        self._exchange = Exchange(runtime, inbox, self._cut_off, feed)
        self._servers = list(address.servers)
        random.SystemRandom().shuffle(self._servers)
        self.session = Session(lease)
        self._leads = False
        self._beat: float | None = None
        """When the unanswered heartbeat was sent."""
        self.wakes_at = FOREVER
        self._rounds = self._brief = 0
        """How many rounds of all servers failed in a row, and how many connections ended at once."""
        self._connected_at = -FOREVER
        self._arrivals: deque[tuple[Inbox, bytes]] = deque()
        self.refusal: StoreError | None = None
        self.closing = self._closed = False
        self._corpse: Session | None = None
        self._farewell: PendingRequest | None = None
        self.tell = self._exchange.tell
        self.recover = self._exchange.recover
        self.ask_now = self._exchange.ask_now
        inbox.expect(_HEART)

    @property
    def up(self) -> bool:
        return self._exchange.up

    @property
    def round_trip(self) -> float:
        """Seconds that a reply may take now."""
        return self._exchange.round_trip.expected

    @property
    def trouble(self) -> str:
        return self._exchange.trouble

    def arrive(self, inbox: Inbox, key: bytes) -> None:
        """Tell `key` once the session is up, or cannot be."""
        self._arrivals.append((inbox, key))
        self._exchange.used_at = self._now()
        self._heart.ring()
        self._exchange.poke()

    def send(
        self,
        calls: Sequence[PendingRequest],
        watch: Watch | None = None,
        drop: Sequence[Watch] = (),
        call_soon: CallSoon | None = None,
    ) -> bool:
        """See `Exchange.send`."""
        if self._leads and self._quiet:
            self._inbox.deliver(_HEART, b"!")  # this caller is going to read
        sent = self._exchange.send(calls, watch, drop, call_soon)
        self._exchange.used_at = self._now()
        if self.wakes_at == FOREVER:
            self._heart.ring()
        return sent

    def post(self, request: Request, then: Callable[[PendingRequest], None] | None = None) -> None:
        """Send without waiting for the reply. `then` is called in any case, also if nothing could be sent."""
        call = PendingRequest(request, then)
        if not self.send((call,)) and then is not None:
            then(call)

    def nudge(self, at: float) -> None:
        """Have `Owner.tidy` called at an instant before `wakes_at`."""
        self.wakes_at = at
        self._heart.ring()
        if self._leads:
            self._inbox.deliver(_HEART, b"!")

    def close(self) -> None:
        """Close the session at once: the process may end before the heart's next turn. The heart does the rest."""
        self.closing = True
        self._say_farewell()
        if self._quiet:  # this would block an event loop
            self._exchange.drain(self._now() + _GOODBYE, lambda: self._farewell is None or self._farewell.ended)
        self._heart.retire()
        self._heart.ring()
        self._exchange.poke()

    def abandon(self) -> None:
        """In a forked child: close the inherited socket."""
        self._closed = True
        self._exchange.abandon()

    async def _turn(self) -> float | None:
        pause = await self._live()
        self.wakes_at = FOREVER if pause is None else self._now() + pause
        return pause

    async def _live(self) -> float | None:
        now, self.wakes_at = self._now(), FOREVER
        if self.closing:
            self._say_goodbye()
            return None
        if self.session.id and now >= self.session.deadline:
            self._bury("no beat was answered in time")
        if not self._exchange.up:
            return self._connect()
        if self._arrivals:  # they came just as the session was resumed
            self._announce()
        if now - self._exchange.used_at > IDLE and not self._is_wanted():
            self._say_goodbye()
            return None
        upcoming = min(self._beat_on(now), self._owner.tidy(now), self.session.deadline)
        if self._quiet and self._exchange.read_for_the_leader(now):
            return 0.0
        if self._beat is not None or now - self._exchange.used_at >= self._quiet:
            self._leads, self.wakes_at = True, upcoming
            try:
                await self._inbox.wait(_HEART, min(upcoming, now + (_SLICE if self._beat is None else _SHORT_SLICE)))
            finally:
                self._leads = False
            return 0.0
        return max(min(upcoming, self._exchange.used_at + self._quiet) - now, 0.0)

    def _beat_on(self, now: float) -> float:
        """Send a heartbeat when it is due; end the connection if one is not answered in time. Returns when to call it
        again."""
        patience = self.session.timeout * PATIENCE
        if self._beat is not None:
            # Replies come in order: while earlier ones come, the connection is alive.
            silent_at = max(self._beat, self._exchange.heard_at) + patience
            if now >= silent_at:
                self._break(f"no answer within {patience:.2g} s")
                return now
            return silent_at
        if now < self.session.beat_at:
            return self.session.beat_at
        self._beat, session = now, self.session

        def answered(call: PendingRequest) -> None:
            if session is self.session and self._beat == now:
                self._beat = None
                if call.error == codec.OK and self._now() < session.deadline:  # a late reply does not revive it
                    session.beaten(now)
                    self._owner.beaten()
                self.tell(self._inbox, _HEART, b"!")

        beat = PendingRequest(codec.sync(self._address.chroot or "/"), answered)
        beat.sent_at = now
        if not self._exchange.send((beat,), ahead=True):
            answered(beat)
        return now + patience

    def _break(self, why: str) -> None:
        """End the connection."""
        self._exchange.break_(why)
        self._beat = None

    def _cut_off(self) -> None:
        """Wake the heart, also if it is the reader."""
        self._heart.ring()
        self.tell(self._inbox, _HEART, b"!")

    def _bury(self, why: str) -> None:
        """End the session. If the servers do not know that yet, the next connection closes it there first."""
        self._break(why)
        if not self.session.over:
            self._corpse = self.session.remains()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.session.over = True
        self._exchange.clear()
        self.session = Session(self._lease)
        self._owner.ended()
        self._exchange.deliver()

    def _is_wanted(self) -> bool:
        return bool(self._arrivals or self._owner.busy() or self._exchange.watches)

    def _connect(self) -> float | None:
        self._break(self.trouble)
        if not self._is_wanted():
            return None
        now = self._now()
        self._brief = 0 if now - self._connected_at > _SLICE else self._brief
        if self._brief and now < (at := self._connected_at + _PAUSES[min(self._brief, len(_PAUSES)) - 1]):
            return at - now  # the last connection ended at once, and the next one probably would
        self.refusal = None
        dial = Dial(self._servers, self._now, _ATTEMPT)
        try:
            if self._attach_to_one(dial):
                self._rounds = 0
                self._brief += 1
                self._connected_at = self._now()
                self._announce()
                return 0.0
        finally:
            dial.close()
        if self.refusal is not None:
            self._announce()
        self._rounds += 1
        return _PAUSES[min(self._rounds, len(_PAUSES)) - 1]

    def _attach_to_one(self, dial: Dial) -> bool:
        """Greet one server at a time: the last one that was greeted has the session."""
        while (dialled := dial.connected()) is not None:
            host, port = dialled.host, dialled.port
            way = 4 * (self._now() - dialled.began)
            patience = max(min(_ATTEMPT, self.session.timeout * PATIENCE), _SHORTEST, way)
            if dial.alternatives and not self._rounds:  # another server may answer sooner
                patience = min(patience, max(_GREETING, way))
            try:
                self._attach(host, port, patience, dialled.socket)
            except StoreUnavailable as error:
                self._exchange.trouble = f"{host}:{port}: {error.what}"
            except StoreError as error:
                self.refusal = StoreError(f"{host}:{port}: {error.what}", step=error.step)
                return False
            else:
                self._servers.remove((host, port))
                self._servers.append((host, port))  # if it fails, others are tried first
                return True
        self._exchange.trouble = dial.trouble or self._exchange.trouble
        return False

    def _announce(self) -> None:
        while self._arrivals:
            self.tell(*self._arrivals.popleft(), b"!")
        self._exchange.deliver()
        self._exchange.poke()

    def _attach(self, host: str, port: int, patience: float, connected: socket.socket | None) -> None:
        """Begin or resume the session at a server. `connected`: an open connection to it."""
        if self._corpse is not None:
            self._close_corpse(host, port, self._corpse, patience, connected)
            self._corpse = connected = None
        again, deadline = self.session.id != 0, self.session.deadline
        handshake = Handshake(self._address, host, port, self.session, self._now, patience, connected)
        if handshake.connection.phase is Phase.ENDED:
            handshake.transport.close()
            self._begin_anew()
            if not again:
                raise StoreUnavailable("the server refuses a session")
            self._attach(host, port, patience, None)  # a new session, at a server that works
            return
        try:
            if again and self._now() >= deadline:
                self._bury("the session was resumed too late")
                raise StoreUnavailable("the session was resumed too late")
            self.epoch += 1  # first: another thread may read as soon as the exchange begins
            self._owner.attached()
            self._exchange.begin(handshake.transport, handshake.connection)
        except BaseException:
            handshake.transport.close()
            raise
        self._exchange.deliver()

    def _close_corpse(
        self, host: str, port: int, session: Session, patience: float, connected: socket.socket | None
    ) -> None:
        handshake = Handshake(self._address, host, port, session, self._now, patience, connected)
        try:
            if handshake.connection.phase is Phase.UP:
                handshake.ask(codec.close())
        finally:
            handshake.transport.close()

    def _say_farewell(self) -> None:
        if self._exchange.up and self._farewell is None:
            self._farewell = PendingRequest(codec.close())
            self.send((self._farewell,))

    def _say_goodbye(self) -> None:
        """Close the session; the server removes its nodes at once."""
        if self._closed:
            return
        self._say_farewell()
        self._exchange.drain(self._now() + _GOODBYE, lambda: self._farewell is None or self._farewell.ended)
        self._farewell = None
        self._break("the session was closed")
        self._begin_anew()
        if self.closing:
            self._closed = True
            self._announce()
            self._exchange.close()
