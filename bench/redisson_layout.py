#!/usr/bin/env python3
"""The same locks in Java and in Python: dibs with layout=redisson beside Redisson, on one server.

  bench/redisson_layout.py [--only redisson_free | ...]

redisson_free
    A free pair of RLock and of RFairLock. Bar: 0.6 x Redisson's.
redisson_contend
    Four processes take and release as fast as possible, beside four JVMs. Bar: 1.5 x Redisson's rate.
redisson_handoff
    The holder of a fair lock sleeps 5 ms: from calling `release` to the next process having the lock. Bar: 0.7 x
    Redisson's p50.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import redisson
from contest import Contender, compare, handoffs, processes, rates
from free import interleaved, lines
from measure import Report, Settings, Timed, main, p50
from peers import pair_of
from servers import serving

LOCK, FAIR, OWN = "dibs RLock", "dibs fair RLock", "dibs, own layout"
_OPTIONS: dict[str, dict[str, bool]] = {LOCK: {}, FAIR: {"fair": True}}
_PEERS = {LOCK: redisson.LOCK, FAIR: redisson.FAIR_LOCK}


class _Lock:
    """A lock for contest.py, whose holds have no tokens."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release

    def acquire(self) -> object:
        self._lock.acquire()
        return object()


def _lock(kind: str, url: str, stack: ExitStack) -> Any:
    import dibs

    client = stack.enter_context(dibs.connect(url, layout="redisson"))
    return _Lock(client.lock(f"redisson-{kind}", **_OPTIONS[kind]))


def redisson_free(report: Report, settings: Settings) -> None:
    import dibs

    with serving("redis", settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        cases: dict[str, Timed] = {}
        for kind, peer in _PEERS.items():
            cases[kind] = pair_of(_lock(kind, store.url, stack))
            with report.or_left_out(peer):
                cases[peer] = redisson.pair(peer, store.url, settings, stack)
        cases[OWN] = pair_of(stack.enter_context(dibs.connect(store.url)).lock("pair"))
        times = interleaved(report, cases, settings.choose(200, 60), settings.rounds * 4)
    figures = lines(report, times)
    for kind, peer in _PEERS.items():
        report.beside("p50 of a free pair", figures, kind, peer, "us", most=0.6)


def _contenders(
    kinds: list[str], url: str, report: Report, settings: Settings, stack: ExitStack
) -> dict[str, Contender]:
    some: dict[str, Contender] = {}
    for kind in kinds:
        some[kind] = processes(partial(_lock, kind, url))
        with report.or_left_out(_PEERS[kind]):
            some[_PEERS[kind]] = redisson.contender(_PEERS[kind], url, settings, stack)
    return some


def redisson_contend(report: Report, settings: Settings) -> None:
    with serving("redis", settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        outcomes = compare(report, settings, _contenders([LOCK, FAIR], store.url, report, settings, stack), hold=0.0)
    for name, outcome in outcomes.items():
        report.line(name, rates(outcome))
    figures = {name: outcome.rate() for name, outcome in outcomes.items()}
    for kind, peer in _PEERS.items():
        report.beside("acquisitions/s", figures, kind, peer, "per-s", least=1.5)
        report.limit("nobody finds somebody inside", outcomes[kind].overlaps, "n", most=0)


def redisson_handoff(report: Report, settings: Settings) -> None:
    with serving("redis", settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        outcomes = compare(report, settings, _contenders([LOCK, FAIR], store.url, report, settings, stack), hold=0.005)
    for name, outcome in outcomes.items():
        report.line(name, handoffs(outcome))
    figures = {name: p50(outcome.gaps) * 1e6 for name, outcome in outcomes.items()}
    report.beside("p50 of a hand-off", figures, FAIR, redisson.FAIR_LOCK, "us", most=0.7)


ROWS: dict[str, Callable[[Report, Settings], None]] = {
    "redisson_free": redisson_free,
    "redisson_contend": redisson_contend,
    "redisson_handoff": redisson_handoff,
}

if __name__ == "__main__":
    main(__doc__, ROWS)
