"""The wait-for graph of a store: participants that hold one lock and wait for another, and the cycles among them.

A participant is known by host, process, thread and owner, as it described itself: two tasks of one name look like one.
The graph is small and the same for the same locks, whatever their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from dibs.info import LockInfo, Participant, clip
from dibs.monitor.history import label

MOST_NODES = 200
_MOST_EDGES, _MOST_HOLDERS = 5000, 20
_MOST_CYCLES = 10
_LONGEST_NAME = 80

Identity = tuple[str, int, str, str]


class Edge(NamedTuple):
    person: Identity
    name: str
    waits: bool
    """False: holds."""


class Graph(NamedTuple):
    people: dict[Identity, str]
    """Their texts."""
    names: list[str]
    edges: list[Edge]
    cycles: list[str]
    """Each cycle as a sentence."""


def identity(one: Participant) -> Identity:
    """A participant that does not say what process it is, as one of Java, is known by its key."""
    unknown = one.pid == 0 or one.host == "?"
    return (one.host, one.pid, str(one.key) if unknown else one.thread, one.owner)


def wait_for_graph(locks: Mapping[str, LockInfo], contended: Iterable[str]) -> Graph | None:
    """None: nobody who waits holds another lock."""
    waits: dict[Identity, set[str]] = {}
    texts: dict[Identity, str] = {}
    for name in contended:
        for one in locks[name].waiters:
            waits.setdefault(identity(one), set()).add(name)
            texts[identity(one)] = label(one)
    if not waits:
        return None
    holders: dict[str, set[Identity]] = {}
    between: set[Identity] = set()
    """Those who hold one lock and wait for another."""
    waited_for = {name for names in waits.values() for name in names}
    for name, info in locks.items():
        for one in info.holders:
            who = identity(one)
            if who in waits or name in waited_for:
                holders.setdefault(name, set()).add(who)
                texts[who] = label(one)
                if who in waits:
                    between.add(who)
    if not between:
        return None
    stuck = _stuck(waits, holders)
    first = _first(between, stuck, MOST_NODES)
    front = {name: _first(holders[name], stuck, _MOST_HOLDERS) for name in waited_for & holders.keys()}
    kept = _cut(_edges(first, waits, holders, front))
    people = {who: texts[who] for who in sorted({edge.person for edge in kept})}
    cycles = _cycles([edge for edge in kept if edge.person in stuck], texts)
    return Graph(people, sorted({edge.name for edge in kept}), kept, cycles)


def _stuck(waits: Mapping[Identity, Iterable[str]], holders: Mapping[str, Iterable[Identity]]) -> set[Identity]:
    """The waiters of a deadlock. A lock can become free if one of its holders does not wait, or waits for a lock that
    can become free. One such holder suffices, because a semaphore then has a free permit."""
    waiters: dict[str, list[Identity]] = {}
    for who, names in waits.items():
        for name in names:
            waiters.setdefault(name, []).append(who)
    holds: dict[Identity, list[str]] = {}
    for name, some in holders.items():
        for who in some:
            holds.setdefault(who, []).append(name)
    stuck = set(waits)
    free = [name for name in waiters if name not in holders]
    free += [name for who, names in holds.items() if who not in waits for name in names]
    while free:
        for who in waiters.pop(free.pop(), ()):
            if who in stuck:
                stuck.remove(who)
                free += holds.get(who, ())
    return stuck


def _first(some: Iterable[Identity], stuck: Container[Identity], most: int) -> list[Identity]:
    return sorted(some, key=lambda who: (who not in stuck, who))[:most]


def _edges(
    between: Iterable[Identity],
    waits: Mapping[Identity, set[str]],
    holders: Mapping[str, set[Identity]],
    front: Mapping[str, Iterable[Identity]],
) -> Iterator[Edge]:
    """Around those who hold one lock and wait for another: what they wait for and who holds it, and what they hold.
    `front`: the holders to show."""
    for who in between:
        for name in sorted(waits[who]):
            yield Edge(who, name, waits=True)
            yield from (Edge(holder, name, waits=False) for holder in front.get(name, ()))
    held = {name for name, some in holders.items() for who in between if who in some}
    for name in sorted(held):
        yield from (Edge(who, name, waits=False) for who in between if who in holders[name])
    for who in sorted(waits):
        yield from (Edge(who, name, waits=True) for name in sorted(waits[who] & held))


def _cut(edges: Iterable[Edge]) -> list[Edge]:
    """The first of them, without those that would make the graph too large."""
    nodes: set[object] = set()
    kept: dict[Edge, None] = {}
    for edge in islice(edges, _MOST_EDGES):
        more = {edge.person, edge.name} - nodes
        if len(nodes) + len(more) <= MOST_NODES:
            nodes |= more
            kept[edge] = None
    return sorted(kept)


def _cycles(edges: list[Edge], texts: dict[Identity, str]) -> list[str]:
    """A shortest cycle through each participant, each cycle once."""
    holders: dict[str, list[Identity]] = {}
    for edge in edges:
        if not edge.waits:
            holders.setdefault(edge.name, []).append(edge.person)
    steps: dict[Identity, list[tuple[str, Identity]]] = {}
    for edge in edges:
        if edge.waits:
            ahead = [(edge.name, holder) for holder in sorted(holders.get(edge.name, ()))]
            steps.setdefault(edge.person, []).extend(ahead)
    found: dict[frozenset[Identity], str] = {}
    for start in sorted(steps):
        way = _way_back(start, steps)
        members = frozenset(who for _, who in way)
        if way and members not in found and len(found) < _MOST_CYCLES:
            found[members] = _sentence(start, way, texts)
    return list(found.values())


def _way_back(start: Identity, steps: dict[Identity, list[tuple[str, Identity]]]) -> list[tuple[str, Identity]]:
    """The locks, each with its holder, from the participant back to itself; empty: there is no cycle through it."""
    came: dict[Identity, tuple[Identity, str]] = {}
    queue = deque([start])
    while queue:
        who = queue.popleft()
        for name, holder in steps.get(who, ()):
            if holder in came:
                continue
            came[holder] = (who, name)
            if holder == start:
                return _way(start, came)
            queue.append(holder)
    return []


def _way(start: Identity, came: dict[Identity, tuple[Identity, str]]) -> list[tuple[str, Identity]]:
    way: list[tuple[str, Identity]] = []
    who = start
    while not way or who != start:
        before, name = came[who]
        way.append((name, who))
        who = before
    return way[::-1]


def _sentence(start: Identity, way: list[tuple[str, Identity]], texts: dict[Identity, str]) -> str:
    if len(way) == 1:
        return f'{texts[start]} waits for "{clip(way[0][0], _LONGEST_NAME)}", which a thread or task of that name holds'
    parts = [f'waits for "{clip(name, _LONGEST_NAME)}", held by {texts[holder]}' for name, holder in way]
    return f"{texts[start]} {', which '.join(parts)}"
