"""One connection shared by threads: any thread sends, one thread at a time reads and dispatches replies and events.

It is the `Source` of the inbox whose waiters lead (runtime/inbox.py): a lone blocking caller reads the socket itself.
The reader calls `PendingRequest.then` and the watchers, one at a time. The messages that they `tell` are delivered
afterwards.

An interrupt can strike anywhere. A reply or event stays in `Connection.arrived` until it was dispatched, so the next
reader may dispatch it again, which must do no harm. A reader that disappears while it reads leaves `_is_reading` set.
The next reader then ends the connection, which costs no claim.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.common.wakeup import READ, WRITE, new_poll
from dibs.backends.zookeeper.wire.codec import REQUEST, SET_WATCHES, Event, Garbled
from dibs.backends.zookeeper.wire.session import LAST_XID, LOST, Connection, PendingRequest, Watch, Watches
from dibs.backends.zookeeper.wire.transport import CHUNK, Transport
from dibs.core.runtime import Inbox, Runtime
from dibs.errors import StoreUnavailable

_POLL_INTERVAL = 0.1
"""Seconds that the leader has to read before the heart does it."""
_SLICE = 1.0
"""Nobody waits longer without a look at the clock."""

CallSoon = Callable[[Callable[[], None]], object]
Messages = list[tuple[bytes, bytes]]
"""Each with its key."""


class Bell:
    """Waits until a transport is readable, or until another thread rings. One thread at a time waits."""

    def __init__(self) -> None:
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poll = new_poll()
        self._poll.register(self._woken, READ)
        self._woken_number = self._woken.fileno()
        self._transport: Transport | None = None
        self._transport_number = -1
        self._polls_writes = False

    def ring(self) -> None:
        with suppress(OSError):  # full: the waiter wakes anyway; closed: nobody waits
            self._waker.send(b"!")

    def wait(self, transport: Transport | None, patience: float) -> bool:
        """True: the transport can be read or, if output is left, written to."""
        if transport is not self._transport:
            self._attend(transport)
        if (
            transport is not None
            and transport is self._transport
            and (stuck := bool(transport.out)) is not self._polls_writes
        ):
            self._poll.modify(self._transport_number, READ | WRITE if stuck else READ)
            self._polls_writes = stuck
        is_ready = False
        for descriptor, _ in self._poll.poll(patience * 1000 if patience > 0 else 0):
            if descriptor == self._woken_number:
                with suppress(OSError):  # it was closed meanwhile
                    self._woken.recv(4096)
            else:
                is_ready = True
        return is_ready

    def close(self) -> None:
        self._woken.close()
        self._waker.close()

    def _attend(self, transport: Transport | None) -> None:
        """An interrupt may come between any two lines: the next call begins from the start."""
        self._transport = None
        with suppress(KeyError, ValueError):  # it is not registered
            self._poll.unregister(self._transport_number)
        if transport is not None and (number := transport.fileno()) >= 0:  # another thread may have closed it
            self._transport_number = number
            self._poll.register(number, READ)
            self._polls_writes = False
            self._transport = transport


class Exchange:
    def __init__(
        self,
        runtime: Runtime,
        inbox: Inbox,
        ended: Callable[[], None],
        feed: Callable[[Messages], None] | None = None,
    ) -> None:
        """`inbox`: its waiters lead. `ended` is called when a connection has ended. `feed` delivers messages for any
        other inbox."""
        self._now = runtime.now
        self._inbox = inbox
        self._feed = feed
        self._ended = ended
        self._mutex = runtime.mutex()
        """Protects what is sent, and its order."""
        self._reading = runtime.mutex()
        self.bell = Bell()
        self.poke = self.bell.ring
        self.watches = Watches()
        self.round_trip = RoundTrip()
        self._transport: Transport | None = None
        self._connection: Connection | None = None
        self._broken: str | None = None
        """Why the connection must end; the next reader ends it."""
        self._flush_planned_at = 0.0
        """When a flush of collected requests was scheduled; 0: none is."""
        self._is_reading = self._is_sending = self._deputy = self._closed = False
        self._is_dispatching = False
        """Requests that are made meanwhile are sent together afterwards."""
        self._read_at = self.heard_at = 0.0
        self.used_at = runtime.now()
        """When a caller last sent a request."""
        self._messages: deque[tuple[Inbox, bytes, bytes]] = deque()
        """The heart may add some while another thread reads; both only append and pop."""
        self.trouble = "not connected yet"
        """The last error of a connection."""
        inbox.listen(self)

    @property
    def up(self) -> bool:
        return self._connection is not None and self._broken is None

    def begin(self, transport: Transport, connection: Connection) -> None:
        """Use a new connection. Watches of an earlier connection of the session are set again."""
        with self._mutex:
            if connection.session.zxid:
                for setting in self.watches.all_again(connection.session.zxid):
                    transport.send(connection.send([PendingRequest(setting, xid=SET_WATCHES)]))
            self._is_sending = False
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
        """Send requests back to back. False: not connected.

        The watches in `drop` are removed, and `watch` is added, in the same step. `call_soon`: while other replies are
        due anyway, collect requests and send them together in the next round of the event loop. `ahead`: before all
        requests that wait to be sent."""
        with self._mutex:
            if drop:
                dropped = [self.watches.drop(*one) for one in drop]
                calls = [*(PendingRequest(request) for request in dropped if request is not None), *calls]
            connection, transport = self._connection, self._transport
            if connection is None or transport is None or self._broken is not None:
                return False
            if self._is_sending:  # the last sender was interrupted: some pending requests were perhaps never sent
                self._break("the sender was interrupted")
                return False
            if watch is not None:
                self.watches.add(*watch)
            self._is_sending = True
            try:
                if self._is_dispatching:
                    transport.put(connection.send(calls, ahead=ahead))
                elif call_soon is None or not connection.pending:
                    transport.send(connection.send(calls, ahead=ahead))
                else:
                    transport.put(connection.send(calls))
                    self._plan_flush(call_soon)
            except StoreUnavailable as error:
                self._break(error.what)
            self._is_sending = False
            if transport.stuck and not (self._flush_planned_at or self._is_dispatching):
                self.bell.ring()
        return True

    def _break(self, why: str) -> None:
        self._broken = why
        self._ended()
        self.bell.ring()

    def _plan_flush(self, call_soon: CallSoon) -> None:
        now = self._now()
        if now - self._flush_planned_at > _POLL_INTERVAL:  # after that time the event loop was probably closed
            self._flush_planned_at = now
            call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned_at = 0.0
        self.send(())

    def ask_now(  # noqa: C901, PLR0912, PLR0915  (the free path to the socket, in one piece)
        self, calls: Sequence[PendingRequest], bodies: Sequence[bytes], sizes: Sequence[int], until: float
    ) -> bytes | None:
        """Send requests and read their replies, if no other thread sends or reads. `bodies` follow the xids.

        Returns the raw replies if they have these sizes and report no error. Returns b"" otherwise; `calls` then have
        their outcomes, as after `send`. None: nothing was sent."""
        hand = self._inbox.lead()  # for as long as this frame lives
        if hand is None:
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
                if pending or connection.arrived or connection.buffer or transport.out:
                    return None
                if self._is_reading or self._is_sending:
                    return None
                self._is_sending = True
                sent_at = self.used_at = calls[-1].sent_at = self._now()
                out = b""
                for call, body in zip(calls, bodies, strict=True):
                    call.xid = connection.xid = connection.xid % LAST_XID + 1
                    pending.append(call)
                    out += REQUEST.pack(len(body) + 4, call.xid) + body
                try:
                    sent = plain.send(out)
                except OSError:  # the reader sends the rest, or reports the error
                    sent = 0
                if sent < len(out):
                    transport.out += out[sent:]
                self._is_sending = False
            while self.bell.wait(transport, min(until - self._now(), _SLICE)):
                with self._reading:
                    self._deputy = False
                    # If this thread was stuck (in a signal handler or a debugger), the heart may have read instead.
                    if transport is not self._transport or self._is_reading or self._broken is not None:
                        break
                    if calls[0].ended:
                        break
                    self._is_reading = True
                    self._read_at = self.heard_at = self._now()
                    try:
                        raw = plain.recv(CHUNK)
                        replies = connection.receive_now(raw, calls, sizes) if raw else None
                    except OSError:
                        raw, replies = b"", None
                    except Garbled as error:
                        self._broken, replies = _garbled(error), None
                    if not raw:
                        self._read(transport)  # it reports the error
                    self._is_reading = False
                    if replies is None:
                        self._dispatch()
                        break
                    if replies:
                        if len(calls) > 1:  # one sample for each acquire and release is enough
                            self.round_trip.add(self._read_at - sent_at)
                        return replies
            self.deliver()
            while not calls[-1].ended and (left := until - self._now()) > 0:
                if others := self.receive(min(left, _SLICE)):
                    self._inbox.deliver_all(others)
            return b""
        finally:
            self._inbox.resign()

    def tell(self, inbox: Inbox, key: bytes, message: bytes) -> None:
        """Deliver a message after the current read, or with the next `deliver`."""
        self._messages.append((inbox, key, message))

    def deliver(self) -> None:
        """Deliver messages that were told outside of a read."""
        if own := self._collected():
            self._inbox.deliver_all(own)

    def _collected(self) -> Messages:
        """Pop all messages. Returns those for the inbox whose waiters lead, and feeds the others to their inbox."""
        own: Messages = []
        others: Messages = []
        with suppress(IndexError):  # another thread took the last one
            while self._messages:
                inbox, key, message = self._messages.popleft()
                (own if inbox is self._inbox else others).append((key, message))
        if others and self._feed is not None:
            self._feed(others)
        return own

    def clear(self) -> None:
        """Remove all watches: their session is over."""
        with self._mutex:
            self.watches.clear()

    def break_(self, why: str = "") -> None:
        """End the connection; the session may live on. An earlier reason takes precedence."""
        if self._connection is None:
            return
        self._broken = self._broken or why
        self.bell.ring()
        with self._reading:
            if self._broken is not None:
                self._end()
        self.deliver()

    def drain(self, until: float, done: Callable[[], bool]) -> None:
        """Read until `done`, without the inbox."""
        while not done() and (left := until - self._now()) > 0 and (transport := self._transport) is not None:
            ready = transport.ready(left)
            with self._reading:
                self._pull(transport if ready and transport is self._transport else None)

    def read_for_the_leader(self, now: float) -> bool:
        """Read if the leader has not read for a while: it may be stuck, and unread replies would cost the session.
        True: call it again, until the leader is back or nothing more comes."""
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
        """In a forked child: close the inherited socket without a word to the server."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()
        self.bell.close()

    def fileno(self) -> int:
        raise NotImplementedError("no event loop reads here: the heart does")

    def read(self) -> Messages:
        return self.receive(0.0)

    def recover(self) -> None:
        """End the connection if its last reader was interrupted: a new request on it would get no reply. The leader
        calls this before it sends."""
        if self._is_reading:
            with self._reading:
                if self._is_reading:  # not the heart, which reads at times
                    self._pull(None)
            self.deliver()

    def receive(self, patience: float) -> Messages:
        if self._closed:
            return []
        transport = self._transport
        ready = self.bell.wait(transport, 0.0 if self._is_reading or self._broken is not None else patience)
        with self._reading:
            self._deputy = False
            # If this thread was stuck (in a signal handler or a debugger), the heart may have read instead.
            self._pull(transport if ready and transport is self._transport else None)
            return self._collected()

    def _pull(self, transport: Transport | None) -> None:
        """Read what has arrived, and dispatch it. Called with `_reading`."""
        self._read_at = self._now()
        if self._is_reading:
            self._broken = self._broken or "the reader was interrupted"
        if transport is not None and self._broken is None:
            self._read(transport)
        if self._broken is not None:
            self._end()
        self._dispatch()

    def _read(self, transport: Transport) -> None:
        connection = self._connection
        if connection is None:
            return
        self._is_reading = True
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
        self._is_reading = False

    def _dispatch(self) -> None:
        """Hand over the replies and events that have arrived."""
        connection = self._connection
        if connection is None or not (arrived := connection.arrived):
            return
        self._is_dispatching = True
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
            self._is_dispatching = False
            transport = self._transport
            if transport is not None and transport.stuck:
                self.send(())

    def _end(self) -> None:
        """End the connection. Called with `_reading`."""
        with self._mutex:
            transport, connection = self._transport, self._connection
            if transport is not None:
                transport.close()  # before it is forgotten: an interrupt may come between any two lines
            self._transport = None
            self.trouble = self._broken or self.trouble
        self._is_reading = False
        if connection is not None:
            connection.end()
            self._dispatch()
        self._connection, self._broken = None, None
        self._ended()


def _garbled(error: Garbled) -> str:
    return f"the server does not speak ZooKeeper's protocol: {error}"
