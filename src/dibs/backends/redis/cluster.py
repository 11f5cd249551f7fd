"""The nodes of a cluster, by the slots of keys.

The table comes from whichever node answers. A node that left the cluster, or is about to join it, may know only some of
the slots: it is believed where no other knows more, and a key in none of them has no place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot
from redis.exceptions import ResponseError

from dibs.backends.redis.address import Address
from dibs.backends.redis.asking import Asking, ask, facts, named
from dibs.backends.redis.failover import Failover
from dibs.backends.redis.settings import Place
from dibs.core.runtime import Runtime
from dibs.errors import StoreError, StoreUnavailable

Table = list[Place | None]
"""The primary of each slot."""
MOVES = 5
"""So many moved slots, and the whole of the table is old."""


class Cluster:
    failover: ClassVar[Failover | None] = None

    def __init__(self, address: Address, now: Callable[[], float]) -> None:
        self._address = address
        self._asking = Asking(address.shown, now)
        self._table: Table = [None] * SLOTS
        self._nodes: tuple[Place, ...] = ()
        """All that are known, replicas too, in the order in which they are asked."""
        self._moves = 0

    def locate(self, key: bytes) -> Place | None:
        return self._table[key_slot(key)]

    def learn(self, until: float) -> None:
        self._asking.once(lambda: self._learn(until), until)

    def forget(self, place: Place) -> None:
        """It is the last one to be asked next time: a node that was cut off goes on to tell what it knew."""
        self._table = [None if known == place else known for known in self._table]
        if place in self._nodes:
            self._nodes = (*(node for node in self._nodes if node != place), place)

    def moved(self, key: bytes, place: Place) -> None:
        """After some of these the old place is forgotten, and so the rest is learned when it is next asked for."""
        slot = key_slot(key)
        table = self._table.copy()
        old, table[slot] = table[slot], place
        self._moves += 1
        if self._moves >= MOVES and old is not None:
            self._moves = 0
            table = [None if known == old else known for known in table]
        self._table = table

    def reached(self, told: tuple[str, int], asked: Place) -> Place:
        return self._address.reachable((told[0] or asked[0], told[1]))

    def all(self) -> list[Place]:
        return list(dict.fromkeys(place for place in self._table if place is not None))

    def attend(self, runtime: Runtime) -> None:
        pass

    def close(self) -> None:
        pass

    def _learn(self, until: float) -> None:
        fullest: list[tuple[Table, list[Place]]] = []

        def question(node: Place, patience: float) -> tuple[Table, list[Place]]:
            table, nodes = self._told_by(node, patience)
            if not any(table):
                raise StoreUnavailable(f"{named(node)} knows no other node yet")
            if None in table:
                fullest.append((table, nodes))
                missing = table.count(None)
                raise StoreUnavailable(f"{named(node)} knows no node for {missing} of {SLOTS} slots")
            return table, nodes

        to_ask = (*self._nodes, *self._address.places)
        try:
            table, nodes = self._asking.in_turn(to_ask, question, until, "no node of the cluster tells where keys are")
        except StoreUnavailable:
            if not fullest:
                raise
            table, nodes = min(fullest, key=lambda told: told[0].count(None))
        self._table, self._nodes, self._moves = table, tuple(nodes), 0

    def _told_by(self, node: Place, patience: float) -> tuple[Table, list[Place]]:
        try:
            answer = ask(self._address.connection(node, patience), "CLUSTER", "SLOTS")
        except ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
            alone = True
        else:
            alone = False
        if alone:
            raise StoreError(f"{named(node)} is not a node of a cluster", step="write redis:// for a single server")
        return self.read(answer, node)

    def read(self, answer: object, asked: Place) -> tuple[Table, list[Place]]:
        """The table, and all the nodes in it, who was asked first."""
        table: Table = [None] * SLOTS
        nodes: list[Place] = [asked]
        for first, last, primary, *replicas in _ranges(answer):
            places = [self._place(told, asked) for told in (primary, *replicas)]
            nodes += [place for place in places if place is not None]
            table[first : last + 1] = [places[0]] * (last + 1 - first)
        return table, list(dict.fromkeys(nodes))

    def _place(self, told: Any, asked: Place) -> Place | None:
        """`[host, port, id, more]`. A host "?" has no name, where nodes should have one: its address is in the rest."""
        match told:
            case [bytes() | None as host, int(port), *rest] if 0 < port < 65536:
                if host == b"?":
                    host = facts(rest[1]).get(b"ip") if len(rest) > 1 else None
                return self.reached((host.decode(errors="replace") if isinstance(host, bytes) else "", port), asked)
        return None


def _ranges(answer: object) -> Iterator[list[Any]]:
    """First slot, last slot, the primary, its replicas; what does not look like that is left out."""
    for told in answer if isinstance(answer, list) else []:
        match told:
            case [int(first), int(last), _, *_] if 0 <= first <= last < SLOTS:
                yield told
