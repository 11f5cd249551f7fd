"""One queue directory, as all claims of a client know it together.

Nodes are numbered in the order of their creation, and a deleted node does not come back. So the nodes before a claim
can only become fewer, and an old list of them remains an upper bound. `Directory` keeps such a list for queues whose
nodes all have one word (mutexes, elections, and `locks` of a semaphore). It answers two questions without a listing:

- The predecessor of a claim has gone. Is the claim first, or is the next predecessor another claim of this client?
- A new node has the number that follows the last one known. Then it is right behind that one.

Numbers start again when an empty directory is removed and made again. So they are compared only while the czxid of the
directory is the one that was listed.

Up to n claims need a listing of n children, so they share it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from dibs.backends.zookeeper.queue_rule import Listing, id_of
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.codec import Children, Request, Stat
from dibs.backends.zookeeper.wire.session import PendingRequest


class Replies:
    """The replies to shared requests."""

    def __init__(self, calls: list[PendingRequest], sent_at: float, epoch: int) -> None:
        self.calls = calls
        self.sent_at = sent_at
        self.epoch = epoch
        self._listings: dict[int, Listing] = {}

    def listing(self, number: int) -> Listing:
        """The children in one of the replies, parsed once; empty if the directory does not exist."""
        if number not in self._listings:
            children = self.calls[number].value
            self._listings[number] = Listing(children if isinstance(children, Children) else [])
        return self._listings[number]


class Shared:
    """Requests that many callers share. At most one copy is under way; callers that come later share the next one."""

    def __init__(self, client: SessionClient, requests: Sequence[Request], learn: Callable[[Replies], None]) -> None:
        self._client = client
        self._requests = requests
        self._learn = learn
        self._under_way: PendingRequest | None = None
        self._waiting: list[Callable[[Replies], None]] = []
        self.latest: Replies | None = None

    def ask(self, then: Callable[[Replies], None]) -> None:
        """Send the requests, now or after the copy that is under way. The reader calls `then` with the replies. If
        nothing could be sent, `then` is called at once, with lost requests."""
        with self._client.mutex:
            self._waiting.append(then)
            under_way = self._under_way
        if under_way is None or under_way.ended:
            self._send()

    def _send(self) -> None:
        calls = [PendingRequest(request) for request in self._requests]
        replies, last = Replies(calls, self._client.now(), self._client.epoch), calls[-1]
        with self._client.mutex:
            callers, self._waiting = self._waiting, []
            self._under_way = last
        last.then = lambda _: self._answered(replies, callers)
        last.sent_at = replies.sent_at
        sent = False
        try:
            sent = not callers or self._client.send(calls)
        finally:
            last.ended = last.ended or not sent or not callers  # an interrupt must not block later callers
        if not sent:
            for then in callers:
                then(replies)

    def _answered(self, replies: Replies, callers: list[Callable[[Replies], None]]) -> None:
        if replies.calls[-1].error == codec.OK:
            self.latest = replies
        self._learn(replies)
        for then in callers:
            then(replies)
        if self._waiting and self._under_way is replies.calls[-1]:
            self._send()


class Directory:
    def __init__(self, client: SessionClient, path: str, name: str) -> None:
        self._client = client
        self.path = path
        self.name = name
        """The name of the lock, as the claims write it: different names may have the same path."""
        self.claims: set[bytes] = set()
        """The claims of this client here."""
        self._order: list[tuple[str, str]] | None = None
        """Number and name of every node that may exist, up to the number `_last`; None: unknown."""
        self.alone: tuple[str, str, int] | None = None
        """The only node in the last listing of the free path: its name, its word, and the czxid of the directory."""
        self._last = self._czxid = -1
        self._word = ""
        self.size = b""
        """For a semaphore: its size, as the claims of this client agreed."""
        self._shared: dict[str, Shared] = {}

    @property
    def is_crowded(self) -> bool:
        """Whether several claims of this client use the directory."""
        return len(self.claims) > 1

    def shared(self, what: str, requests: Callable[[], Sequence[Request]], listed: int) -> Shared:
        """The shared requests with the key `what`. Their reply number `listed` lists this directory."""
        there = self._shared.get(what)
        if there is None:

            def learn(replies: Replies) -> None:
                if isinstance(children := replies.calls[listed].value, Children):
                    self.learn(replies.listing(listed), children.stat)

            there = self._shared.setdefault(what, Shared(self._client, requests(), learn))
        return there

    def learn(self, listing: Listing, stat: Stat) -> None:
        """Learn from a listing. An interrupt between any two lines leaves less known, never something false."""
        with self._client.mutex:
            self.alone = self._order = None
            if listing.word is not None and listing.queue:
                self._word, self._last, self._czxid = listing.word, int(listing.queue[-1].number), stat.czxid
                self._order = [(one.number, one.name) for one in listing.queue]

    def _learn_alone(self) -> None:
        """Learn from the last listing of the free path. Called with the mutex."""
        if self.alone is not None:
            (name, self._word, self._czxid), self.alone, self._order = self.alone, None, None
            self._last = int(name[-10:])
            self._order = [(name[-10:], name)]

    def made(self, name: str, word: str, stat: Stat) -> None:
        """This client made a node; `stat` was read right behind it. Called in the order of the replies."""
        one = (name[-10:], name)
        with self._client.mutex:
            self._learn_alone()
            order = self._order
            if order is None or word != self._word or stat.czxid != self._czxid:
                return
            if not one[0].isdecimal() or int(one[0]) != self._last + 1:
                return
            if not order or order[-1] != one:
                order.append(one)
            self._last += 1

    def gone(self, name: str) -> None:
        """A node was deleted."""
        if not self.claims:  # nothing uses this knowledge any more
            return
        with self._client.mutex:
            self._learn_alone()
            while (at := self._find(name)) is not None and self._order is not None:
                del self._order[at]

    def before(self, name: str, word: str) -> str | None:
        """The nearest node that may precede a node; "": none does. None: unknown."""
        with self._client.mutex:
            self._learn_alone()
            at = self._find(name)
            if at is None or self._order is None or word != self._word:
                return None
            return self._order[at - 1][1] if at else ""

    def is_ours(self, name: str) -> bool:
        """Whether a node belongs to a claim of this client, which would report its end."""
        return id_of(name) in self.claims

    def _find(self, name: str) -> int | None:
        order = self._order
        if order is None:
            return None
        at = bisect_left(order, (name[-10:], name))
        return at if at < len(order) and order[at][1] == name else None
