"""The claims of one client as they stand in the store, and what the server says of them meanwhile.

A `NodeClaim` knows its node and the node it waits for. The thread that reads (see wire/client.py) calls its methods
that take an event or a call, one at a time: they note the change, tell the waiter, and send the next request without
waiting. Where the directory knows all nodes before a mutex, the end of the last one is the grant. Anything less clear
makes it `stale`, and the next look lists again. So do watches that were set again at another server.

The own node is watched with the one ahead, or by the heart once it is held for 100 ms: its end is the end of the claim,
and Curator's word in it asks to let go. One that waited has the instant of its grant written down after a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dibs.backends.zookeeper.directory import Directory
from dibs.backends.zookeeper.queue_rule import LATCH, LOCK, REVOKE, leaf_of, written
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.codec import Created, Event, Node, Stat
from dibs.backends.zookeeper.wire.session import CHILDREN, DATA, LOST, PendingRequest, Session, Watch
from dibs.core.deadline import FOREVER, left_for
from dibs.core.queue import LOOK, YOURS, ClientIdentity, Signal
from dibs.core.rule import Claim, Standing
from dibs.errors import BadName

WATCHED_AFTER = 0.1
WRITTEN_AFTER = 1.0
_TOMBS = 64


class NodeClaim:
    def __init__(self, table: NodeClaims, claim: Claim, directory: str, queue: Directory) -> None:
        self._table = table
        self.claim = claim
        self.directory = directory
        self.queue = queue
        """Where it stands in the queue: that directory, or one in it."""
        self.word = ""
        self.session: Session | None = None
        self.place = ""
        """The node that gave it its place in the queue."""
        self.nodes: list[str] = []
        """Those that its claim lives by."""
        self.ticket = 0
        self.data = b""
        self.holds = self.gone = self.stale = self.over = False
        self.doubtful = claim.asked
        """A node of it may be there that nobody here knows of: an answer was lost."""
        self.epoch = 0
        """The connection, by its number, over which its own node was last seen; over a later one it may be gone."""
        self.waiting_for: tuple[str, str] | None = None
        self.look_again: Callable[[NodeClaim], None] = NodeClaim.tell_look
        """Called when the node ahead has gone, and only a listing can tell who is next."""
        self.first: Callable[[NodeClaim], None] = NodeClaim.now_holds
        """Called once no node is before it."""
        self.revoked = False
        self.changing = False
        """One of its nodes is being replaced by others: ends of nodes are no news meanwhile."""
        self.looked_at_until = 0.0
        """Somebody is looking, or finding, or taking: waiter and watchdog may both want to, and would do it twice."""
        self._own: dict[str, int] = {}
        """Which of its nodes are watched, and the version that was seen."""

    @property
    def node_claims(self) -> bool:
        """Its node is there, as far as anybody knows."""
        session = self.session
        return session is not None and not (self.gone or session.over)

    @property
    def placed(self) -> bool:
        """It holds, or waits to be told."""
        return self.holds or self.waiting_for is not None

    @property
    def unseen(self) -> bool:
        """The data of the own node was requested, and the reply has not come yet."""
        return -1 in self._own.values()

    def standing(self, now: float) -> Standing | None:
        session = self.session
        if session is None or self.gone or session.over or now >= session.deadline:
            return None
        return Standing(self.ticket, self.holds, left_for(session.deadline, now), FOREVER, self.revoked)

    def granted(self) -> None:
        self.waiting_for, self.stale = None, False
        if not self.holds:
            self.holds = True
            self._table.note(self, self._table.now() + WATCHED_AFTER, self.watch_own)

    def asks(self) -> None:
        """Its node is about to be made, over the current connection."""
        self.claim.asked = self.doubtful = True
        self.epoch = self._table.client.epoch

    def made(self, call: PendingRequest) -> None:
        """The reply to its creation; called by the reader."""
        created, session = call.value, self._table.client.session
        if isinstance(created, Created) and created.stat.owner == session.id:
            self.session, self.place, self.nodes = session, created.path, [created.path]
            self.ticket = self.claim.ticket = created.stat.czxid

    def numbered(self, first: Callable[[], None], call: PendingRequest) -> None:
        """The stat of its directory came behind the creation; called by the reader. The number of its node may tell
        which node is ahead, or that it is first."""
        if isinstance(stat := call.value, Stat) and self.session is not None:
            self.queue.made(leaf_of(self.place), self.word, stat)
            if not self.over:
                self.follow(first)

    def follow(self, first: Callable[[], None]) -> bool:
        """Wait for the one before it, or call `first` if there is none; False: who is before it is not known."""
        before = self.queue.before(leaf_of(self.nodes[0]), self.word) if self._is_in_order() else None
        if before:
            self.wait_for(DATA, f"{self.queue.path}/{before}")
        elif before is not None:
            first()
        return before is not None

    def _is_in_order(self) -> bool:
        """It waits for the nearest node before it, and its own node was seen over this connection."""
        return self.word in (LOCK, LATCH) and self.node_claims and self.epoch == self._table.client.epoch

    def wait_for(self, kind: str, path: str) -> None:
        """Be told when that ends, or changes; and of the own node."""
        self.stale = False
        if self._is_in_order() and self.queue.before(leaf_of(path), self.word) == "":
            self.watch_own()  # before: or somebody could remove it, and we would take the next event for a grant
        else:  # the next event leads to a listing, which shows the own node
            self._table.note(self, self._table.now() + WATCHED_AFTER, self.watch_own)
        if self.waiting_for != (kind, path):
            self.stop_waiting()
            self.waiting_for = (kind, path)
            asking = codec.children(path, watch=True) if kind == CHILDREN else codec.get(path, watch=True)
            call = PendingRequest(asking, self._asked)
            if not self._table.client.send((call,), (kind, path, self.moved)):
                self._asked(call)

    def stop_waiting(self) -> None:
        if self.waiting_for is not None:
            kind, path = self.waiting_for
            self.waiting_for = None
            self._table.client.send((), drop=[(kind, path, self.moved)])

    def watching(self) -> list[Watch]:
        """All that it watches, and does so no longer."""
        found: list[Watch] = [(DATA, path, self.touched) for path in self._own]
        if self.waiting_for is not None:
            found.append((*self.waiting_for, self.moved))
        self.waiting_for, self._own = None, {}
        return found

    def watch_own(self) -> None:
        for path in self.nodes:
            if path not in self._own and not (self.over or self.gone):
                self._own[path] = -1
                call = PendingRequest(codec.get(path, watch=True), self._seen(path))
                if not self._table.client.send((call,), (DATA, path, self.touched)):
                    self._own.pop(path, None)
                    self._table.note(self, self._table.now() + WATCHED_AFTER, self.watch_own)

    def write_grant(self) -> None:
        """For others: it holds since now, not since it asked."""
        if self.over or self.gone or not self.nodes:
            return
        path = self.nodes[0]
        version = self._own.get(path, -1)
        if version < 0:
            return
        self.data = written(self.claim.description, self._timeout(), self._borrowed(), held=True)
        self._put(path, version)

    # Called by the reader.

    def moved(self, event: Event) -> None:
        """The node that it waited for has ended, or changed."""
        if self.over or self.gone or self.holds or self.waiting_for is None or self.waiting_for[1] != event.path:
            return
        (kind, path), self.waiting_for = self.waiting_for, None
        if event.kind == codec.CHANGED:
            self.wait_for(kind, path)
            return
        if event.kind == codec.DELETED:
            self.queue.gone(leaf_of(path))
            if self._is_next():
                return
        self.look_again(self)

    def _is_next(self) -> bool:
        """The one before it went. It is first, or follows another claim of this client; False: one listing has to tell.
        The nodes of others before it may be gone long ago: asking for one after the other would take a trip each."""
        before = self.queue.before(leaf_of(self.nodes[0]), self.word) if self._is_in_order() else None
        if before == "" and self.nodes[0] in self._own:
            self.first(self)
            return True
        if before and self.queue.is_ours(before):
            self.wait_for(DATA, f"{self.queue.path}/{before}")
            return True
        return False

    def now_holds(self) -> None:
        """It waited, and holds."""
        self.granted()
        self._table.note(self, self._table.now() + WRITTEN_AFTER, self.write_grant)
        self._tell(YOURS)

    def tell_look(self) -> None:
        """Have the waiter look by itself."""
        self.stale = True
        self._tell(LOOK)

    def touched(self, event: Event) -> None:
        """Something happened to the own node."""
        self._own.pop(event.path, None)
        if self._is_past(event.path):
            return
        if event.kind == codec.DELETED:
            self.end(event.path)
        else:
            self.watch_own()

    def _is_past(self, path: str) -> bool:
        """Events of that node are no news. Another thread changes `nodes` first and then resets `changing`: hence the
        order of the conditions."""
        return self.over or self.changing or path not in self.nodes

    def end(self, path: str = "") -> None:
        """It lives by all of its nodes: with one of them gone, the others go too."""
        if not self.gone:
            self.gone = True
            if path:
                self.queue.gone(leaf_of(path))
            for other in self.nodes:
                if path and other != path:
                    self._table.client.post(codec.delete(other))
            self.tell_news()

    def tell_news(self) -> None:
        if self.holds:
            self._table.me.news(self.claim.id)
        else:
            self._tell(LOOK)

    def _asked(self, call: PendingRequest) -> None:
        if self.over:
            return
        if call.error == codec.NO_NODE and self.waiting_for is not None:
            kind, path = self.waiting_for
            self._table.client.send((), drop=[(kind, path, self.moved)])  # the server set none
            self.moved(Event(codec.DELETED, path))
        elif call.error != codec.OK:
            self.waiting_for = None
            self.unanswered(call)

    def unanswered(self, call: PendingRequest) -> None:
        """A look brought nothing. If the connection broke, the waiter is told once there is another."""
        self.stale = True
        if call.error != LOST:
            self._tell(LOOK)

    def _seen(self, path: str) -> Callable[[PendingRequest], None]:
        def seen(call: PendingRequest) -> None:
            if self._is_past(path):
                return
            if call.error == codec.NO_NODE:
                self._table.client.send((), drop=[(DATA, path, self.touched)])
                self.end(path)
            elif not isinstance(node := call.value, Node):
                self._own.pop(path, None)
                self._table.note(self, self._table.now() + WATCHED_AFTER, self.watch_own)
            else:
                self._own[path] = node.stat.version
                if node.data == REVOKE:
                    self.revoked = True
                    self._put(path, node.stat.version)  # what others are shown of us comes back
                    self.tell_news()

        return seen

    def _put(self, path: str, version: int) -> None:
        def put(call: PendingRequest) -> None:
            if isinstance(stat := call.value, Stat) and path in self._own:
                self._own[path] = stat.version

        self._table.client.post(codec.put(path, self.data, version), put)

    def _borrowed(self) -> int:
        """The ticket, where the node at hand does not give it by itself."""
        return 0 if self.nodes == [self.place] else self.ticket

    def _timeout(self) -> float:
        return 0.0 if self.session is None else self.session.timeout

    def _tell(self, signal: Signal) -> None:
        self._table.client.tell(self._table.me.inbox, self.claim.id, signal.value)


class NodeClaims:
    """All of a client; what lives by its session (see `client.client.Owner`)."""

    def __init__(self, me: ClientIdentity, now: Callable[[], float]) -> None:
        self.me = me
        self.now = now
        self.client: SessionClient
        self._directories: dict[str, Directory] = {}
        self._table: dict[bytes, NodeClaim] = {}
        self.find = self._table.get
        self._tombs: dict[bytes, float] = {}
        self._most_tombs = _TOMBS
        """At this number, tombstones past their time are removed."""
        self._notes: deque[tuple[float, NodeClaim, Callable[[], None]]] = deque()

    def begin(self, claim: Claim, directory: str, queue: str, kept: Directory | None = None) -> NodeClaim:
        """`kept`: the queue as an earlier claim left it."""
        there = self._directories.get(queue)
        if there is None:
            there = self._directories.setdefault(queue, kept or Directory(self.client, queue, claim.name))
        elif there.name != claim.name:
            # The core takes them for two locks: a task that has one would wait for the other, and so for itself.
            raise BadName(
                f"{claim.name!r} is the same path as {there.name!r}, which this client is using",
                step="write the name in one way",
            )
        there.claims.add(claim.id)
        node_claim = self._table[claim.id] = NodeClaim(self, claim, directory, there)
        return node_claim

    def stranger(self, claim: Claim, directory: str, queue: str) -> NodeClaim:
        """A stand for a claim that may have a node, and is not in the table."""
        return NodeClaim(self, claim, directory, Directory(self.client, queue, claim.name))

    def finish(self, id: bytes) -> NodeClaim | None:
        """From here on nothing that happens to its node is news."""
        node_claim = self._table.pop(id, None)
        if node_claim is not None:
            node_claim.over = True
            queue = node_claim.queue
            queue.claims.discard(id)
            if not queue.claims:
                # Another thread may come just now: then there are two, and each knows less.
                self._directories.pop(queue.path, None)
        return node_claim

    def bury(self, claim: Claim) -> None:
        if len(self._tombs) >= self._most_tombs:
            now = self.now()
            self._tombs = {id: end for id, end in self._tombs.items() if end > now}
            self._most_tombs = 2 * len(self._tombs) + _TOMBS
        self._tombs[claim.id] = claim.by

    def is_buried(self, id: bytes) -> bool:
        return id in self._tombs

    def note(self, node_claim: NodeClaim, at: float, do: Callable[[], None]) -> None:
        self._notes.append((at, node_claim, do))
        if at < self.client.wakes_at:
            self.client.nudge(at)

    def attached(self) -> None:
        for node_claim in list(self._table.values()):
            if node_claim.stale and not node_claim.holds:
                self.client.tell(self.me.inbox, node_claim.claim.id, LOOK.value)

    def beaten(self) -> None:
        for node_claim in list(self._table.values()):
            if node_claim.holds:
                self.me.news(node_claim.claim.id)

    def ended(self) -> None:
        for node_claim in list(self._table.values()):
            node_claim.end()

    def tidy(self, now: float) -> float:
        if not self._notes:
            return FOREVER
        for _ in range(len(self._notes)):  # others put more of them there meanwhile
            at, node_claim, do = note = self._notes.popleft()
            if node_claim.over or node_claim.gone:
                continue
            if at <= now:
                do()
            else:
                self._notes.append(note)
        # Soon again, though perhaps in vain: where one claim follows the other, each would ring for a turn of its own.
        return min((at for at, _, _ in tuple(self._notes)), default=now + WATCHED_AFTER)

    def busy(self) -> bool:
        return bool(self._table)
