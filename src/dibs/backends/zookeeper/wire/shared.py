"""Requests whose replies many callers need at the same time: one copy of them is under way at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dibs.backends.zookeeper.contenders import Listing
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.client import Wire
from dibs.backends.zookeeper.wire.codec import Children, Request
from dibs.backends.zookeeper.wire.session import Call


class Seen:
    """The replies to shared requests."""

    def __init__(self, calls: list[Call], sent_at: float, epoch: int) -> None:
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

    def __init__(self, wire: Wire, requests: Sequence[Request], learn: Callable[[Seen], None]) -> None:
        self._wire = wire
        self._requests = requests
        self._learn = learn
        self._under_way: Call | None = None
        self._waiting: list[Callable[[Seen], None]] = []
        self.latest: Seen | None = None

    def ask(self, then: Callable[[Seen], None]) -> None:
        """`then` is called with replies to requests that were sent after this, by whoever reads; at once if nothing
        could be sent, with calls that are lost."""
        with self._wire.mutex:
            self._waiting.append(then)
            under_way = self._under_way
        if under_way is None or under_way.ended:
            self._send()

    def _send(self) -> None:
        calls = [Call(request) for request in self._requests]
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
