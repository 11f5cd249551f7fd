#!/usr/bin/env python3
"""Locks on real PostgreSQL and MariaDB servers, beside session locks by hand, tooz and sqlalchemy-dlock.

  bench/sql_locks.py [--only postgresql_free | ...]

postgresql_free, mysql_free        Free pair. The floor is a row inserted and deleted, in two commits, by the driver.
                                   Bars: 1.6 x the floor on PostgreSQL, 2.5 x on MariaDB and faster than tooz there.
postgresql_handoff, mysql_handoff  Four processes, each holds for 5 ms: from calling `release` to the next one having
                                   it. Bars: p50 at most 1.5 x (PostgreSQL) and 3 x (MariaDB) the lock by hand, which
                                   the server itself hands over.
postgresql_session_free,           The same two in session mode, where a lock is one of the server's own, as by hand.
postgresql_session_handoff,        Bars: 1.35 x the lock by hand, and 1.5 x.
mysql_session_free, mysql_session_handoff
postgresql_keeper, mysql_keeper    A process that holds 5,000 locks and sleeps: CPU as a share of one core over two
                                   rounds of renewals (one with --quick). Bar: under 5 %; none is lost.

See sql_counts.py for what the servers are asked to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from contend import FAIR, UNFAIR, Contender, compare, handoffs, in_order, processes
from crew import apart, checked
from free import PAIR, dibs_cases
from keeper import hold_locks
from measure import Report, Settings, Timed, interleaved, main, microseconds, p50
from sql_peers import BY_HAND, FLOOR, LOCKS, PLACES, TOOZ, Place, dibs_lock, pair_of, serving, two_commits

HOLDS = 5000


def free(place: Place, bars: dict[str, float], report: Report, settings: Settings, *, mode: str = "lease") -> None:
    with serving(place, settings) as url, ExitStack() as stack:
        cases: dict[str, Timed] = {FLOOR: two_commits(place, url, stack)}
        for name, make in LOCKS.items():
            with report.or_left_out(name):
                cases[name] = pair_of(make(place, url, stack))
        with report.or_left_out("dibs"):
            cases |= dibs_cases(in_mode(url, mode), stack)
        times = interleaved(report, cases, settings.choose(100, 30), settings.rounds * 4)
    figures = {name: p50(some) * 1e6 for name, some in times.items()}
    for name, some in times.items():
        report.line(name, {**microseconds(some), "to floor_x": figures[name] / figures.get(FLOOR, math.nan)})
    for peer, most in bars.items():
        report.beside(f"p50 of a free pair: at most {most:g} x", figures, PAIR, peer, "us", most=most)


def handoff(place: Place, most: float, report: Report, settings: Settings, *, mode: str = "lease") -> None:
    with serving(place, settings) as url:
        ours = in_mode(url, mode)
        contenders: dict[str, Contender] = {
            FAIR: processes(lambda stack: dibs_lock(ours, stack, "fair")),
            UNFAIR: processes(lambda stack: dibs_lock(ours, stack, "unfair", fair=False)),
        }
        contenders |= {name: processes(partial(make, place, url)) for name, make in LOCKS.items()}
        outcomes = compare(report, settings, contenders, hold=0.005)
    figures = {}
    for name, outcome in outcomes.items():
        report.line(name, handoffs(outcome))
        figures[name] = p50(outcome.gaps) * 1e6
    report.beside(f"p50 of a hand-off at most {most:g} x", figures, FAIR, BY_HAND, "us", most=most)
    in_order(report, outcomes, FAIR)


def in_mode(url: str, mode: str) -> str:
    """The same store, where the default of `mode` is another."""
    return url if mode == "lease" else f"{url}?mode={mode}"


def keeper(place: Place, report: Report, settings: Settings) -> None:
    with serving(place, settings) as url, report.or_left_out("dibs"):
        grown, cpu, lost, took = checked(*apart(hold_locks, [(url, settings.choose(20.0, 8.0), HOLDS)], at_once=True))
        report.line(f"{HOLDS} holds", {"cpu_pct": cpu, "grown_MB": grown, "taken in_s": took, "lost_n": lost})
        report.limit("CPU while idle under 5 % of a core", cpu, "pct", under=5.0)
        report.limit("none is lost", lost, "n", most=0)


_POSTGRESQL, _MYSQL = PLACES["postgresql"], PLACES["mysql"]
ROWS: dict[str, Callable[[Report, Settings], None]] = {
    "postgresql_free": partial(free, _POSTGRESQL, {FLOOR: 1.6}),
    "postgresql_handoff": partial(handoff, _POSTGRESQL, 1.5),
    "postgresql_session_free": partial(free, _POSTGRESQL, {BY_HAND: 1.35}, mode="session"),
    "postgresql_session_handoff": partial(handoff, _POSTGRESQL, 1.5, mode="session"),
    "postgresql_keeper": partial(keeper, _POSTGRESQL),
    "mysql_free": partial(free, _MYSQL, {FLOOR: 2.5, TOOZ: 1.0}),
    "mysql_handoff": partial(handoff, _MYSQL, 3.0),
    "mysql_session_free": partial(free, _MYSQL, {BY_HAND: 1.35}, mode="session"),
    "mysql_session_handoff": partial(handoff, _MYSQL, 1.5, mode="session"),
    "mysql_keeper": partial(keeper, _MYSQL),
}

if __name__ == "__main__":
    main(__doc__, ROWS)
