"""Who watches what, here. A server tells of a path once, whatever it was asked how often: then all who watch hear it.

Three kinds, as the server has them: of data (a node that is there), of existence (a node that is not), of children.
The caller holds the lock under which requests are sent: a watch must be entered before its request goes out, and the
last one that goes must not take a newcomer's with it.
"""

from __future__ import annotations

from collections.abc import Callable

from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Event, Request

_AT_ONCE = 250
"""Paths in one request; a path of ours has up to some 2,000 bytes, and a server reads up to a million."""
Watcher = Callable[[Event], None]
Watch = tuple[str, str, Watcher]
"""Which kind, of which path, for whom."""
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
        """Gives what to send, if nobody watches it any more."""
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
            return None  # at the server these two are one watch: the other one would be deaf
        return codec.remove_watches(path, codec.OF_DATA)

    def told(self, event: Event) -> list[Watcher]:
        """Whom an event concerns: they do not watch any longer."""
        found: list[Watcher] = []
        for kind in _TOLD.get(event.kind, ()):
            found += self._kinds[kind].pop(event.path, ())
        return found

    def all_again(self, zxid: int) -> list[Request]:
        """What sets all of them again at another server; it tells at once what happened since `zxid`. A server refuses
        a request that is too long, so there may be several."""
        every = [(kind, path) for kind, paths in self._kinds.items() for path in paths]
        parts = [every[n : n + _AT_ONCE] for n in range(0, len(every), _AT_ONCE)]
        return [
            codec.set_watches(zxid, *([path for kind, path in part if kind == one] for one in self._kinds))
            for part in parts
        ]

    def clear(self) -> None:
        for there in self._kinds.values():
            there.clear()
