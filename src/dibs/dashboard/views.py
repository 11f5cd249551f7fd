"""The JSON of the dashboard: all of it is computed here, from the samples of one store.

Every text that others wrote is bounded and made printable. A view is encoded once for each sample, and shared by all
who see it. The order of the names is computed once for each scan of all names.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from math import ceil
from shlex import quote
from typing import Any, NamedTuple, TypeVar

import dibs
from dibs._shared import backend, break_option, place, show_command
from dibs.info import LockInfo, Participant, begun, clip, instant, printable, who
from dibs.monitor.graph import Graph, wait_for_graph
from dibs.monitor.history import BUCKET, label, lanes
from dibs.monitor.sampler import Entry, Sampler
from dibs.monitor.scan import SORTS, oldest_wait, pressure, sort_key

K = TypeVar("K")
V = TypeVar("V")

MOST_ROWS = 200
_MOST_PREFIXES, _MOST_HEAT, _MOST_PAIRS, _MOST_LANES, _MOST_PEOPLE = 100, 20, 20, 30, 200
_MOST_INFO, _LONGEST_INFO, _LONGEST_TEXT, _LONGEST_NAME = 20, 500, 120, 3000
_MOST_CACHED = 64
_PART = re.compile(r"[^:/|]*[:/|]")
_SHOW = "dibs show "


class Query(NamedTuple):
    """What a viewer wants to see of a store."""

    find: str = ""
    prefix: str = ""
    sort: str = SORTS[0]
    offset: int = 0
    limit: int = 60


class Encoded(NamedTuple):
    version: int
    sample: int
    body: bytes
    names: Sequence[str]
    """The names of the rows."""


def key_of(name: str) -> str:
    return urlsafe_b64encode(name.encode(errors="surrogatepass")).decode().rstrip("=")


def name_of(key: str) -> str:
    """Raises ValueError."""
    return urlsafe_b64decode(key + "=" * (-len(key) % 4)).decode()


def encode(what: Mapping[str, Any]) -> bytes:
    return json.dumps(what, separators=(",", ":")).encode()


class StoreViews:
    """The views of one store."""

    def __init__(self, id: str, client: dibs.Client) -> None:
        self.id = id
        self.client = client
        self.sampler = Sampler(client)
        self.name = printable(place(client))
        self.backend = backend(client)
        self.break_option = break_option(client)
        self._cache: dict[object, Encoded] = {}
        self._orders: dict[tuple[str, str, str], tuple[int, list[str]]] = {}
        self._prefixes: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        self._graph: tuple[int, dict[str, Any] | None] = (-1, None)

    def encoded(self, what: Query | str | None) -> Encoded:
        """A view, or the page of the lock with that name; None: the times and the cards, for while nothing changes."""
        with self.sampler.lock:
            found = self.cached(what)
            if found is None:
                made, names = self._made(what)
                found = Encoded(self.sampler.version, self.sampler.sample, encode(made), names)
                _keep(self._cache, what, found)
            return found

    def _made(self, what: Query | str | None) -> tuple[dict[str, Any], Sequence[str]]:
        if isinstance(what, Query):
            return self._view(what)
        return self._times() if what is None else self._lock_page(what)

    def cached(self, what: object) -> Encoded | None:
        """What is encoded already: then the event loop need not wait for a thread."""
        found = self._cache.get(what)
        return found if found is not None and found.sample == self.sampler.sample else None

    def shown(self, what: object) -> Sequence[str]:
        """The names in the last version of a view."""
        found = self._cache.get(what)
        return () if found is None else found.names

    def _times(self) -> tuple[dict[str, Any], Sequence[str]]:
        sampler = self.sampler
        times = {"as_of": instant(sampler.as_of), "scanned_at": instant(sampler.scanned_at)}
        return {**times, "cards": self._cards(self._now())}, ()

    def _now(self) -> datetime:
        """The time of the last sample while the store does not answer: nothing newer is known."""
        return datetime.now(UTC) if self.sampler.error is None else self.sampler.as_of

    def _view(self, query: Query) -> tuple[dict[str, Any], Sequence[str]]:
        sampler, now = self.sampler, self._now()
        there = [name for name in self._order(query, now) if name in sampler.entries]
        names = there[query.offset : query.offset + query.limit]
        entries = [sampler.entries[name] for name in names]
        end, heat = sampler.history.heat(now, _MOST_HEAT)
        made = {
            "version": sampler.version,
            "store": self.id,
            "as_of": instant(min((entry.at for entry in entries), default=sampler.as_of)),
            "scanned_at": instant(sampler.scanned_at),
            "complete": sampler.complete,
            "error": sampler.error,
            "cards": self._cards(now),
            "total": len(there),
            "offset": query.offset,
            "rows": [self._row(entry, now) for entry in entries],
            "prefixes": self._counted(query.prefix),
            "graph": self._drawn(),
            "heat": {
                "bucket": BUCKET,
                "end": instant(end),
                "rows": [{**_named(name), "cells": cells} for name, cells in heat],
            },
            "pairs": [
                {"blocker": pair.blocker, "waiter": pair.waiter, **_named(pair.name), "seconds": round(seconds, 1)}
                for pair, seconds in sampler.history.pairs(_MOST_PAIRS)
            ],
        }
        return made, names

    def _cards(self, now: datetime) -> dict[str, Any]:
        sampler = self.sampler
        return {
            "held": sampler.held,
            "waiting": sum(len(info.waiters) for info in sampler.contended.values()),
            "oldest_wait": round(oldest_wait(sampler.contended.values(), now), 1),
            "handovers_per_minute": round(sampler.history.handovers_per_minute(now, sampler.began), 1),
            "expired": sampler.history.expired,
            "latency": round(sampler.latency, 4),
            "up": sampler.error is None,
        }

    def _order(self, query: Query, now: datetime) -> list[str]:
        wanted = (query.find, query.prefix, query.sort)
        scans, names = self._orders.get(wanted, (-1, []))
        if scans != self.sampler.scans:
            names = _sorted(self.sampler.entries, query, now)
            _keep(self._orders, wanted, (self.sampler.scans, names))
        return names

    def _counted(self, chosen: str) -> list[dict[str, Any]]:
        """The tree of the names down to the chosen prefix: at most as many as fit, those with the most locks."""
        scans, counted = self._prefixes.get(chosen, (-1, []))
        if scans != self.sampler.scans:
            held: Counter[str] = Counter()
            waiting: Counter[str] = Counter()
            for name, entry in self.sampler.entries.items():
                for prefix in prefixes(printable(name), chosen):
                    held[prefix] += bool(entry.info.holders)
                    waiting[prefix] += len(entry.info.waiters)
            largest = sorted(
                held, key=lambda prefix: (not chosen.startswith(prefix), -waiting[prefix], -held[prefix], prefix)
            )
            counted = [
                {"prefix": prefix, "held": held[prefix], "waiting": waiting[prefix]}
                for prefix in sorted(largest[:_MOST_PREFIXES])
            ]
            _keep(self._prefixes, chosen, (self.sampler.scans, counted))
        return counted

    def _drawn(self) -> dict[str, Any] | None:
        if self._graph[0] != self.sampler.version:
            infos = {name: entry.info for name, entry in self.sampler.entries.items()} if self.sampler.contended else {}
            graph = wait_for_graph(infos, self.sampler.contended)
            self._graph = (self.sampler.version, None if graph is None else _graph(graph))
        return self._graph[1]

    def _row(self, entry: Entry, now: datetime) -> dict[str, Any]:
        info = entry.info
        first = info.holders[0] if info.holders else None
        record = self.sampler.history.record(info.name)
        used = sum(one.weight for one in info.holders)
        shared = info.kind == "semaphore" or (info.kind == "rw" and used < info.capacity)
        return {
            **_named(info.name),
            "kind": clip(info.kind, _LONGEST_TEXT),
            "mode": "shared" if shared else "exclusive",
            "capacity": info.capacity,
            "used": used,
            "holder": "" if first is None else who(first),
            "holders": len(info.holders),
            "since": None if first is None else begun(first),
            "remaining": None if first is None else round(first.remaining, 1),
            "lease": None if first is None else round(entry.leases[first.key], 1),
            "token": None if first is None else first.token or None,
            "waiters": len(info.waiters),
            "pressure": round(pressure(info, now), 1),
            "oldest_wait": round(oldest_wait([info], now), 1),
            "p95_wait": None if record is None else _p95(record.waits),
            "trouble": entry.trouble(),
        }

    def _lock_page(self, name: str) -> tuple[dict[str, Any], Sequence[str]]:
        sampler, now = self.sampler, self._now()
        entry = sampler.entries.get(name)
        info = LockInfo(name=name) if entry is None else entry.info
        record = sampler.history.record(name, make=True)
        assert record is not None
        broken = sampler.breaks.get(name)
        command = show_command(self.client, name)
        made = {
            "version": sampler.version,
            "as_of": instant(sampler.as_of if entry is None else entry.at),
            "error": sampler.error,
            "row": None if entry is None else self._row(entry, now),
            **_named(name),
            "holders": [_participant(one) for one in info.holders[:_MOST_PEOPLE]],
            "queue": [_participant(one) for one in info.waiters[:_MOST_PEOPLE]],
            "command": command,
            "break_command": _break_command(command, info, self.break_option),
            "can_break": bool(info.holders) and self.break_option == "--token",
            "lanes": [
                {
                    "owner": owner,
                    "spans": [
                        {
                            "kind": span.kind,
                            "from": instant(span.start),
                            "to": None if span.to is None else instant(span.to),
                            "token": span.token or None,
                            "end": span.end,
                        }
                        for span in spans
                    ],
                    "renewals": [instant(at) for at in renewals],
                }
                for owner, spans, renewals in lanes(record, info, _MOST_LANES, {} if entry is None else entry.seen)
            ],
            "history": [
                {"at": instant(one.at), "what": one.what, "who": one.who, "token": one.token or None,
                 "seconds": round(one.seconds, 1)}
                for one in sorted(record.changes, reverse=True)
            ],
            "broken": None if broken is None else f"Last broken {broken.told(now)}",
        }  # fmt: skip
        return made, [name]


def _break_command(command: str | None, info: LockInfo, option: str) -> str | None:
    """The command that breaks the first hold, from the one that shows the lock."""
    if command is None or not info.holders or not command.startswith(_SHOW):
        return None
    first = info.holders[0]
    named = quote(printable(first.owner)) if option == "--holder" else first.token
    return f"dibs break {option} {named} {command.removeprefix(_SHOW)}"


def _named(name: str) -> dict[str, str]:
    return {"key": key_of(name), "name": clip(name, _LONGEST_NAME)}


def _participant(one: Participant) -> dict[str, Any]:
    return {
        "who": label(one),
        "owner": clip(one.owner, _LONGEST_TEXT),
        "host": clip(one.host, _LONGEST_TEXT),
        "pid": one.pid,
        "thread": clip(one.thread, _LONGEST_TEXT),
        "since": begun(one),
        "remaining": round(one.remaining, 1),
        "token": one.token or None,
        "weight": one.weight,
        "info": [
            [clip(key, _LONGEST_TEXT), clip(value if isinstance(value, str) else json.dumps(value), _LONGEST_INFO)]
            for key, value in islice(one.info.items(), _MOST_INFO)
        ],
    }


def prefixes(name: str, chosen: str) -> Iterator[str]:
    """The prefixes of a name that a tree shows whose branches are open down to the chosen prefix.

    >>> list(prefixes("eu:invoice:42", "")), list(prefixes("eu:invoice:42", "eu:")), list(prefixes("deploy", ""))
    (['eu:'], ['eu:', 'eu:invoice:'], [])
    """
    prefix = ""
    for part in _PART.finditer(name):
        if not chosen.startswith(prefix):
            return
        prefix = name[: part.end()]
        yield prefix


def _keep(cache: dict[K, V], key: K, value: V) -> None:
    """As the newest entry; the oldest ones make room."""
    cache.pop(key, None)
    cache[key] = value
    while len(cache) > _MOST_CACHED:
        del cache[next(iter(cache))]


def _sorted(entries: Mapping[str, Entry], query: Query, now: datetime) -> list[str]:
    wanted = query.find.casefold()
    found = [
        entry.info
        for name, entry in entries.items()
        if _is_below(name, query.prefix) and (not wanted or _matches(wanted, entry.info))
    ]
    found.sort(key=sort_key(query.sort, now))
    return [info.name for info in found]


def _is_below(name: str, prefix: str) -> bool:
    """A prefix comes from the tree of prefixes, where it was made printable."""
    return name.startswith(prefix) or printable(name).startswith(prefix)


def _matches(wanted: str, info: LockInfo) -> bool:
    """Whether the text is in the name, or in the owner and host of a holder or a waiter. A process must be named
    whole, as it is shown: in containers most are number 1."""
    return wanted in info.name.casefold() or any(
        wanted in f"{one.owner}@{one.host}".casefold() or wanted in (f"pid {one.pid}", one.label.casefold())
        for one in (*info.holders, *info.waiters)
    )


def _p95(waits: Sequence[float]) -> float | None:
    return round(sorted(waits)[ceil(len(waits) * 0.95) - 1], 1) if waits else None


def _graph(graph: Graph) -> dict[str, Any]:
    people = {who: f"p{at}" for at, who in enumerate(graph.people, 1)}
    names = {name: f"l{at}" for at, name in enumerate(graph.names, 1)}
    return {
        "nodes": [
            *({"id": people[who], "text": text, "kind": "owner"} for who, text in graph.people.items()),
            *(
                {"id": id, "text": clip(name, _LONGEST_TEXT), "kind": "lock", "key": key_of(name)}
                for name, id in names.items()
            ),
        ],
        "edges": [
            {"from": people[edge.person], "to": names[edge.name], "kind": "waits" if edge.waits else "holds"}
            for edge in graph.edges
        ],
        "cycles": graph.cycles,
    }
