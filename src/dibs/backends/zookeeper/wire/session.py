"""A session and its connections, as a state machine. No I/O.

A `Session` outlives its connections. With its id and password any server resumes it; it ends by time. A `Connection` is
one stream of bytes to one server. It goes from GREETING to UP to ENDED, and may end at any point.

Replies come in the order of the requests, so each belongs to the first pending request; any other reply is `Garbled`.
Replies and events stay in `arrived` until they were dispatched. So a reader that is interrupted loses nothing: the next
one dispatches the rest, or ends the connection.

**How long a session lives.** Only the leader ends sessions. It hears of us through our server, which answers pings even
when it is cut off from the leader. So a heartbeat is a `sync`, which goes through the leader. The leader learns that we
live only with the *next* report of our server, so our own deadline counts from the sending of the last but one answered
heartbeat. Heartbeats are some time apart: two in quick succession would prove nothing more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto

from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import REPLY, Event, Garbled, Request
from dibs.core.deadline import margin

LOST = 1
"""In place of a server's error: there was no reply, and whether the request was done is unknown."""
BEAT = 0.28
"""Part of the timeout between two heartbeats. It is longer than the half tick after which a server reports to the
leader (a timeout is at least two ticks). It leaves a third of the timeout before the reply that counts."""
PATIENCE = BEAT / 2
"""Part of the timeout for the reply to a heartbeat: enough is left to resume the session elsewhere."""

LAST_XID = 2**31 - 1
WINDOW = 500
"""The most unanswered requests; others wait here. A server with 1,000 unanswered requests stops reading from its
clients, and a heartbeat would wait behind them."""


class PendingRequest:
    """One request; when it has ended, `error` and `value` are its outcome."""

    __slots__ = ("ended", "error", "request", "sent_at", "then", "value", "xid")

    def __init__(self, request: Request, then: Callable[[PendingRequest], None] | None = None, xid: int = 0) -> None:
        self.request = request
        self.then = then
        """The reader calls it when the request has ended."""
        self.xid = xid
        self.error = LOST
        self.ended = False
        self.value: object = None
        self.sent_at = 0.0
        """Set if a caller waits for the reply: the round trip is measured."""


class Session:
    """The state that outlives a connection."""

    def __init__(self, timeout: float) -> None:
        self.id = 0
        self.password = bytes(16)
        self.timeout = timeout
        """The requested timeout, then the one that the server granted."""
        self.zxid = 0
        self.over = False
        self._last = 0.0
        self._count_from(0.0)

    def remains(self) -> Session:
        """A copy that is enough to close the session."""
        remains = Session(self.timeout)
        remains.id, remains.password = self.id, self.password
        return remains

    def _count_from(self, sent_at: float) -> None:
        self.deadline = sent_at + self.timeout - margin(self.timeout)
        """The session certainly lives until then."""

    @property
    def beat_at(self) -> float:
        return self._last + self.timeout * BEAT

    def attached(self, welcome: codec.Welcome, sent_at: float) -> None:
        """A server began or resumed the session. It asked the leader, so the time counts from now on."""
        self.id, self.password, self.timeout = welcome.session, welcome.password, welcome.timeout_ms / 1000
        self._last = sent_at
        self._count_from(sent_at)

    def beaten(self, sent_at: float) -> None:
        """A `sync` was answered. It does not count as a heartbeat if it was sent soon after the last one: the server
        may not have reported to the leader in between."""
        if sent_at >= self._last + self.timeout * BEAT * 0.95:
            self._count_from(self._last)
            self._last = sent_at


class Phase(Enum):
    GREETING = auto()
    UP = auto()
    ENDED = auto()


