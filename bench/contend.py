#!/usr/bin/env python3
"""Contention: four processes want one lock.

  bench/contend.py [--only contend_nohold | ...]

contend_nohold, redis_contend, zookeeper_contend
    Take and release as fast as possible, on sqlite, Redis and ZooKeeper: acquisitions/s. Bars: 0.9 x filelock's;
    3 x python-redis-lock's and Redisson's fair lock's; 3 x kazoo's and 1.5 x Curator's in four JVMs.
contend_hold5ms, redis_handoff, postgresql_handoff, mysql_handoff, zookeeper_handoff
    The holder sleeps 5 ms: from calling `release` to the next process having the lock. Bars on p50: 4, 1.6 and 1.5 x a
    bare message (a datagram on a Unix socket, PUBLISH, NOTIFY); 2.5 x MariaDB's session lock by hand; half of
    python-redis-lock's; 0.7 x kazoo's. Bar on p99, on sqlite: a tenth of filelock's.
postgresql_session_handoff, mysql_session_handoff
    Session mode. Bar: 1.5 x the server's session lock by hand.

Everywhere: no token falls, no overlap (contest.py says what that is). filelock and redis-py's Lock poll: they hand over
rarely, and their longest wait shows what that means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import redis_peers
import redisson
import sql_peers
import zookeeper_peers
from contest import FAIR, Contender, Outcome, compare, handoffs, in_order, processes, rates
from crew import Failed
from free import in_mode
from measure import Report, Settings, main, microseconds, p50, percentile
from peers import FILELOCK, PEERS, WAKE, makers
from servers import serving

_ENOUGH = 10
"""Hand-offs without which a p99 says nothing."""


@contextmanager
def contenders(kind: str, mode: str, report: Report, settings: Settings) -> Iterator[tuple[str, dict[str, Contender]]]:
    """A store's URL and the contenders on it."""
    with serving(kind, settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        some = {name: processes(make) for name, make in makers(kind, in_mode(store.url, mode)).items()}
        for name, make in PEERS[kind].contenders.items():
            if settings.quick and name == zookeeper_peers.CURATORS:
                continue  # four JVMs take long to start and to warm up
            with report.or_left_out(name):
                some[name] = make(store.url, settings, stack)
        yield store.url, some


def contend(kind: str, bars: Mapping[str, float], report: Report, settings: Settings) -> None:
    """`bars` has, for each peer, the multiple of its rate."""
    with contenders(kind, "lease", report, settings) as (_, some):
        outcomes = compare(report, settings, some, hold=0.0)
    for name, outcome in outcomes.items():
        report.line(name, rates(outcome))
    figures = {name: outcome.rate() for name, outcome in outcomes.items()}
    for peer, least in bars.items():
        report.beside("acquisitions/s", figures, FAIR, peer, "per-s", least=least)
    in_order(report, outcomes, FAIR)


def handoff(kind: str, bars: Mapping[str, float], report: Report, settings: Settings, *, mode: str = "lease") -> None:
    """`bars` has, for each peer, the multiple of its p50."""
    peers, messages = PEERS[kind], list[float]()

    with contenders(kind, mode, report, settings) as (url, some):

        def before() -> None:
            if peers.messages is not None:
                messages.extend(peers.messages(url, settings.choose(150, 50)))

        outcomes = compare(report, settings, some, hold=0.005, before=before)
    figures = {}
    if messages:
        report.line(peers.message, microseconds(messages))
        figures[peers.message] = p50(messages) * 1e6
    for name, outcome in outcomes.items():
        report.line(name, handoffs(outcome))
        figures[name] = p50(outcome.gaps) * 1e6
    for peer, most in bars.items():
        report.beside("p50 of a hand-off", figures, FAIR, peer, "us", most=most)
    if kind == "sqlite":
        _slowest(report, outcomes)
    in_order(report, outcomes, FAIR)


def _slowest(report: Report, outcomes: Mapping[str, Outcome]) -> None:
    with report.or_left_out("the bar on p99"):
        theirs = outcomes[FILELOCK].gaps
        if len(theirs) < _ENOUGH:
            raise Failed(f"filelock handed over {len(theirs)} times only")
        figures = {name: percentile(outcomes[name].gaps, 0.99) * 1e6 for name in (FAIR, FILELOCK)}
        report.beside("p99 of a hand-off", figures, FAIR, FILELOCK, "us", most=0.1)


_NOHOLD: dict[str, tuple[str, dict[str, float]]] = {
    "contend_nohold": ("sqlite", {FILELOCK: 0.9}),
    "redis_contend": ("redis", {redis_peers.REDIS_LOCK: 3.0, redisson.FAIR_LOCK: 3.0}),
    "zookeeper_contend": ("zookeeper", {zookeeper_peers.KAZOO: 3.0, zookeeper_peers.CURATORS: 1.5}),
}
_HANDOFF: dict[str, tuple[str, dict[str, float]]] = {
    "contend_hold5ms": ("sqlite", {WAKE: 4.0}),
    "redis_handoff": ("redis", {redis_peers.MESSAGE: 1.6, redis_peers.REDIS_LOCK: 0.5}),
    "postgresql_handoff": ("postgresql", {sql_peers.MESSAGE: 1.5}),
    "mysql_handoff": ("mysql", {sql_peers.BY_HAND: 2.5}),
    "zookeeper_handoff": ("zookeeper", {zookeeper_peers.KAZOO: 0.7}),
}
ROWS: dict[str, Callable[[Report, Settings], None]] = {
    **{row: partial(contend, *about) for row, about in _NOHOLD.items()},
    **{row: partial(handoff, *about) for row, about in _HANDOFF.items()},
    **{
        f"{kind}_session_handoff": partial(handoff, kind, {sql_peers.BY_HAND: 1.5}, mode="session")
        for kind in ("postgresql", "mysql")
    },
}

if __name__ == "__main__":
    main(__doc__, ROWS)
