"""One session, shared by all who talk to the store for one client of dibs.

A `SessionClient` has a thread of its own, the *heart*: it connects, takes the session up again at another server,
beats, tidies, and closes what nobody used for a minute. It also reads, where nobody else does for a while (and, for an
event loop, always), so that a quiet holder hears at once what happens to its node.

Each request ends done, refused, or lost: after a broken connection nobody knows. Past its own deadline a session is
over, whatever a server would say: it is taken up again only to be closed, and a new one begins.
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
from dibs.backends.zookeeper.wire.exchange import CallSoon, Exchange, Feed
from dibs.backends.zookeeper.wire.session import PATIENCE, PendingRequest, Phase, Session, Watch
from dibs.core.deadline import FOREVER
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreError, StoreUnavailable

QUIET = 0.2
"""Seconds without a caller, after which the heart reads for those who only hold."""
IDLE = 60.0
"""Seconds without anything to do, after which the session is closed."""
_SLICE, _SHORT_SLICE = 1.0, 0.1
"""How long the heart reads at a time; the second, while it waits for the answer to a beat."""
_ATTEMPT = 2.0
"""The longest time limit of one server for each round trip until it has taken a session up."""
_GREETING = 0.5
"""The same, while others have not been asked yet."""
_SHORTEST = 0.2
_PAUSES = (0.02, 0.1, 0.25, 0.5)
"""Between two rounds of all servers."""
_GOODBYE = 1.0
_HEART = b"heart"


class Owner(Protocol):
    """Who lives by the session."""

    def attached(self) -> None:
        """A server took the session up, again or anew."""

    def beaten(self) -> None:
        """A beat was answered: the session surely lives longer than was known."""

    def ended(self) -> None:
        """The session is over, and all that lived by it."""

    def tidy(self, now: float) -> float:
        """Do what is due; gives the instant of the next time."""

    def busy(self) -> bool:
        """Something lives by the session."""


class SessionClient:
    def __init__(
        self, address: Address, lease: float, runtime: Runtime, inbox: Inbox, owner: Owner, feed: Feed | None
    ) -> None:
        """`inbox` is the one whose waiters lead; `runtime` a blocking one; `feed` leads to an event loop, if there is
        one."""
        self._address = address
        self._lease = lease
        self.now = self._now = runtime.now
        self.mutex = runtime.mutex()
        """Over what claims of this client share."""
        self.epoch = 0
        """How often a server took the session up."""
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
        """When the beat went out that is not answered yet."""
        self.wakes_at = FOREVER
        self._rounds = self._brief = 0
        """How often in a row nobody took the session up, or dropped it at once."""
        self._taken_at = -FOREVER
        self._arrivals: deque[tuple[Inbox, bytes]] = deque()
        self.refusal: StoreError | None = None
        self.closing = self._closed = False
        self._corpse: Session | None = None
        self._farewell: PendingRequest | None = None
        self.tell = self._exchange.tell
        self.recover = self._exchange.recover
        self.ask_now = self._exchange.ask_now
        inbox.expect(_HEART)

    # What callers use.

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
        """Have `key` told once the session is up, or cannot be."""
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
        """As `Exchange.send`."""
        if self._leads and self._quiet:
            self._inbox.deliver(_HEART, b"!")  # there is a caller again, who reads for itself
        sent = self._exchange.send(calls, watch, drop, call_soon)
        self._exchange.used_at = self._now()
        if self.wakes_at == FOREVER:
            self._heart.ring()
        return sent

    def post(self, request: Request, then: Callable[[PendingRequest], None] | None = None) -> None:
        """Without waiting for the answer; `then` hears of it, also if nothing could be sent."""
        call = PendingRequest(request, then)
        if not self.send((call,)) and then is not None:
            then(call)

    def nudge(self, at: float) -> None:
        """Have the owner's `tidy` called at that instant, which is before `wakes_at`."""
        self.wakes_at = at
        self._heart.ring()
        if self._leads:
            self._inbox.deliver(_HEART, b"!")

    def close(self) -> None:
        """Close the session, at once: the process may end before its heart beats again. That one does the rest."""
        self.closing = True
        self._say_farewell()
        if self._quiet:  # an event loop would be held up
            self._exchange.drain(self._now() + _GOODBYE, lambda: self._farewell is None or self._farewell.ended)
        self._heart.retire()
        self._heart.ring()
        self._exchange.poke()

    def abandon(self) -> None:
        """In a forked child."""
        self._closed = True
        self._exchange.abandon()

    # The heart.

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
        if self._arrivals:  # they came just as the session was taken up
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
        """Send a beat when it is due; one that is not answered while it could still help ends the connection."""
        patience = self.session.timeout * PATIENCE
        if self._beat is not None:
            # Answers come in order: while others come, the beat waits for its turn behind them.
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
                if call.error == codec.OK and self._now() < session.deadline:  # what is over stays so
                    session.beaten(now)
                    self._owner.beaten()
                self.tell(self._inbox, _HEART, b"!")

        beat = PendingRequest(codec.sync(self._address.chroot or "/"), answered)
        beat.sent_at = now
        if not self._exchange.send((beat,), ahead=True):
            answered(beat)
        return now + patience

    def _break(self, why: str) -> None:
        self._exchange.break_(why)
        self._beat = None

    def _cut_off(self) -> None:
        """The heart is to hear of it at once, also if it is the one who leads."""
        self._heart.ring()
        self.tell(self._inbox, _HEART, b"!")

    def _bury(self, why: str) -> None:
        """The session is over; if a server does not know that yet, it is told at the next connection."""
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
        self._brief = 0 if now - self._taken_at > _SLICE else self._brief
        if self._brief and now < (at := self._taken_at + _PAUSES[min(self._brief, len(_PAUSES)) - 1]):
            return at - now  # it was cut off at once: without a pause it would be again
        self.refusal = None
        dial = Dial(self._servers, self._now, _ATTEMPT)
        try:
            if self._take_up_one_of(dial):
                self._rounds = 0
                self._brief += 1
                self._taken_at = self._now()
                self._announce()
                return 0.0
        finally:
            dial.close()
        if self.refusal is not None:
            self._announce()
        self._rounds += 1
        return _PAUSES[min(self._rounds, len(_PAUSES)) - 1]

    def _take_up_one_of(self, dial: Dial) -> bool:
        """One server is greeted at a time: a session belongs to the last one that was."""
        while (dialled := dial.connected()) is not None:
            host, port = dialled.host, dialled.port
            way = 4 * (self._now() - dialled.began)
            patience = max(min(_ATTEMPT, self.session.timeout * PATIENCE), _SHORTEST, way)
            if dial.alternatives and not self._rounds:  # another one may answer: do not wait long for this one
                patience = min(patience, max(_GREETING, way))
            try:
                self._take_up(host, port, patience, dialled.socket)
            except StoreUnavailable as error:
                self._exchange.trouble = f"{host}:{port}: {error.what}"
            except StoreError as error:
                self.refusal = StoreError(f"{host}:{port}: {error.what}", step=error.step)
                return False
            else:
                self._servers.remove((host, port))
                self._servers.append((host, port))  # another one first, if this one fails
                return True
        self._exchange.trouble = dial.trouble or self._exchange.trouble
        return False

    def _announce(self) -> None:
        while self._arrivals:
            self.tell(*self._arrivals.popleft(), b"!")
        self._exchange.deliver()
        self._exchange.poke()

    def _take_up(self, host: str, port: int, patience: float, connected: socket.socket | None) -> None:
        """At that server; `connected` is the connection, if it is made already."""
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
            self._take_up(host, port, patience, None)  # a new one, at a server that has just shown that it serves
            return
        try:
            if again and self._now() >= deadline:
                self._bury("the session was resumed too late")
                raise StoreUnavailable("the session was resumed too late")
            self.epoch += 1  # before: another thread may read as soon as it begins
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
        """Close the session: what lived by it is gone at once."""
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
