"""The claims of one client with their nodes, and what the server reports about them.

A `NodeClaim` knows its own nodes and the node that it waits for. The reader (see wire/client.py) calls the methods that
take an event or a request, one at a time. They note the change, wake the waiter, and send the next request without
waiting. If the directory knows all nodes before a mutex, the end of the last one is the grant. In any less clear case
the claim becomes `stale`, and the next look lists the directory again.

The own node is watched together with the node ahead, or once it is held for 100 ms. Its end is the end of the claim,
and Curator's `__REVOKE__` in it asks the holder to release. A claim that had to wait writes the time of its grant into
its node after one second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

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
_TOMBSTONES = 64


class NodeClaim:
    def __init__(self, registry: NodeClaims, claim: Claim, directory: str, queue: Directory) -> None:
        self._registry = registry
        self.claim = claim
        self.directory = directory
        self.queue = queue
        """Where its node is: that directory, or `locks` in it."""
        self.word = ""
        self.session: Session | None = None
        self.place = ""
        """The node that gave it its place in the queue."""
        self.nodes: list[str] = []
        """The nodes that the claim needs."""
        self.ticket = 0
        self.data = b""
        self.holds = self.gone = self.stale = self.over = False
        self.doubtful = claim.asked
        """It may have a node that this client does not know: a reply was lost."""
        self.epoch = 0
        """The connection over which its own node was last seen; by a later connection it may be gone."""
        self.waiting_for: tuple[str, str] | None = None
        self.look_again: Callable[[NodeClaim], None] = NodeClaim.tell_look
        """Called when the node ahead has gone, and only a listing can tell who is next."""
        self.needs_permits = False
        """The first in the queue does not hold yet: it is a semaphore's."""
        self.revoked = False
        self.changing = False
        """One of its nodes is being replaced: the end of a node is no news meanwhile."""
        self.looked_at_until = 0.0
        """The waiter or the watchdog already looks at it, until then."""
        self._own: dict[str, int] = {}
        """The versions of its nodes that are watched; -1: the reply has not arrived yet."""

    @property
    def has_node(self) -> bool:
        """Its node exists, as far as this client knows."""
        session = self.session
        return session is not None and not (self.gone or session.over)

    @property
    def is_judged(self) -> bool:
        """It holds, or watches the right node."""
        return self.holds or self.waiting_for is not None

    @property
    def is_unseen(self) -> bool:
        """The data of an own node was requested, and the reply has not arrived yet."""
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
            self._later(WATCHED_AFTER, self.watch_own)

    def asks(self) -> None:
        """Its node is about to be made, over the current connection."""
        self.claim.asked = self.doubtful = True
        self.epoch = self._registry.client.epoch

    def made(self, call: PendingRequest) -> None:
        """The reply to the creation of its node. Called by the reader."""
        created, session = call.value, self._registry.client.session
        if isinstance(created, Created) and created.stat.owner == session.id:
            self.session, self.place, self.nodes = session, created.path, [created.path]
            self.ticket = self.claim.ticket = created.stat.czxid

    def numbered(self, call: PendingRequest) -> None:
        """The stat of its directory, read right behind the creation. Called by the reader. The number of its node may
        tell which node is ahead, or that it is first."""
        if isinstance(stat := call.value, Stat) and self.session is not None:
            self.queue.made(leaf_of(self.place), self.word, stat)
            if not self.over and self.follow() == "" and not self.needs_permits:
                self.granted()

    def follow(self) -> str | None:
        """Wait for the node ahead, if it is known. Returns its name; "": the claim is first. None: unknown."""
        before = self._before()
        if before:
            self.wait_for(DATA, f"{self.queue.path}/{before}")
        return before

    def _before(self) -> str | None:
        return self.queue.before(leaf_of(self.nodes[0]), self.word) if self._is_in_order() else None

    def _is_in_order(self) -> bool:
        """It waits for the nearest node before it, and its own node was seen over this connection."""
        return self.word in (LOCK, LATCH) and self.has_node and self.epoch == self._registry.client.epoch

    def wait_for(self, kind: str, path: str) -> None:
        """Watch that node or directory, and the own node."""
        self.stale = False
        if self._is_in_order() and self.queue.before(leaf_of(path), self.word) == "":
            self.watch_own()  # first: if the own node were deleted now, the next event would look like a grant
        else:  # the next event leads to a listing, which shows the own node
            self._later(WATCHED_AFTER, self.watch_own)
        if self.waiting_for != (kind, path):
            self.stop_waiting()
            self.waiting_for = (kind, path)
            asking = codec.children(path, watch=True) if kind == CHILDREN else codec.get(path, watch=True)
            asked = partial(self._asked, kind, path)
            call = PendingRequest(asking, asked)
            if not self._registry.client.send((call,), (kind, path, self.moved)):
                asked(call)

    def stop_waiting(self) -> None:
        if self.waiting_for is not None:
            kind, path = self.waiting_for
            self.waiting_for = None
            self._registry.client.send((), drop=[(kind, path, self.moved)])

    def watching(self) -> list[Watch]:
        """Pop all its watches."""
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
                if not self._registry.client.send((call,), (DATA, path, self.touched)):
                    self._own.pop(path, None)
                    self._later(WATCHED_AFTER, self.watch_own)

    def write_grant(self) -> None:
        """Show others since when it holds."""
        if self.over or self.gone or not self.nodes or self.session is None:
            return
        path = self.nodes[0]
        version = self._own.get(path, -1)
        if version >= 0:
            ticket = 0 if self.nodes == [self.place] else self.ticket
            self.data = written(self.claim.description, self.session.timeout, ticket, held=True)
            self._put(path, version)

    # The reader calls the methods below.

    def moved(self, event: Event) -> None:
        """The node that it waited for was deleted or changed."""
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
        """Go on without a listing if it is first, or behind another claim of this client. Other nodes before it may be
        gone long ago: asking for one after the other would take a round trip each."""
        before = self._before()
        if before == "" and self.nodes[0] in self._own:
            if self.needs_permits:
                self.tell_look()
            else:
                self.now_holds()
            return True
        if before and self.queue.is_ours(before):
            self.wait_for(DATA, f"{self.queue.path}/{before}")
            return True
        return False

    def now_holds(self) -> None:
        """Grant it after a wait, and wake the waiter."""
        self.granted()
        self._later(WRITTEN_AFTER, self.write_grant)
        self._tell(YOURS)

    def tell_look(self) -> None:
        """Wake the waiter, which then looks itself."""
        self.stale = True
        self._tell(LOOK)

    def touched(self, event: Event) -> None:
        """An own node was deleted or changed."""
        self._own.pop(event.path, None)
        if self._is_past(event.path):
            return
        if event.kind == codec.DELETED:
            self.end(event.path)
        else:
            self.watch_own()

    def _is_past(self, path: str) -> bool:
        """Whether events of a node no longer matter. Another thread changes `nodes` first and then resets `changing`:
        hence the order of the conditions."""
        return self.over or self.changing or path not in self.nodes

    def end(self, path: str = "") -> None:
        """The claim is gone. It needs all of its nodes: if one of them is gone, the others are deleted."""
        if not self.gone:
            self.gone = True
            if path:
                self.queue.gone(leaf_of(path))
            for other in self.nodes:
                if path and other != path:
                    self._registry.client.post(codec.delete(other))
            self._tell_news()

    def _tell_news(self) -> None:
        if self.holds:
            self._registry.me.news(self.claim.id)
        else:
            self._tell(LOOK)

    def _asked(self, kind: str, path: str, call: PendingRequest) -> None:
        """The reply to the request that set the watch of `wait_for`. A listing may have come before it, which showed
        that another node is the one ahead: then this reply says nothing."""
        if call.error == codec.OK or self.over or self.waiting_for != (kind, path):
            return
        self._registry.client.send((), drop=[(kind, path, self.moved)])  # the server set none
        if call.error == codec.NO_NODE:
            self.moved(Event(codec.DELETED, path))
        else:
            self.waiting_for = None
            self.unanswered(call)

    def unanswered(self, call: PendingRequest) -> None:
        """A listing failed. If the connection was lost, the waiter is woken once there is another."""
        self.stale = True
        if call.error != LOST:
            self._tell(LOOK)

    def _seen(self, path: str) -> Callable[[PendingRequest], None]:
        def seen(call: PendingRequest) -> None:
            if self._is_past(path):
                return
            if isinstance(node := call.value, Node):
                self._own[path] = node.stat.version
                if node.data == REVOKE:
                    self.revoked = True
                    self._put(path, node.stat.version)  # restore what others see of this claim
                    self._tell_news()
                return
            self._registry.client.send((), drop=[(DATA, path, self.touched)])  # the server set none
            if call.error == codec.NO_NODE:
                self.end(path)
            else:
                self._own.pop(path, None)
                self._later(WATCHED_AFTER, self.watch_own)

        return seen

    def _put(self, path: str, version: int) -> None:
        def put(call: PendingRequest) -> None:
            if isinstance(stat := call.value, Stat) and path in self._own:
                self._own[path] = stat.version

        self._registry.client.post(codec.put(path, self.data, version), put)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._registry.note(self, self._registry.now() + seconds, do)

    def _tell(self, signal: Signal) -> None:
        self._registry.client.tell(self._registry.me.inbox, self.claim.id, signal.value)


