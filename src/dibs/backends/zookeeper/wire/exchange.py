"""One connection shared by threads: all send, one at a time reads, and the reader delivers replies and events.

It is a `Source` for the inbox whose waiters lead (runtime/inbox.py), so that a lone blocking caller reads the socket
itself. The reader calls `then` of calls and watchers, one at a time; messages that they `tell` are delivered
afterwards.

An interrupt may strike anywhere. What came in stays in `Connection.arrived` until it was dealt with, so the next one
deals with it (again: that must do no harm); a reader that vanished amidst its reading leaves `_amidst` set, and the
next one ends the connection, which costs no claim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.zookeeper.wire.codec import REQUEST, SET_WATCHES, Event, Garbled
from dibs.backends.zookeeper.wire.session import LAST_XID, LOST, Connection, PendingRequest, Watch, Watches
from dibs.backends.zookeeper.wire.transport import CHUNK, Bell, Transport
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreUnavailable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


_AT_ONCE = 100


class Feed:
    def __init__(self, inbox: Inbox, runtime: Runtime) -> None:
        self._inbox = inbox
        self._runtime = runtime
        self._messages: deque[tuple[bytes, bytes]] = deque()
        self._goes_on_in: AbstractEventLoop | None = None
        """The loop whose next round hands over more. It may be closed before, and another one come."""

    def put(self, messages: Sequence[tuple[bytes, bytes]]) -> None:
        """From any thread."""
        self._messages.extend(messages)
        self._runtime.call_back(self._begin)

    def _begin(self) -> None:
        if self._goes_on_in is not _loop():
            self._hand_over()

    def _hand_over(self) -> None:
        messages, loop = self._messages, _loop()
        self._inbox.deliver_all([messages.popleft() for _ in range(min(len(messages), _AT_ONCE))])
        self._goes_on_in = loop if messages else None
        if messages:
            loop.call_soon(self._hand_over)


def _loop() -> AbstractEventLoop:
    from asyncio import get_running_loop  # noqa: PLC0415  (who uses no event loop does not need it)

    return get_running_loop()


_POLL_INTERVAL = 0.1
"""Seconds that the leader has to read before the heart does it."""
_SLICE = 1.0
"""Nobody waits longer without a look at the clock."""


CallSoon = Callable[[Callable[[], None]], object]


class _Parcel(NamedTuple):
    inbox: Inbox
    key: bytes
    message: bytes


class Exchange:
    def __init__(self, runtime: Runtime, inbox: Inbox, ended: Callable[[], None], feed: Feed | None = None) -> None:
        """`inbox`: whose waiters lead. `ended` is called when a connection was. `feed`: for messages to others."""
        self._now = runtime.now
        self._inbox = inbox
        self._feed = feed
        self._ended = ended
        self._mutex = runtime.mutex()
        """Over what is sent, and in which order."""
        self._reading = runtime.mutex()
        self.bell = Bell()
        self.watches = Watches()
        self.round_trip = RoundTrip()
        self._transport: Transport | None = None
        self._connection: Connection | None = None
        self._broken: str | None = None
        self._planned_at = 0.0
        """When what was put together last was to go out soon; 0: it has."""
        self._amidst = self._sending = self._deputy = self._closed = False
        self._dealing = False
        """Requests that are made meanwhile go out in one piece afterwards."""
        self._read_at = self.heard_at = 0.0
        self.used_at = runtime.now()
        """When a caller last asked for something."""
        self._parcels: deque[_Parcel] = deque()
        """The heart puts some there while another thread reads: each is taken out by itself, and none is lost."""
        self.trouble = "not connected yet"
        """The last error of a connection."""
        inbox.listen(self)

    @property
    def up(self) -> bool:
        return self._connection is not None and self._broken is None

    def begin(self, transport: Transport, connection: Connection) -> None:
        """Go on with a connection that was made; where its session had one before, watches are set again."""
        with self._mutex:
            if connection.session.zxid:
                for setting in self.watches.all_again(connection.session.zxid):
                    transport.send(connection.send([PendingRequest(setting, xid=SET_WATCHES)]))
            self._sending = False
            self._transport, self._connection = transport, connection

    def send(
        self,
        calls: Sequence[PendingRequest],
        watch: Watch | None = None,
        drop: Sequence[Watch] = (),
        call_soon: CallSoon | None = None,
        *,
        ahead: bool = False,
    ) -> bool:
        """Back to back, `ahead` of all that wait to be sent. Watches are dropped, and then entered, in the same step.
        False: not connected. With `call_soon`, and while other answers are awaited anyway, it goes out together with
        what others have to say in this moment."""
        with self._mutex:
            if drop:
                dropped = [self.watches.drop(*one) for one in drop]
                calls = [*(PendingRequest(request) for request in dropped if request is not None), *calls]
            connection, transport = self._connection, self._transport
            if connection is None or transport is None or self._broken is not None:
                return False
            if self._sending:  # by somebody who was interrupted: what is pending was perhaps never said
                self._broken = "the sender was interrupted"
                self._ended()
                self.bell.ring()
                return False
            if watch is not None:
                self.watches.add(*watch)
            self._sending = True
            try:
                if self._dealing:
                    transport.put(connection.send(calls, ahead=ahead))
                elif call_soon is None or not connection.pending:
                    transport.send(connection.send(calls, ahead=ahead))
                else:
                    transport.put(connection.send(calls))
                    if (
                        self._now() - self._planned_at > _POLL_INTERVAL
                    ):  # or the loop that was to do it was closed before
                        self._planned_at = self._now()
                        call_soon(self._flush)
            except StoreUnavailable as error:
                self._broken = error.what
                self._ended()
            self._sending = False
            if self._broken is not None or (transport.stuck and not (self._planned_at or self._dealing)):
                self.bell.ring()
        return True

    def ask_now(  # noqa: C901, PLR0912, PLR0915  (the straight line from a free lock to the socket, in one piece)
        self, calls: Sequence[PendingRequest], bodies: Sequence[bytes], sizes: Sequence[int], until: float
    ) -> bytes | None:
        """Send requests and read their replies in a straight line, if nobody else sends or reads. `bodies` stand behind
        their xids. Returns the replies as they came, if they have these sizes and report no error. Otherwise it returns
        b"", and `calls` say what became of them, as after `send`. None: nothing was sent."""
        handshake = self._inbox.lead()  # for as long as this frame lives
        if handshake is None:
            return None
        try:
            with self._mutex:
                connection, transport = self._connection, self._transport
                if (
                    connection is None
                    or transport is None
                    or (plain := transport.plain) is None
                    or self._broken is not None
                ):
                    return None
                pending = connection.pending
                if pending or connection.arrived or connection.buffer or transport.out or self._amidst or self._sending:
                    return None
                self._sending = True
                sent_at = self.used_at = calls[-1].sent_at = self._now()
                out = b""
                for call, body in zip(calls, bodies, strict=True):
                    call.xid = connection.xid = connection.xid % LAST_XID + 1
                    pending.append(call)
                    out += REQUEST.pack(len(body) + 4, call.xid) + body
                try:
                    sent = plain.send(out)
                except OSError:  # the reader sends the rest, or finds out why it cannot
                    sent = 0
                if sent < len(out):
                    transport.out += out[sent:]
                self._sending = False
            while self.bell.wait(transport, min(until - self._now(), _SLICE)):
                with self._reading:
                    self._deputy = False
                    # This thread may have been stuck (in a signal's handler, in a debugger), and the heart read.
                    if transport is not self._transport or self._amidst or self._broken is not None or calls[0].ended:
                        break
                    self._amidst = True
                    self._read_at = self.heard_at = self._now()
                    try:
                        raw = plain.recv(CHUNK)
                        replies = connection.receive_now(raw, calls, sizes) if raw else None
                    except OSError:
                        raw, replies = b"", None
                    except Garbled as error:
                        self._broken, replies = _garbled(error), None
                    if not raw:
                        self._read(transport)  # it finds out what is wrong
                    self._amidst = False
                    if replies is None:
                        self._deal()
                        break
                    if replies:
                        if len(calls) > 1:  # a sample for each pair of verbs is enough
                            self.round_trip.add(self._read_at - sent_at)
                        return replies
            self.deliver()
            while not calls[-1].ended and (left := until - self._now()) > 0:
                if others := self.receive(min(left, _SLICE)):
                    self._inbox.deliver_all(others)
            return b""
        finally:
            self._inbox.resign()

    def _flush(self) -> None:
        """Send the requests that were collected."""
        self._planned_at = 0.0
        self.send(())

    def tell(self, inbox: Inbox, key: bytes, message: bytes) -> None:
        """From within `then` or a watcher."""
        self._parcels.append(_Parcel(inbox, key, message))

    def deliver(self) -> None:
        """Deliver messages that were told outside of reading."""
        own = self._own(self._collected())
        if own:
            self._inbox.deliver_all(own)

    def clear(self) -> None:
        """Nobody watches any more."""
        with self._mutex:
            self.watches.clear()

    def break_(self, why: str = "") -> None:
        """End the connection, for this reason or the one that is known; the session may live on."""
        if self._connection is None:
            return
        self._broken = self._broken or why
        self.bell.ring()
        with self._reading:
            if self._broken is not None:
                self._end()
        self.deliver()

    def drain(self, until: float, done: Callable[[], bool]) -> None:
        """Read until then, or until it is done; nobody else will."""
        while not done() and (left := until - self._now()) > 0 and (transport := self._transport) is not None:
            ready = transport.ready(left)
            with self._reading:
                self._pull(transport if ready and transport is self._transport else None)

    def read_for_the_leader(self, now: float) -> bool:
        """What nobody reads for a while: whoever leads may be stuck, and unread answers would cost the session. To be
        called again as long as it is True: until the leader is back, or nothing comes."""
        transport = self._transport
        if transport is None or (now - self._read_at < _POLL_INTERVAL and not self._deputy):
            return False
        self._deputy = transport.ready(_POLL_INTERVAL if self._deputy else 0.0)
        if self._deputy:
            with self._reading:
                self._pull(transport if transport is self._transport else None)
            self.deliver()
            self.bell.ring()  # the leader may be waiting for what was read here
        return self._deputy

    def close(self) -> None:
        self._closed = True
        self._inbox.unlisten()
        self.bell.ring()
        with self._reading:
            self.bell.close()

    def abandon(self) -> None:
        """In a forked child: the parent's socket is not ours to talk on."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()
        self.bell.close()

    # A source, for the inbox whose waiters lead.

    def fileno(self) -> int:
        raise NotImplementedError("no event loop reads here: the heart does")

    def read(self) -> list[tuple[bytes, bytes]]:
        return self.receive(0.0)

    def poke(self) -> None:
        self.bell.ring()

    def recover(self) -> None:
        """Close the connection if its last reader was interrupted: a request sent on it would get no answer. The leader
        calls this before it sends."""
        if self._amidst:
            with self._reading:
                if self._amidst:  # the heart reads at times, too
                    self._pull(None)
            self.deliver()

    def receive(self, patience: float) -> list[tuple[bytes, bytes]]:
        if self._closed:
            return []
        transport = self._transport
        ready = self.bell.wait(transport, 0.0 if self._amidst or self._broken is not None else patience)
        with self._reading:
            # Who waited may have been stuck (in a signal's handler, in a debugger), and the heart read meanwhile.
            self._deputy = False
            self._pull(transport if ready and transport is self._transport else None)
            return self._own(self._collected())

    def _pull(self, transport: Transport | None) -> None:
        """Read what there is to be read on a link, and deal with it."""
        self._read_at = self._now()
        if self._amidst:
            self._broken = self._broken or "the reader was interrupted"
        if transport is not None and self._broken is None:
            self._read(transport)
        if self._broken is not None:
            self._end()
        self._deal()

    def _read(self, transport: Transport) -> None:
        connection = self._connection
        if connection is None:
            return
        self._amidst = True
        try:
            raw = transport.read()
            with self._mutex:
                data = transport.take_in(raw) if raw else b""
                if transport.stuck:
                    transport.flush()
            if data:
                self.heard_at = self._read_at
            connection.receive(data)
            if connection.waiting:
                with self._mutex:
                    transport.send(connection.more())
        except StoreUnavailable as error:
            self._broken = error.what
        except Garbled as error:
            self._broken = _garbled(error)
        self._amidst = False

    def _deal(self) -> None:
        """Deliver the replies and events that arrived."""
        connection = self._connection
        if connection is None:
            return
        arrived = connection.arrived
        if not arrived:
            return
        self._dealing = True
        try:
            while arrived:
                item = arrived[0]
                if isinstance(item, Event):
                    with self._mutex:
                        told = self.watches.told(item)
                    for watcher in told:
                        watcher(item)
                else:
                    if item.sent_at and item.error != LOST:
                        self.round_trip.add(self._read_at - item.sent_at)
                    if item.then is not None:
                        item.then(item)
                arrived.popleft()
        finally:
            self._dealing = False
            transport = self._transport
            if transport is not None and transport.stuck:
                self.send(())

    def _end(self) -> None:
        """Called by the reader."""
        with self._mutex:
            transport, connection = self._transport, self._connection
            if transport is not None:
                transport.close()  # before it is forgotten: an interrupt may come between any two lines
            self._transport = None
            self.trouble = self._broken or self.trouble
        self._amidst = False
        if connection is not None:
            connection.end()
            self._deal()
        self._connection, self._broken = None, None
        self._ended()

    def _collected(self) -> list[_Parcel]:
        parcels: list[_Parcel] = []
        with suppress(IndexError):
            while self._parcels:
                parcels.append(self._parcels.popleft())
        return parcels

    def _own(self, parcels: list[_Parcel]) -> list[tuple[bytes, bytes]]:
        """Those of the waiters that lead are theirs to hand over; others are delivered."""
        own: list[tuple[bytes, bytes]] = []
        others: list[tuple[bytes, bytes]] = []
        for parcel in parcels:
            (own if parcel.inbox is self._inbox else others).append((parcel.key, parcel.message))
        if others and self._feed is not None:
            self._feed.put(others)
        return own


def _garbled(error: Garbled) -> str:
    return f"the server does not speak ZooKeeper's protocol: {error}"
