"""The wait-for graph of a store: participants that hold one lock and wait for another, and the cycles among them.

A participant is known by host, process, thread and owner, as it described itself. The graph is small and the same for
the same locks, whatever their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dibs.info import LockInfo, Participant, clip
from dibs.monitor.history import label

MOST_NODES = 200
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
    return (one.host, one.pid, one.thread, one.owner)


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
    return _drawn(waits, holders, between, texts)


def _drawn(
    waits: dict[Identity, set[str]],
    holders: dict[str, set[Identity]],
    between: set[Identity],
    texts: dict[Identity, str],
) -> Graph:
    edges: set[Edge] = set()
    for who in between:
        for name in waits[who]:
            edges.add(Edge(who, name, waits=True))
            edges |= {Edge(holder, name, waits=False) for holder in holders.get(name, ())}
    held_between = {name for name, some in holders.items() if some & between}
    for name in held_between:
        edges |= {Edge(holder, name, waits=False) for holder in holders[name] & between}
        edges |= {Edge(who, name, waits=True) for who, names in waits.items() if name in names}
    kept: list[Edge] = []
    nodes: set[object] = set()
    for edge in sorted(edges, key=lambda edge: (edge.person not in between, edge)):
        if len(nodes | {edge.person, edge.name}) <= MOST_NODES:
            nodes |= {edge.person, edge.name}
            kept.append(edge)
    people = {who: texts[who] for who in sorted({edge.person for edge in kept})}
    return Graph(people, sorted({edge.name for edge in kept}), kept, _cycles(kept, texts))


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
        return f'{texts[start]} waits for "{clip(way[0][0], _LONGEST_NAME)}", which it holds itself'
    parts = [f'waits for "{clip(name, _LONGEST_NAME)}", held by {texts[holder]}' for name, holder in way]
    return f"{texts[start]} {', which '.join(parts)}"