class NodeClaims:
    """All claims of a client; the `Owner` of its session (wire/client.py)."""

    def __init__(self, me: ClientIdentity, now: Callable[[], float]) -> None:
        self.me = me
        self.now = now
        self.client: SessionClient
        self._directories: dict[str, Directory] = {}
        self._by_id: dict[bytes, NodeClaim] = {}
        self.find = self._by_id.get
        self._tombstones: dict[bytes, float] = {}
        self._most_tombstones = _TOMBSTONES
        """At this number, expired tombstones are removed."""
        self._notes: deque[tuple[float, NodeClaim, Callable[[], None]]] = deque()

    def begin(self, claim: Claim, directory: str, queue: str, kept: Directory | None = None) -> NodeClaim:
        """`kept`: the queue, as an earlier claim left it."""
        there = self._directories.get(queue)
        if there is None:
            there = self._directories.setdefault(queue, kept or Directory(self.client, queue, claim.name))
        elif there.name != claim.name:
            # The core takes them for two locks, so a task that holds one would wait for the other, and so for itself.
            raise BadName(
                f"{claim.name!r} is the same path as {there.name!r}, which this client is using",
                step="write the name in one way",
            )
        there.claims.add(claim.id)
        node_claim = self._by_id[claim.id] = NodeClaim(self, claim, directory, there)
        return node_claim

    def finish(self, id: bytes) -> NodeClaim | None:
        """Forget a claim: events of its nodes no longer matter."""
        node_claim = self._by_id.pop(id, None)
        if node_claim is not None:
            node_claim.over = True
            queue = node_claim.queue
            queue.claims.discard(id)
            if not queue.claims:
                # If another thread begins a claim just now, there are two directories, and each knows less.
                self._directories.pop(queue.path, None)
        return node_claim

    def deleted(self, path: str) -> None:
        """A node of a claim that left was deleted."""
        directory, _, name = path.rpartition("/")
        if (queue := self._directories.get(directory)) is not None:
            queue.gone(name)

    def bury(self, claim: Claim) -> None:
        """Leave a tombstone: a late copy of the join must not enter the queue."""
        if len(self._tombstones) >= self._most_tombstones:
            now = self.now()
            self._tombstones = {id: end for id, end in self._tombstones.items() if end > now}
            self._most_tombstones = 2 * len(self._tombstones) + _TOMBSTONES
        self._tombstones[claim.id] = claim.by

    def is_buried(self, id: bytes) -> bool:
        return id in self._tombstones

    def note(self, node_claim: NodeClaim, at: float, do: Callable[[], None]) -> None:
        """Have the heart call `do` at that instant, if the claim still exists."""
        self._notes.append((at, node_claim, do))
        if at < self.client.wakes_at:
            self.client.nudge(at)

    def attached(self) -> None:
        for node_claim in list(self._by_id.values()):
            if node_claim.stale and not node_claim.holds:
                self.client.tell(self.me.inbox, node_claim.claim.id, LOOK.value)

    def beaten(self) -> None:
        for node_claim in list(self._by_id.values()):
            if node_claim.holds:
                self.me.news(node_claim.claim.id)

    def ended(self) -> None:
        for node_claim in list(self._by_id.values()):
            node_claim.end()

    def tidy(self, now: float) -> float:
        if not self._notes:
            return FOREVER
        for _ in range(len(self._notes)):  # other threads may add more meanwhile
            at, node_claim, do = note = self._notes.popleft()
            if node_claim.over or node_claim.gone:
                continue
            if at <= now:
                do()
            else:
                self._notes.append(note)
        # Wake soon again, perhaps in vain: otherwise each claim of a quick series would wake the heart separately.
        return min((at for at, _, _ in tuple(self._notes)), default=now + WATCHED_AFTER)

    def busy(self) -> bool:
        return bool(self._by_id)
