"""The queue in one directory, as all claims of a client know it together.

Nodes are numbered in the order in which they are made, and a node that is gone does not come back. So the nodes before
a claim can only become fewer, and a list of them stays an upper bound for as long as the claim stands. `Directory`
keeps that list for queues whose nodes all bear one word (mutexes, elections, and `locks` of a semaphore). A claim whose
predecessor went needs no new listing if nobody else was before that one, or another claim of this client. A new node
with the number that follows the last one known is behind it, and nobody is between the two. Numbers begin again when an
empty directory is removed and made anew, so they are compared only while its czxid is the one that was listed.

A listing of n children is needed by up to n claims, so it is shared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from dibs.backends.zookeeper.queue_rule import Listing, id_of
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import SessionClient
from dibs.backends.zookeeper.wire.codec import Children, Request, Stat
from dibs.backends.zookeeper.wire.session import PendingRequest


class Seen:
    """The replies to shared requests."""

    def __init__(self, calls: list[PendingRequest], sent_at: float, epoch: int) -> None:
        self.calls = calls
        self.sent_at = sent_at
        self.epoch = epoch
        self._listings: dict[int, Listing] = {}

    def listing(self, number: int) -> Listing:
        """The children that one of the replies names, parsed once; none, if there is no such directory."""
        if number not in self._listings:
            children = self.calls[number].value
            self._listings[number] = Listing(children if isinstance(children, Children) else [])
        return self._listings[number]


class Shared:
    """Requests that many callers want answered. At most one copy of them is under way; callers who come after it was
    sent share the next one."""

    def __init__(self, client: SessionClient, requests: Sequence[Request], learn: Callable[[Seen], None]) -> None:
        self._wire = client
        self._requests = requests
        self._learn = learn
        self._under_way: PendingRequest | None = None
        self._waiting: list[Callable[[Seen], None]] = []
        self.latest: Seen | None = None

    def ask(self, then: Callable[[Seen], None]) -> None:
        """The reader calls `then` with the replies to requests that were sent after this. If nothing could be sent,
        `then` is called at once, with calls that are lost."""
        with self._wire.mutex:
            self._waiting.append(then)
            under_way = self._under_way
        if under_way is None or under_way.ended:
            self._send()

    def _send(self) -> None:
        calls = [PendingRequest(request) for request in self._requests]
        seen, last = Seen(calls, self._wire.now(), self._wire.epoch), calls[-1]
        with self._wire.mutex:
            callers, self._waiting = self._waiting, []
            self._under_way = last
        last.then = lambda _: self._answered(seen, callers)
        last.sent_at = seen.sent_at
        sent = False
        try:
            sent = not callers or self._wire.send(calls)
        finally:
            last.ended = last.ended or not sent or not callers  # an interrupt must not leave others waiting for it
        if not sent:
            for then in callers:
                then(seen)

    def _answered(self, seen: Seen, callers: list[Callable[[Seen], None]]) -> None:
        if seen.calls[-1].error == codec.OK:
            self.latest = seen
        self._learn(seen)
        for then in callers:
            then(seen)
        if self._waiting and self._under_way is seen.calls[-1]:
            self._send()


class Directory:
    def __init__(self, client: SessionClient, path: str, name: str) -> None:
        self._wire = client
        self.path = path
        self.name = name
        """The name of the lock as those claims write it: a path has more than one name."""
        self.claims: set[bytes] = set()
        """Those of this client."""
        self._order: list[tuple[str, str]] | None = None
        """Number and name of all who may stand there, up to the number `_last`; None: not known."""
        self.alone: tuple[str, str, int] | None = None
        """Name and word of the only node, and the czxid of the directory, as the free path saw them last."""
        self._last = self._czxid = -1
        self._word = ""
        self.size = b""
        """How many permits all claims of this client there agree on, where it is a semaphore's."""
        self._shared: dict[str, Shared] = {}

    @property
    def is_crowded(self) -> bool:
        """Several claims of this client stand there, or want to."""
        return len(self.claims) > 1

    def shared(self, what: str, requests: Callable[[], Sequence[Request]], listed: int) -> Shared:
        """The shared request of that name; its reply number `listed` lists this directory."""
        there = self._shared.get(what)
        if there is None:

            def learn(seen: Seen) -> None:
                if isinstance(children := seen.calls[listed].value, Children):
                    self.learn(seen.listing(listed), children.stat)

            there = self._shared.setdefault(what, Shared(self._wire, requests(), learn))
        return there

    def learn(self, listing: Listing, stat: Stat) -> None:
        """From a listing. An interrupt between any two lines leaves less known, never something false."""
        with self._wire.mutex:
            self.alone = self._order = None
            if listing.word is not None and listing.queue:
                self._word, self._last, self._czxid = listing.word, int(listing.queue[-1].number), stat.czxid
                self._order = [(one.number, one.name) for one in listing.queue]

    def _learn_alone(self) -> None:
        """From a listing that showed nothing but a node of this client. Called with the mutex."""
        if self.alone is not None:
            (name, self._word, self._czxid), self.alone, self._order = self.alone, None, None
            self._last = int(name[-10:])
            self._order = [(name[-10:], name)]

    def made(self, name: str, word: str, stat: Stat) -> None:
        """A node was made by this client, and then the directory was looked at; called in the order of the replies."""
        one = (name[-10:], name)
        with self._wire.mutex:
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
        if not self.claims:  # nobody asks about it any more
            return
        with self._wire.mutex:
            self._learn_alone()
            while (at := self._find(name)) is not None and self._order is not None:
                del self._order[at]

    def before(self, name: str, word: str) -> str | None:
        """The nearest that may stand before a node; "": nobody does. None: not known."""
        with self._wire.mutex:
            self._learn_alone()
            at = self._find(name)
            if at is None or self._order is None or word != self._word:
                return None
            return self._order[at - 1][1] if at else ""

    def is_ours(self, name: str) -> bool:
        """A claim of this client has that node: its end would be known."""
        return id_of(name) in self.claims

    def _find(self, name: str) -> int | None:
        order = self._order
        if order is None:
            return None
        at = bisect_left(order, (name[-10:], name))
        return at if at < len(order) and order[at][1] == name else None
