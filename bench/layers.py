#!/usr/bin/env python3
"""Where the time of a free pair goes: the wire, the store, the core, the API.

  bench/layers.py

layers  On each store: the floor (in session mode the lock by hand); `take_now` and `leave_now` of the store's queue
        alone, on claims that are prepared before; a whole pair (acquire, release) on a kept lock object, and how much
        of it is spent in the queue, in the core without the queue, and in the API without the core. No bars: it
        explains those of free.py. `bench/trace --layers STORE` measures one store.

A clock is read around every part, which costs some 0.1 us each. The queue and its arguments are those of a real pair:
`sys.setprofile` sees its first call of `take_now`.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from crew import Failed
from free import in_mode
from measure import Report, Settings, Timed, dibs_lock, interleaved, main, microseconds, p50, pair_of
from peers import PEERS
from road import STORES
from servers import serving
from sql_peers import ByHand

KINDS = (*STORES, "postgresql_session", "mysql_session")
FLOOR, ALONE, WHOLE = "floor", "take_now and leave_now alone", "acquire and release"
_CORE, _QUEUE = ("take", "give"), ("take_now", "leave_now")


class Taking(NamedTuple):
    """A call of `take_now`, with the instant at which it was seen."""

    queue: Any
    claim: Any
    place: Any
    until: float
    seen_at: float


def layers(report: Report, settings: Settings) -> None:
    for kind in KINDS:
        with report.or_left_out(kind):
            on_store(kind, report, settings)


def on_store(kind: str, report: Report, settings: Settings) -> None:
    server, _, mode = kind.partition("_")
    with serving(server, settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        lock = dibs_lock(in_mode(store.url, mode or "lease"), stack, "layers")
        pair = pair_of(lock)
        pair(200)
        taking, parts = taking_of(lock), Parts(lock._core)
        cases: dict[str, Timed] = {ALONE: lambda n: alone(taking, pair, n), WHOLE: parts.timed(taking.queue, pair)}
        if mode:
            cases = {FLOOR: pair_of(ByHand(store.url, stack))} | cases
        elif server in PEERS:
            cases = {FLOOR: PEERS[server].floor_pair(store.url, stack)} | cases
        times = interleaved(report, cases, settings.choose(200, 60), settings.rounds * 4)
    floor = times.get(FLOOR)
    for name, some in times.items():
        report.line(f"{kind}: {name}", microseconds(some) | ({"to floor_x": p50(some) / p50(floor)} if floor else {}))
    if ALONE not in times:
        return  # the pair took the general path, whose steps the API drives: the parts would mislead
    for name, some in parts.spent(times[WHOLE]).items():
        report.line(f"{kind}: of it in {name}", microseconds(some))


def taking_of(lock: Any) -> Taking:
    """The queue and the claim of a real pair."""
    found: list[Taking] = []

    def note(frame: FrameType, event: str, about: Any) -> None:
        here = frame.f_locals
        if event == "call" and frame.f_code.co_name == "take_now" and "claim" in here:  # a pool has one, too
            found.append(Taking(*(here[name] for name in ("self", "claim", "place", "until")), time.monotonic()))

    sys.setprofile(note)
    try:
        lock.acquire()
    finally:
        sys.setprofile(None)
    lock.release()
    if not found:
        raise Failed("no free path here: the core asked no take_now")
    return found[0]


def alone(taking: Taking, general: Timed, n: int) -> list[float]:
    """The queue's part of n pairs, without a core. A pair that the queue declines is done on the general path."""
    clock, times = time.perf_counter, []
    take, leave = taking.queue.take_now, taking.queue.leave_now
    for _ in range(n):
        later = time.monotonic() - taking.seen_at
        claim = copy.copy(taking.claim)
        claim.id, claim.by, claim.asked, claim.ticket = os.urandom(16), taking.claim.by + later, False, None
        until = taking.until + later
        start = clock()
        taken = take(claim, taking.place, until)
        left = taken and leave(claim, until)
        if left:
            times.append(clock() - start)
        elif taken:
            with suppress(StopIteration):
                taking.queue.leave(claim, True, until).send(None)
        else:
            general(1)
    if not times:
        raise Failed("the queue declines every pair: it has no free path")
    return times


class Parts:
    """The time that pairs spend below the API, and below the core."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._below: dict[str, list[float]] = {"core": [], "queue": []}

    def timed(self, queue: Any, pair: Timed) -> Timed:
        def run(n: int) -> list[float]:
            times: list[float] = []
            with self._watched(self._core, _CORE, "core"), self._watched(queue, _QUEUE, "queue"):
                for _ in range(n):
                    for below in self._below.values():
                        below.append(0.0)
                    times += pair(1)
            return times

        return run

    def spent(self, whole: list[float]) -> dict[str, list[float]]:
        """Seconds of each layer, without those below it, of the last pairs."""
        core, queue = (below[-len(whole) :] for below in self._below.values())
        return {
            "the API": [all_ - below for all_, below in zip(whole, core, strict=True)],
            "the core": [all_ - below for all_, below in zip(core, queue, strict=True)],
            "the queue": queue,
        }

    @contextmanager
    def _watched(self, target: Any, names: tuple[str, ...], layer: str) -> Iterator[None]:
        """Read a clock around these methods of its class."""
        owner, spent = type(target), self._below[layer]
        plain = {name: getattr(owner, name) for name in names}
        try:
            for name, method in plain.items():
                setattr(owner, name, _watching(method, spent))
            yield
        finally:
            for name, method in plain.items():
                setattr(owner, name, method)


def _watching(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    clock = time.perf_counter

    def watched(*arguments: Any, **options: Any) -> Any:
        start = clock()
        try:
            return method(*arguments, **options)
        finally:
            spent[-1] += clock() - start

    return watched


def print_layers(kind: str, directory: Path) -> None:
    """One store, for bench/trace."""
    on_store(kind, Report("layers"), Settings(quick=False, rounds=3, directory=directory, built=directory, old=None))


ROWS = {"layers": layers}

if __name__ == "__main__":
    main(__doc__, ROWS)
