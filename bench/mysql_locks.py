#!/usr/bin/env python3
"""Locks on a real MariaDB, beside GET_LOCK by hand and tooz, which uses it.

  bench/mysql_locks.py [--only mysql_free | ...]

mysql_free     Free pair, blocking. The floor is a row inserted and deleted, each committed, by PyMySQL. Bars: 2.5 x the
               floor, below tooz (which has no lease, no line and no token).
mysql_handoff  Four processes, each holds for 5 ms: from calling `release` to the next one having it. Bar: p50 at most
               3 x GET_LOCK by hand.
mysql_keeper   A process that holds 5,000 locks and sleeps: CPU of the process. Bar: under 5 % of a core.
mysql_snapshot Free pairs while somebody else keeps a snapshot open, behind many others that cannot be purged for it.
               Bar: the pair at most doubles.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from contend import FAIR, UNFAIR, compare, handoffs, in_order, processes
from crew import apart, checked
from free import PAIR, dibs_cases
from measure import Report, Settings, Timed, interleaved, main, microseconds, p50, timed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from lab.servers import ports
from lab.servers.mariadb import NAME, MariaDB
from lab.servers.supervisor import Server

FLOOR, BY_HAND, TOOZ = "floor_two_commits", "GET_LOCK by hand", "tooz"
HOLDS, LEASE = 5000, 30.0


@contextmanager
def serving() -> Iterator[Server]:
    with Server(MariaDB()) as server:
        yield server


def url(port: int) -> str:
    return f"mysql://{NAME}:{NAME}@{ports.HOST}:{port}/{NAME}"


def cursor(port: int, stack: ExitStack) -> Any:
    import pymysql

    login = {"user": NAME, "password": NAME, "database": NAME}
    return stack.enter_context(closing(pymysql.connect(host=ports.HOST, port=port, autocommit=True, **login))).cursor()


def two_commits(port: int, stack: ExitStack) -> Timed:
    ask = cursor(port, stack).execute
    ask("CREATE TABLE IF NOT EXISTS bench_floor (k VARCHAR(64) PRIMARY KEY, o VARCHAR(64))")

    def once() -> None:
        ask("INSERT INTO bench_floor VALUES ('a', 'b')")
        ask("DELETE FROM bench_floor WHERE k = 'a'")

    return timed(once)


class ByHand:
    """What people write: a session, a name, and a long time-out."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._cursor = cursor(port, stack)

    def acquire(self) -> bool:
        self._cursor.execute("SELECT GET_LOCK('bench', 60)")
        return bool(self._cursor.fetchone()[0])

    def release(self) -> None:
        self._cursor.execute("SELECT RELEASE_LOCK('bench')")
        self._cursor.fetchone()


def tooz_lock(port: int, stack: ExitStack) -> Any:
    from tooz import coordination

    coordinator = coordination.get_coordinator(url(port), b"bench")
    coordinator.start()
    stack.callback(coordinator.stop)
    return coordinator.get_lock(b"tooz")


def dibs_lock(port: int, stack: ExitStack, name: str, **options: Any) -> Any:
    import dibs

    return stack.enter_context(dibs.connect(url(port))).lock(name, **options)


def pair_of(lock: Any) -> Timed:
    def once() -> None:
        lock.acquire()
        lock.release()

    return timed(once)


def mysql_free(report: Report, settings: Settings) -> None:
    makers: dict[str, Callable[[int, ExitStack], Timed]] = {
        FLOOR: two_commits,
        BY_HAND: lambda port, stack: pair_of(ByHand(port, stack)),
        TOOZ: lambda port, stack: pair_of(tooz_lock(port, stack)),
    }
    with serving() as server, ExitStack() as stack:
        cases: dict[str, Timed] = {}
        for name, make in makers.items():
            with report.or_left_out(name):
                cases[name] = make(server.port, stack)
        with report.or_left_out("dibs"):
            cases |= dibs_cases(url(server.port), stack)
        times = interleaved(report, cases, settings.choose(100, 30), settings.rounds * 4)
    figures = {name: p50(some) * 1e6 for name, some in times.items()}
    for name, some in times.items():
        report.line(name, {**microseconds(some), "to floor_x": figures[name] / figures.get(FLOOR, math.nan)})
    report.beside("p50 of a free pair: at most 2.5 x", figures, PAIR, FLOOR, "us", most=2.5)
    report.beside("p50 of a free pair: at most 1 x", figures, PAIR, TOOZ, "us", most=1.0)


def mysql_handoff(report: Report, settings: Settings) -> None:
    with serving() as server:
        port = server.port
        outcomes = compare(
            report, settings,
            {
                FAIR: processes(lambda stack: dibs_lock(port, stack, "fair")),
                UNFAIR: processes(lambda stack: dibs_lock(port, stack, "unfair", fair=False)),
                BY_HAND: processes(lambda stack: ByHand(port, stack)),
            },
            hold=0.005,
        )  # fmt: skip
    figures = {}
    for name, outcome in outcomes.items():
        report.line(name, handoffs(outcome))
        figures[name] = p50(outcome.gaps) * 1e6
    report.beside("p50 of a hand-off at most 3 x", figures, FAIR, BY_HAND, "us", most=3.0)
    in_order(report, outcomes, FAIR)


def mysql_keeper(report: Report, settings: Settings) -> None:
    with serving() as server:
        [result] = apart(hold_all, [(server.port, settings.choose(2, 1))], at_once=True)
    share, lost = checked(result)
    report.line(f"{HOLDS} holds", {"cpu_pct": share * 100.0, "lost_n": lost})
    report.limit("CPU while idle under 5 % of a core", share * 100.0, "pct", under=5.0)
    report.limit("no hold is lost", lost, "n", most=0)


def hold_all(start: Callable[[], None], port: int, rounds: int) -> tuple[float, int]:
    """The share of a core of this process over whole rounds of renewals, each at a third of the lease; holds lost."""
    import dibs

    with dibs.connect(url(port), lease=LEASE) as client:
        holds = [client.lock(f"hold-{number}").acquire() for number in range(HOLDS)]
        start()
        time.sleep(LEASE / 6)
        used, began = time.process_time(), time.perf_counter()
        time.sleep(rounds * LEASE / 3)
        share = (time.process_time() - used) / (time.perf_counter() - began)
        return share, sum(hold is None or hold.lost.is_set() for hold in holds)


def mysql_snapshot(report: Report, settings: Settings) -> None:
    with serving() as server, ExitStack() as stack:
        pair = pair_of(dibs_lock(server.port, stack, "hot"))
        few = settings.choose(500, 50)
        pair(few)
        figures = {"before": p50(pair(few)) * 1e6}
        ask = cursor(server.port, stack).execute
        ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        ask("SELECT COUNT(*) FROM dibs_claims")
        many = settings.choose(100_000, 2000)
        pair(many)
        figures["behind"] = p50(pair(few)) * 1e6
    report.line("a free pair", {"before_us": figures["before"], f"behind {many} others_us": figures["behind"]})
    report.beside("a free pair at most 2 x", figures, "behind", "before", "us", most=2.0)


ROWS = {
    "mysql_free": mysql_free,
    "mysql_handoff": mysql_handoff,
    "mysql_keeper": mysql_keeper,
    "mysql_snapshot": mysql_snapshot,
}

if __name__ == "__main__":
    main(__doc__, ROWS)
