#!/usr/bin/env python3
"""What a Redis server is asked to do, by its own counts (INFO commandstats). Counts are exact; they are no timings.

  bench/redis_counts.py [--only redis_commands | --only redis_keeper]

redis_commands  A free pair, beside the floor's: two scripts, which call four commands, show that the counting is right.
                10 and then 1,000 tasks wait in one line; they share five clients, and no client has two in a row, so
                that each hand-off goes from one client to another. Commands per hand-off, from calling `release` until
                the next one has the lock, and per claim that joins the end. What clients send stands apart from what
                their scripts call inside the server. Bar: 1,000 waiters cost what 10 cost.
                Claims are renewed meanwhile, as time goes by. That is not part of a hand-off: of many short spells the
                middle one counts, and what waiting costs is shown as commands per second while all only wait.
redis_keeper    A process that holds 10,000 locks and sleeps: CPU of the process as a share of one core over two whole
                rounds of renewals (one with --quick), and what it sent in a round. Bar: under 5 %.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import lines
from crew import Failed, apart, checked
from keeper import LEASE, LOCKS, resident
from lines import Counts
from measure import Report, Settings, Timed, main, p50
from redis_peers import FLOOR, Bare, dibs_lock, pair_of, serving, two_scripts, url

PAIRS = 20
FEW, MANY = 10, 1000
_SENT = {
    "evalsha",
    "eval",
    "fcall",
    "wait",
    "subscribe",
    "unsubscribe",
    "ping",
    "hello",
    "auth",
    "select",
    "script|load",
}
"""What a client sends. All else is called by its scripts."""
_OURS = {"info"}


class Server:
    """Its counts, asked for on a socket of its own."""

    def __init__(self, port: int) -> None:
        self._bare = Bare(port)

    def counts(self) -> Counts:
        sent = inside = 0
        for line in self._bare.ask("INFO", "commandstats").decode().splitlines():
            if line.startswith("cmdstat_"):
                name, _, about = line.removeprefix("cmdstat_").partition(":calls=")
                calls = int(about.split(",")[0])
                if name in _SENT or name.startswith("client|"):
                    sent += calls
                elif name not in _OURS:
                    inside += calls
        return Counts(sent, inside)

    def cpu(self) -> float:
        """Seconds of CPU time that it has used."""
        facts = dict(line.split(":") for line in self._bare.ask("INFO", "cpu").decode().splitlines() if ":" in line)
        return float(facts["used_cpu_user_main_thread"]) + float(facts["used_cpu_sys_main_thread"])

    def close(self) -> None:
        self._bare.close()


def redis_commands(report: Report, settings: Settings) -> None:
    sizes = (FEW, settings.choose(MANY, 100))
    spells, seconds = settings.choose((40, 10.0), (5, 3.0))
    with serving() as server, ExitStack() as stack:
        pairs: dict[str, Callable[[int, ExitStack], Timed]] = {FLOOR: two_scripts, "dibs": dibs_pair}
        for name, make in pairs.items():
            with report.or_left_out(f"free pair, {name}"):
                free = _counted(server.port, make(server.port, stack))
                report.line(f"free pair, {name}", {"sent_": free.sent, "inside the scripts_": free.inside})
    found: dict[str, dict[int, Counts]] = {"hand-off": {}, "join": {}}
    for size in sizes:
        with serving() as server, report.or_left_out(f"{size} waiters"):
            passing, joining, idle, share = checked(
                *apart(in_line, [(server.port, size, spells, seconds)], at_once=True)
            )
            for what, some in (("hand-off", passing), ("join", joining)):
                middle = Counts(p50([one.sent for one in some]), p50([one.inside for one in some]))
                found[what][size] = middle
                most = max(one.sent for one in some)
                figures = {"sent_": middle.sent, "inside the scripts_": middle.inside, "sent at most_": most}
                report.line(f"{what}, {size} waiters", figures)
            about = {"sent_per-s": idle.sent, "inside the scripts_per-s": idle.inside, "cpu_pct": share * 100.0}
            report.line(f"{size} only wait", about)
    for what, of in found.items():
        with report.or_left_out(f"the bars on a {what}"):
            few, many = (of[size] for size in sizes)
            for part in Counts._fields:
                name, ours, theirs = (
                    f"{what}: {part}, {sizes[1]} waiters as {FEW}",
                    getattr(many, part),
                    getattr(few, part),
                )
                report.against(name, ours, (f"{FEW} waiters", theirs), "", most=1.0)


def dibs_pair(port: int, stack: ExitStack) -> Timed:
    return pair_of(dibs_lock(port, stack, "free"))


def _counted(port: int, run: Timed) -> Counts:
    """Per pair."""
    run(3)  # connects, and loads the scripts
    with closing(Server(port)) as server:
        before = server.counts()
        run(PAIRS)
        return (server.counts() - before).per(PAIRS)


def in_line(
    start: Callable[[], None], port: int, size: int, spells: int, seconds: float
) -> tuple[list[Counts], list[Counts], Counts, float]:
    """Per hand-off and per join, of each spell; per second while all wait, and this process's CPU share of it."""
    start()
    with closing(Server(port)) as server:
        return asyncio.run(lines.spells(url(port), server.counts, size, spells, seconds))


def redis_keeper(report: Report, settings: Settings) -> None:
    rounds = settings.choose(2, 1)
    with serving() as server:
        [result] = apart(hold_all, [(server.port, rounds)], at_once=True)
    grown, share, server_share, counts, lost, took = checked(result)
    if counts.inside < LOCKS:
        raise Failed(
            f"a round of renewals was {counts.inside:.0f} commands for {LOCKS} locks: the sleep saw no whole one"
        )
    about = {"cpu_pct": share * 100.0, "server cpu_pct": server_share * 100.0, "grown_MB": grown}
    report.line(f"{LOCKS} holds", {**about, "taken in_s": took, "lost_n": lost})
    report.line("a round of renewals", {"sent_n": counts.sent, "inside the scripts_n": counts.inside})
    report.limit("CPU while idle under 5 % of a core", share * 100.0, "pct", under=5.0)
    report.limit("no hold is lost", lost, "n", most=0)


def hold_all(start: Callable[[], None], port: int, rounds: int) -> tuple[float, float, float, Counts, int, float]:
    """MB grown; shares of a core, of this process and of the server; commands per round; holds lost; seconds to take.
    A lease is renewed at a third: the sleep begins half-way between two rounds and lasts whole ones."""
    import dibs

    with ExitStack() as stack:
        server = stack.enter_context(closing(Server(port)))
        client = stack.enter_context(dibs.connect(url(port), lease=LEASE))
        with client.lock("first"):
            start()
        before, began = resident(), time.perf_counter()
        holds = [client.lock(f"lock:{number:05d}").acquire() for number in range(LOCKS)]
        took, grown = time.perf_counter() - began, resident() - before
        time.sleep(LEASE / 6)
        counts, began, used, theirs = server.counts(), time.perf_counter(), time.process_time(), server.cpu()
        time.sleep(rounds * LEASE / 3)
        length = time.perf_counter() - began
        shares = (time.process_time() - used) / length, (server.cpu() - theirs) / length
        asked = (server.counts() - counts).per(rounds)
        lost = sum(hold is None or hold.lost.is_set() for hold in holds)
        return grown, *shares, asked, lost, took


ROWS = {"redis_commands": redis_commands, "redis_keeper": redis_keeper}

if __name__ == "__main__":
    main(__doc__, ROWS)
