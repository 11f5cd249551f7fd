"""The metrics of a process, and the one place that turns its events into measurements.

`dibs.otel` and `dibs.prometheus` record the same measurements through two libraries. Both read METRICS, and both pass
`Measures` a function that binds a metric and the values of its attributes to one call of their library.

A gauge is counted from the holds and waits that began and have not ended. An end whose start was not seen changes
nothing: an observer may start while locks are held. A child that fork() made starts with none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from threading import RLock
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from weakref import WeakSet

from dibs.events import Event, ended_as_planned
from dibs.monitor.groups import Group, grouping

T = TypeVar("T")
Row = tuple[str | bool | None, ...]
"""The values of the attributes of a metric, in its order. None: the attribute is left out."""
Record = Callable[[float], object]

BACKEND, MODE, GROUP, OUTCOME = "backend", "mode", "group", "outcome"
CONTENDED, END, REASON, ERROR = "contended", "end", "reason", "error.type"


class Metric(NamedTuple):
    name: str
    kind: Literal["histogram", "counter", "gauge"]
    """A gauge is an up-down counter in OpenTelemetry."""
    unit: str
    attributes: tuple[str, ...]
    text: str
    buckets: tuple[float, ...] = ()


ACQUIRE = Metric(
    "dibs.lock.acquire.duration",
    "histogram",
    "s",
    (BACKEND, MODE, OUTCOME, CONTENDED, GROUP, ERROR),
    "Time from the start of an acquire to its end.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
HOLD = Metric(
    "dibs.lock.hold.duration",
    "histogram",
    "s",
    (BACKEND, MODE, GROUP, END),
    "Time from the grant of a lock to the end of its hold.",
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 1800, 3600, 7200, 21600),
)
HELD = Metric("dibs.lock.held", "gauge", "{lock}", (BACKEND, MODE, GROUP), "Locks that this process holds.")
WAITING = Metric(
    "dibs.lock.waiting", "gauge", "{waiter}", (BACKEND, MODE, GROUP), "Acquires of this process that wait for a lock."
)
RENEWALS = Metric(
    "dibs.lock.renewals", "counter", "{renewal}", (BACKEND, GROUP, OUTCOME), "Renewals of leases by the watchdog."
)
LOSSES = Metric("dibs.lock.losses", "counter", "{loss}", (BACKEND, GROUP, REASON), "Holds that were lost.")
REMAINING = Metric(
    "dibs.lock.lease.remaining",
    "histogram",
    "s",
    (BACKEND,),
    "Time that was left of the lease when the reply to a renewal came.",
    (0, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300),
)
USAGE = Metric(
    "dibs.semaphore.usage", "gauge", "{permit}", (BACKEND, GROUP), "Permits of semaphores that this process holds."
)
LIMIT = Metric(
    "dibs.semaphore.limit",
    "gauge",
    "{permit}",
    (BACKEND, GROUP),
    "Capacity of the semaphores of which this process holds permits.",
)
METRICS = (ACQUIRE, HOLD, HELD, WAITING, RENEWALS, LOSSES, REMAINING, USAGE, LIMIT)

OUTCOMES = {"acquired": "acquired", "busy": "busy", "timed_out": "timeout", "cancelled": "cancelled", "failed": "error"}
"""The event that ends an acquire, and its outcome."""
ENDS = frozenset({"released", "given_back", "lost"})
"""The events that end a hold."""
_ENDS_OF_LOSSES = {"expired": "expired", "max_hold": "expired", "broken": "broken"}
_MOST_ROWS = 10_000


def end_of(event: Event) -> str:
    """How a hold ended: `released`, `expired`, `broken` or `lost`."""
    return _ENDS_OF_LOSSES.get(event.reason, "lost") if event.what == "lost" else "released"


def error_type(event: Event) -> str:
    return "_OTHER" if event.error is None else type(event.error).__qualname__  # OpenTelemetry's word for "unknown"


class Begun(Generic[T]):
    """The holds or waits that began and have not ended; with a fork, a child has none of them.

    A signal handler may release a lock while this thread is in here: so the lock is re-entrant, and each step leaves
    a state from which the next one can begin.
    """

    def __init__(self) -> None:
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        self._found: dict[Hashable, list[T]] = {}
        self.lock = RLock()  # in a child, the old one may belong to a thread that is not there

    def begin(self, key: Hashable, value: T) -> None:
        with self.lock:
            self._found.setdefault(key, []).append(value)

    def end(self, key: Hashable) -> T | None:
        """What began under this key; None if that was not seen."""
        with self.lock:
            values = self._found.get(key)
            if values is None:
                return None
            value = values.pop()
            if not values:
                del self._found[key]
            return value

    def count(self, key: Hashable) -> int:
        return len(self._found.get(key, ()))

    def now(self) -> list[T]:
        with self.lock:
            return [value for values in list(self._found.values()) for value in values]


_all: WeakSet[Begun[Any]] = WeakSet()


def _after_fork() -> None:
    for begun in list(_all):
        begun.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def hold_key(event: Event) -> Hashable:
    """It stays the same while a write lock is downgraded. Holds of an `rlock` share their token."""
    return event.store, event.name, event.token, event.hold


def wait_key(event: Event) -> Hashable:
    return event.store, event.name, event.mode, event.owner


class _Held(NamedTuple):
    row: Row
    semaphore: Hashable = None
    weight: int = 0
    capacity: int = 0


class _Rows(dict[Row, Record]):
    """The bound calls of a metric, made when they are first needed."""

    def __init__(self, bind: Callable[[Metric, Row], Record], metric: Metric) -> None:
        super().__init__()
        self._make, self._metric = bind, metric

    def __missing__(self, row: Row) -> Record:
        if len(self) >= _MOST_ROWS:  # only with raw names as groups
            self.clear()
        record = self[row] = self._make(self._metric, row)
        return record


class Measures:
    """An observer that records.

    `bind` returns the call that records a value of a metric with these attributes. `changed`, if it is given, receives
    each change of a gauge; otherwise `gauges` has their values.
    """

    def __init__(
        self,
        bind: Callable[[Metric, Row], Record],
        group: Group = None,
        changed: Callable[[Metric, Row, int], object] | None = None,
    ) -> None:
        self._group = grouping(group)
        self._changed = changed
        self._held_rows: set[Row] = set()
        self._known: dict[Metric, set[Row]] = {HELD: self._held_rows, WAITING: set(), USAGE: set(), LIMIT: set()}
        """The series of the gauges. One that was there once stays, with 0."""
        self._holds: Begun[_Held] = Begun()
        self._permits: Begun[None] = Begun()
        """By semaphore; for `changed` only."""
        self._waits: Begun[Row] = Begun()
        self._acquires, self._ends = _Rows(bind, ACQUIRE), _Rows(bind, HOLD)
        self._renewals, self._losses = _Rows(bind, RENEWALS), _Rows(bind, LOSSES)
        self._remaining = _Rows(bind, REMAINING)

    def __call__(self, event: Event, /) -> None:
        """The gauges change first: a fault of the library that records must not make them wrong."""
        what = event.what
        if what in OUTCOMES:
            self._acquire_ended(event, OUTCOMES[what])
        elif what in ENDS:
            self._hold_ended(event)
        elif what == "waiting":
            row: Row = (event.backend, event.mode, self._group(event.name))
            self._known[WAITING].add(row)
            self._waits.begin(wait_key(event), row)
            self._tell(WAITING, row, 1)
        elif what in ("renewed", "renewal_late"):
            self._renewed(event)

    def _acquire_ended(self, event: Event, outcome: str) -> None:
        backend, mode, group = event.backend, event.mode, self._group(event.name)
        if event.contended and (row := self._waits.end(wait_key(event))) is not None:
            self._tell(WAITING, row, -1)
        if outcome == "acquired" and mode != "transaction":
            if event.kind == "semaphore":
                held = _Held((backend, mode, group), (event.store, event.name), event.weight, event.capacity)
                self._known[USAGE].add((backend, group))
                self._known[LIMIT].add((backend, group))
            else:
                held = _Held((backend, mode, group))
            self._held_rows.add(held.row)
            self._hold_begins(event, held)
        error = error_type(event) if outcome == "error" else None
        self._acquires[backend, mode, outcome, event.contended, group, error](event.waited)

    def _hold_ended(self, event: Event) -> None:
        backend, group = event.backend, self._group(event.name)
        held = self._hold_ends(event)
        if held is not None:
            self._ends[backend, held.row[1], group, end_of(event)](event.held)
        if event.what == "lost" and not ended_as_planned(event):
            self._losses[backend, group, event.reason](1)

    def _renewed(self, event: Event) -> None:
        outcome = "renewed" if event.what == "renewed" else "late" if event.error is None else "failed"
        self._renewals[event.backend, self._group(event.name), outcome](1)
        self._remaining[event.backend,](max(event.left, 0.0))

    def _tell(self, metric: Metric, row: Row, change: int) -> None:
        if self._changed is not None:
            self._changed(metric, row, change)

    def _hold_begins(self, event: Event, held: _Held) -> None:
        if self._changed is None:
            self._holds.begin(hold_key(event), held)
            return
        with self._holds.lock:
            self._holds.begin(hold_key(event), held)
            self._changed(HELD, held.row, 1)
            if held.semaphore is not None:
                row = (held.row[0], held.row[2])
                self._changed(USAGE, row, held.weight)
                self._permits.begin(held.semaphore, None)
                if self._permits.count(held.semaphore) == 1:
                    self._changed(LIMIT, row, held.capacity)

    def _hold_ends(self, event: Event) -> _Held | None:
        if self._changed is None:
            return self._holds.end(hold_key(event))
        with self._holds.lock:
            held = self._holds.end(hold_key(event))
            if held is not None:
                self._changed(HELD, held.row, -1)
                if held.semaphore is not None:
                    row = (held.row[0], held.row[2])
                    self._changed(USAGE, row, -held.weight)
                    self._permits.end(held.semaphore)
                    if not self._permits.count(held.semaphore):
                        self._changed(LIMIT, row, -held.capacity)
            return held

    def gauges(self) -> dict[Metric, Counter[Row]]:
        """The values of all gauges now."""
        holds = self._holds.now()
        permits = [one for one in holds if one.semaphore is not None]
        found: dict[Metric, Counter[Row]] = {metric: Counter() for metric in self._known}
        found[HELD].update(one.row for one in holds)
        found[WAITING].update(self._waits.now())
        for one in permits:
            found[USAGE][one.row[0], one.row[2]] += one.weight
        for one in {one.semaphore: one for one in permits}.values():
            found[LIMIT][one.row[0], one.row[2]] += one.capacity
        for metric, known in self._known.items():
            found[metric].update(dict.fromkeys(known.copy(), 0))
            if len(known) >= _MOST_ROWS:  # only with raw names as groups
                known.clear()
        return found

    def close(self) -> None:
        """Take what this observer saw out of the gauges."""
        with self._holds.lock:
            for metric, rows in self.gauges().items():
                for row, value in rows.items():
                    self._tell(metric, row, -value)
            for begun in (self._holds, self._waits, self._permits):
                begun.forget()
        for known in self._known.values():
            known.clear()


def summed(metric: Metric, observers: Iterable[Measures]) -> Counter[Row]:
    """The values of a gauge over several observers."""
    total: Counter[Row] = Counter()
    for one in list(observers):
        total.update(one.gauges()[metric])
    return total