class Connection:
    def __init__(self, session: Session, now: float) -> None:
        self.session = session
        self.phase = Phase.GREETING
        self.arrived: deque[PendingRequest | Event] = deque()
        self.pending: deque[PendingRequest] = deque()
        self.waiting: deque[PendingRequest] = deque()
        """Requests to send once others were answered."""
        self.buffer = bytearray()
        """The bytes of an incomplete frame."""
        self._begun = now
        self.xid = 0
        """The xid of the last request."""

    def greet(self) -> bytes:
        session = self.session
        return codec.greeting(session.zxid, round(session.timeout * 1000), session.id, session.password)

    def send(self, calls: Sequence[PendingRequest], *, ahead: bool = False) -> bytes:
        """The bytes to send now for these requests. `ahead`: before all requests that wait to be sent."""
        if ahead or (not self.waiting and len(self.pending) + len(calls) <= WINDOW):
            return self._encode(calls)
        self.waiting.extend(calls)
        return self.more()

    def more(self) -> bytes:
        """The bytes of waiting requests that may be sent now."""
        waiting, room = self.waiting, WINDOW - len(self.pending)
        if not waiting or room <= 0:
            return b""
        return self._encode([waiting.popleft() for _ in range(min(room, len(waiting)))])

    def _encode(self, calls: Sequence[PendingRequest]) -> bytes:
        out = []
        for call in calls:
            if not call.xid:
                self.xid = self.xid % LAST_XID + 1
                call.xid = self.xid
            self.pending.append(call)
            out.append(codec.encode(call.xid, call.request))
        return b"".join(out)

    def receive(self, data: bytes) -> None:
        self.buffer += data
        for one in codec.frames(self.buffer):
            if self.phase is Phase.UP:
                self._take(one)
            elif self.phase is Phase.GREETING:
                self._welcome(one)

    def receive_now(self, data: bytes, calls: Sequence[PendingRequest], sizes: Sequence[int]) -> bytes | None:
        """Receive the replies to `calls`, which are the first pending requests. Returns the raw replies once all have
        arrived, if they have these sizes and report no error. b"": some have not arrived yet. None: something else
        arrived, and was received as usual."""
        buffer, at, zxid = self.buffer, 0, 0
        buffer += data
        for call, size in zip(calls, sizes, strict=True):
            if at == len(buffer):
                return b""
            length, xid, zxid, error = REPLY.unpack_from(buffer, at) if at + size <= len(buffer) else (-1, 0, 0, 0)
            if length != size - 4 or xid != call.xid or error:
                self.receive(b"")
                return None
            at += size
        if at != len(buffer):
            self.receive(b"")
            return None
        replies = bytes(buffer)
        buffer.clear()
        self.session.zxid = max(self.session.zxid, zxid)
        for call in calls:
            call.error, call.ended = codec.OK, True
            self.pending.popleft()
        return replies

    def end(self) -> None:
        """The connection has ended: all pending requests are lost."""
        self.phase = Phase.ENDED
        for calls in (self.pending, self.waiting):
            while calls:
                call = calls[0]
                if not call.ended:
                    call.error, call.ended = LOST, True
                    self.arrived.append(call)
                calls.popleft()

    def _welcome(self, data: bytes) -> None:
        welcome = codec.welcome(data)
        if welcome.session == 0 or welcome.timeout_ms <= 0:
            self.session.over = True
            self.phase = Phase.ENDED
            return
        if self.session.id not in (0, welcome.session):
            raise Garbled("the server took up another session than ours")
        self.session.attached(welcome, self._begun)
        self.phase = Phase.UP

    def _take(self, data: bytes) -> None:
        xid, zxid, error = codec.head(data)
        if xid == codec.EVENT:
            self.arrived.append(codec.event(data))
            return
        if xid == codec.PING:
            return
        self.session.zxid = max(self.session.zxid, zxid)
        if not self.pending or self.pending[0].xid != xid:
            raise Garbled("a reply to another request than the one that is due")
        call = self.pending[0]
        if error == codec.OK:
            call.value = call.request.read(codec.Reader(data, codec.BODY))
        call.error, call.ended = error, True
        self.arrived.append(call)
        self.pending.popleft()


_AT_ONCE = 250
"""Paths in one request. A path of ours has up to about 2,000 bytes, and a server reads requests of up to 1 MB."""
Watcher = Callable[[Event], None]
Watch = tuple[str, str, Watcher]
"""Kind, path, watcher."""
DATA, EXISTENCE, CHILDREN = "data", "existence", "children"
_TOLD = {
    codec.CREATED: (EXISTENCE,),
    codec.DELETED: (DATA, EXISTENCE, CHILDREN),
    codec.CHANGED: (DATA, EXISTENCE),
    codec.CHILDREN: (CHILDREN,),
}


class Watches:
    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, list[Watcher]]] = {DATA: {}, EXISTENCE: {}, CHILDREN: {}}

    def __bool__(self) -> bool:
        return any(self._kinds.values())

    def add(self, kind: str, path: str, watcher: Watcher) -> None:
        self._kinds[kind].setdefault(path, []).append(watcher)

    def drop(self, kind: str, path: str, watcher: Watcher) -> Request | None:
        """Returns the request to send if nothing watches the path any more."""
        there = self._kinds[kind].get(path)
        if there is None or watcher not in there:
            return None
        there.remove(watcher)
        if there:
            return None
        del self._kinds[kind][path]
        if kind == CHILDREN:
            return codec.remove_watches(path, codec.OF_CHILDREN)
        if any(path in self._kinds[other] for other in (DATA, EXISTENCE)):
            return None  # the server has one watch for both kinds, and the other one still needs it
        return codec.remove_watches(path, codec.OF_DATA)

    def told(self, event: Event) -> list[Watcher]:
        """Pop the watchers of an event."""
        found: list[Watcher] = []
        for kind in _TOLD.get(event.kind, ()):
            found += self._kinds[kind].pop(event.path, ())
        return found

    def all_again(self, zxid: int) -> list[Request]:
        """The requests that set all watches again at another server, which then reports at once what happened since
        `zxid`. There may be several, because a server refuses a request that is too long."""
        every = [(kind, path) for kind, paths in self._kinds.items() for path in paths]
        parts = [every[n : n + _AT_ONCE] for n in range(0, len(every), _AT_ONCE)]
        return [
            codec.set_watches(zxid, *([path for kind, path in part if kind == one] for one in self._kinds))
            for part in parts
        ]

    def clear(self) -> None:
        for there in self._kinds.values():
            there.clear()
