"""The changes of a store that the sampler saw: hand-overs, the ends of holds, waits, and contention.

Everything is bounded, whatever the names: rings per name, few names, few pairs. It is sampled: changes that are undone
between two samples are missed, and the end of a hold is known only to the second.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Literal, NamedTuple

from dibs.info import LockInfo, Participant, clip, elapsed, seconds_since

What = Literal["acquired", "released", "expired", "waiting", "left", "broken"]
BUCKET = 10
"""Seconds of a cell of the heat map."""
CELLS = 60
_MOST_NAMES, _MOST_EVENTS, _MOST_RENEWALS, _MOST_WAITS = 1000, 200, 200, 100
_MOST_WARM, _MOST_PAIRS, _MOST_WAITERS = 300, 1000, 50
_LONGEST_GAP = 60.0
"""Seconds between two samples for which waiting is counted: nobody viewed it for longer."""
_LONGEST_LABEL = 120


_SLACK = timedelta(milliseconds=100)
"""By so much the time of a wait may differ between two samples: it is relative to the clock of the store."""
Key = int | tuple[str, str, int, str, int]
"""The token of a participant. If it has none: who it is, and how many such participants are before it."""


class Change(NamedTuple):
    at: datetime
    what: What
    who: str
    token: int
    seconds: float
    """How long the hold or the wait lasted that ended; 0.0: not known."""


class Pair(NamedTuple):
    blocker: str
    waiter: str
    name: str


class Record:
    """The past of one name."""

    __slots__ = ("changes", "renewals", "waits")

    def __init__(self) -> None:
        self.changes: deque[Change] = deque(maxlen=_MOST_EVENTS)
        self.renewals: deque[tuple[datetime, int]] = deque(maxlen=_MOST_RENEWALS)
        """When a renewal was seen, and the token of its hold."""
        self.waits: deque[float] = deque(maxlen=_MOST_WAITS)


def label(one: Participant) -> str:
    """For example: ana@web-3 pid 4121."""
    return clip(one.label, _LONGEST_LABEL)


class History:
    """The past of one store. Not thread-safe: the sampler guards it."""

    def __init__(self) -> None:
        self.expired = 0
        """Holds that were seen to end by their lease."""
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._handovers: deque[datetime] = deque(maxlen=10_000)
        self._heat: dict[str, dict[int, float]] = {}
        """Waiter-seconds by name, and by the number of the bucket."""
        self._pairs: dict[Pair, float] = {}

    def record(self, name: str, *, make: bool = False) -> Record | None:
        found = self._records.get(name)
        if found is None and make:
            found = self._records[name] = Record()
            if len(self._records) > _MOST_NAMES:
                self._records.popitem(last=False)
        elif found is not None and make:
            self._records.move_to_end(name)
        return found

    def compare(self, before: LockInfo, after: LockInfo, ran_out: set[int | str], at: datetime) -> None:
        """Note the changes of one name. `ran_out`: `Participant.key` of the holders of `before` whose lease ended
        without a renewal."""
        held, waited = _by_token(before.holders), _by_token(before.waiters)
        holds, waits = _by_token(after.holders), _by_token(after.waiters)
        _rejoin(waited, held, holds, waits)
        found = list(_ended(held, waited, holds, waits, ran_out, at))
        ended = any(one.what != "left" for one in found)
        record = self.record(after.name, make=True)
        assert record is not None
        for token, one in holds.items():
            if token not in held:
                waiter = waited.get(token)
                # ZooKeeper's holder writes down its time a moment after it holds: until then it is that of its wait
                is_told = waiter is None or one.since > waiter.since + _SLACK
                until = one.since if is_told and elapsed(one, at) is not None else at
                wait = None if waiter is None else elapsed(waiter, until)
                found.append(Change(until, "acquired", label(one), one.token, wait or 0.0))
                if wait is not None:
                    record.waits.append(wait)
                if ended or waiter is not None:
                    self._handovers.append(at)
        if len(before.holders) == 1 and before.holders[0].weight >= before.capacity:
            found = _without_overlap(found, at)
        found += [
            Change(at if elapsed(one, at) is None else one.since, "waiting", label(one), one.token, 0.0)
            for token, one in waits.items()
            if token not in waited and token not in held
        ]
        self.expired += sum(one.what == "expired" for one in found)
        record.changes.extend(found)

    def renewed(self, name: str, token: int, at: datetime) -> None:
        """Kept only for names that have a past, or whose page is open: all other renewals are routine."""
        record = self._records.get(name)
        if record is not None:
            record.renewals.append((at, token))

    def broken(self, name: str, token: int) -> None:
        """Correct the end of a hold: `dibs break` removed it, and its record says so. A record without a token could be
        that of another hold."""
        record = self._records.get(name) if token else None
        for at, one in enumerate(() if record is None else record.changes):
            if one.token == token and one.what in ("released", "expired"):
                assert record is not None
                self.expired -= one.what == "expired"
                record.changes[at] = one._replace(what="broken")

    def waited(self, info: LockInfo, seconds: float, at: datetime) -> None:
        """Count the waiters of one name for the seconds since its last sample."""
        spent = min(seconds, _LONGEST_GAP)
        if spent <= 0 or not info.waiters:
            return
        cells = self._heat.setdefault(info.name, {})
        bucket = int(at.timestamp()) // BUCKET
        cells[bucket] = cells.get(bucket, 0.0) + spent * len(info.waiters)
        if len(cells) > CELLS:
            del cells[min(cells)]
        if len(self._heat) > _MOST_WARM:
            sums = self._warmth(bucket)
            for name in sorted(sums, key=sums.__getitem__)[: _MOST_WARM // 10]:
                del self._heat[name]
        if info.holders:
            more = len(info.holders) - 1
            blocker = label(info.holders[0]) + (f" and {more} more" if more else "")
            for one in info.waiters[:_MOST_WAITERS]:
                pair = Pair(blocker, label(one), info.name)
                self._pairs[pair] = self._pairs.get(pair, 0.0) + spent
            if len(self._pairs) > _MOST_PAIRS:
                for pair in sorted(self._pairs, key=self._pairs.__getitem__)[: len(self._pairs) - _MOST_PAIRS // 2]:
                    del self._pairs[pair]

    def handovers_per_minute(self, now: datetime, began: datetime) -> float:
        while self._handovers and seconds_since(self._handovers[0], now) > 60:
            self._handovers.popleft()
        return len(self._handovers) * 60 / max(min(seconds_since(began, now), 60.0), 10.0)

    def heat(self, now: datetime, most: int) -> tuple[datetime, list[tuple[str, list[float]]]]:
        """The end of the last bucket, and the names with the most waiter-seconds in the last buckets."""
        last = int(now.timestamp()) // BUCKET
        sums = self._warmth(last)
        rows = [
            (name, [round(self._heat[name].get(bucket, 0.0), 1) for bucket in range(last - CELLS + 1, last + 1)])
            for name in sorted(sums, key=lambda name: (-sums[name], name))[:most]
            if sums[name] > 0
        ]
        return datetime.fromtimestamp((last + 1) * BUCKET, UTC), rows

    def _warmth(self, last: int) -> dict[str, float]:
        """The waiter-seconds of each name in the buckets up to the last."""
        first = last - CELLS + 1
        return {name: sum(v for b, v in cells.items() if b >= first) for name, cells in self._heat.items()}

    def pairs(self, most: int) -> list[tuple[Pair, float]]:
        """The pairs with the longest waits, in sum since somebody views the store."""
        return sorted(self._pairs.items(), key=lambda found: (-found[1], found[0]))[:most]


def _by_token(some: Iterable[Participant]) -> dict[Key, Participant]:
    found: dict[Key, Participant] = {}
    alike: Counter[tuple[str, str, int, str]] = Counter()
    for one in some:
        if one.token:
            found[one.token] = one
        else:
            who = (one.owner, one.host, one.pid, one.thread)
            found[*who, alike[who]] = one
            alike[who] += 1
    return found


def _rejoin(
    waited: dict[Key, Participant],
    held: dict[Key, Participant],
    holds: dict[Key, Participant],
    waits: dict[Key, Participant],
) -> None:
    """Give a waiter the token of its hold, where a server queues the waiters itself and the token is new."""
    gone = {(one.owner, one.host, one.pid, one.thread): key for key, one in waited.items() if key not in waits}
    for token, one in holds.items():
        key = gone.get((one.owner, one.host, one.pid, one.thread))
        if token not in held and token not in waited and key is not None and key not in holds:
            waited[token] = waited.pop(key)


def _ended(
    held: dict[Key, Participant],
    waited: dict[Key, Participant],
    holds: dict[Key, Participant],
    waits: dict[Key, Participant],
    ran_out: set[int | str],
    at: datetime,
) -> Iterator[Change]:
    for token, one in held.items():
        if token not in holds:
            what: What = "expired" if one.key in ran_out else "released"
            yield Change(at, what, label(one), one.token, elapsed(one, at) or 0.0)
    for token, one in waited.items():
        if token not in waits and token not in holds:
            yield Change(at, "left", label(one), one.token, elapsed(one, at) or 0.0)


def _without_overlap(found: list[Change], at: datetime) -> list[Change]:
    """An exclusive hold ended before the next one began; the sample only saw it later."""
    taken = min((one.at for one in found if one.what == "acquired"), default=at)
    return [
        one._replace(at=taken, seconds=max(one.seconds - seconds_since(taken, one.at), 0.0))
        if one.what in ("released", "expired") and one.at > taken
        else one
        for one in found
    ]


Kind = Literal["held", "waited"]
KINDS: tuple[Kind, Kind] = ("held", "waited")
"""Of a span: a holder has it, or a waiter."""


class Span(NamedTuple):
    kind: Kind
    start: datetime
    to: datetime | None
    token: int
    end: str | None


_Spans = dict[tuple[Kind, int | datetime], Span]
"""By kind and token. Spans without a token: the end in its place, and 0 for the one that has not ended."""


def lanes(
    record: Record | None,
    info: LockInfo,
    most: int,
    seen: Mapping[tuple[Kind, int | str], datetime] = MappingProxyType({}),
) -> list[tuple[str, list[Span], list[datetime]]]:
    """One lane per owner, the latest first: its holds and waits, and the renewals that were seen of them. A hold or a
    wait that ended while nobody viewed the store is left out. `seen`: see `Entry` in sampler.py."""
    spans: dict[str, _Spans] = {}
    now: set[tuple[str, Kind, int | datetime]] = set()
    owners: dict[int, str] = {}
    for one in () if record is None else record.changes:
        _add(spans.setdefault(one.who, {}), one)
        owners[one.token] = one.who
    for kind, some in zip(KINDS, (info.holders, info.waiters), strict=True):
        for person in some:
            who, start = label(person), seen.get((kind, person.key), person.since)
            spans.setdefault(who, {})[kind, person.token] = Span(kind, start, None, person.token, None)
            now.add((who, kind, person.token))
            owners[person.token] = who
    spans = {
        who: {key: span for key, span in own.items() if span.to is not None or (who, *key) in now}
        for who, own in spans.items()
    }
    ticks: dict[str, list[datetime]] = {}
    for at, token in () if record is None else record.renewals:
        if token in owners:
            ticks.setdefault(owners[token], []).append(at)
    found = [
        (who, sorted(own.values(), key=lambda span: span.start), ticks.get(who, []))
        for who, own in spans.items()
        if own
    ]
    found.sort(key=lambda lane: max(span.to or datetime.max.replace(tzinfo=UTC) for span in lane[1]), reverse=True)
    return found[:most]


def _add(own: _Spans, one: Change) -> None:
    if one.what == "waiting":
        own["waited", one.token] = Span("waited", one.at, None, one.token, None)
    elif one.what == "acquired":
        _close(own, one, "waited", own.pop(("waited", 0), None) or own.get(("waited", one.token)), None)
        own["held", one.token] = Span("held", one.at, None, one.token, None)
    else:
        kind: Kind = "waited" if one.what == "left" else "held"
        _close(own, one, kind, own.pop((kind, one.token), None), one.what)


def _close(own: _Spans, one: Change, kind: Kind, begun: Span | None, end: str | None) -> None:
    """Add the span that this change ended, if its length is known."""
    start = one.at - timedelta(seconds=one.seconds)
    if not one.seconds:
        if begun is None:
            return
        start = min(begun.start, one.at)
    own[kind, one.token or one.at] = Span(kind, start, one.at, one.token, end)
