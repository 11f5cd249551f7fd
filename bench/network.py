#!/usr/bin/env python3
"""Distance and overload: slow networks, crowds that give up, thousands of waiters and holds in one client.

  bench/network.py

far             Redis behind a proxy that adds a round trip of 200 ms: the shortest lease that is kept for 60 s, and
                whether the first `acquire(timeout=0)` of a client gets a free lock. Bars: 3 s, and it does.
give_up         Redis: 600 tasks that give up after 0.1 s on one name, for 60 s, by a timeout or by cancelling, while
                two tasks pass that name on. Bars: another hold keeps half of its lease; 300 acquisitions/s; the name is
                free 1 s after the last task gave up.
waiters_3000    ZooKeeper, 512 MB: hand-overs/s of 3,000 waiters in one asyncio client, beside 100. Bar: 0.5 x.
holds_20000     A free pair in a client that holds 20,000 locks, beside one that holds none. Bar: 1.2 x.
closing         `close()` of 200 holds at a round trip of 50 ms on each network store, and of 60,000 on sqlite. Bars:
                2 s, 5 s, and nothing is left.
processes_200   sqlite: 200 processes on one name, beside 20. Bars: all served, no error, no gap of 1 s, 0.5 x the rate.
quorum_stopped  A free pair on three Redis servers, one of them stopped, beside all three. Bar: p50 1.3 x.
"""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from crew import apart, checked
from measure import Report, Settings, main, microseconds, p50, pair_of
from servers import SERVERS

import dibs
import dibs.aio
from lab.faults import Latency
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.redis import Redis
from lab.servers.redis_groups import independent
from lab.servers.supervisor import Server

TESTS = Path(__file__).resolve().parents[1] / "tests"
LEASES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
LEASE = 30.0


@contextmanager
def behind(url: str, round_trip: float) -> Iterator[str]:
    """The same server, through a proxy that adds this round trip."""
    there = urlsplit(url)
    proxy = Proxy((ports.HOST, there.port or 0))
    try:
        proxy.add(Latency(round_trip / 2))
        yield url.replace(f":{there.port}", f":{proxy.port}", 1)
    finally:
        proxy.close()


def far(report: Report, settings: Settings) -> None:
    with Server(Redis()) as server, behind(server.url(), 0.2) as url:
        with dibs.connect(url) as cold:
            took = seconds_of(lambda: got(cold.lock("cold").acquire(timeout=0)))
        report.line("first acquire(timeout=0)", {"took_ms": took * 1e3})
        with dibs.connect(url) as client:
            holds = {lease: got(client.lock(f"lease {lease:g}", lease=lease).acquire()) for lease in LEASES}
            time.sleep(settings.choose(60.0, 5.0))
            kept = [lease for lease, hold in holds.items() if not hold.lost.is_set()]
    report.line("leases of " + ", ".join(f"{lease:g} s" for lease in LEASES), {"kept_n": len(kept)})
    report.limit("shortest lease that is kept at 200 ms", min(kept, default=math.inf), "s", most=3.0)


def got(hold: dibs.Hold | None) -> dibs.Hold:
    assert hold is not None, "the lock is free"
    return hold


def seconds_of(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def give_up(report: Report, settings: Settings) -> None:
    for how in ("timeout", "cancel"):
        with Server(Redis()) as server:
            least, rate, free = asyncio.run(_give_up(server.url(), how, settings.choose(60.0, 3.0)))
        report.line(f"600 tasks, by {how}", {"rate_per-s": rate, "left of 30 s_s": least, "free after_s": free})
        report.against(f"by {how}: acquisitions/s", rate, ("bar", 300.0), "per-s", least=1.0)
        report.against(f"by {how}: the least left of a lease", least, ("half of it", LEASE / 2), "s", least=1.0)
        report.limit(f"by {how}: the name is free", free, "s", most=1.0)


async def _give_up(url: str, how: str, seconds: float) -> tuple[float, float, float]:
    """The least that was left of a hold's lease, acquisitions/s, and how soon the name was free."""
    least, taken, end = LEASE, 0, time.monotonic() + seconds
    async with dibs.aio.connect(url, lease=LEASE) as client, dibs.aio.connect(url, lease=LEASE) as other:
        kept = await client.lock("kept").acquire()

        async def impatient() -> None:
            nonlocal taken
            while time.monotonic() < end:
                with suppress(TimeoutError, dibs.AcquireTimeout):
                    if how == "cancel":
                        async with asyncio.timeout(0.1), client.lock("busy"):
                            taken += 1
                    else:
                        async with client.lock("busy", timeout=0.1):
                            taken += 1

        async def watch() -> None:
            nonlocal least
            while time.monotonic() < end:
                least = min(least, kept.remaining)
                await asyncio.sleep(0.05)

        await asyncio.gather(watch(), *(impatient() for _ in range(600)))
        kept.check()
        began = time.perf_counter()
        async with other.lock("busy"):
            free = time.perf_counter() - began
    return least, taken / seconds, free


def waiters_3000(report: Report, settings: Settings) -> None:
    with Server(SERVERS["zookeeper"]()) as server:
        rates = {}
        for count in (100, settings.choose(3000, 300)):
            rates[count] = asyncio.run(_hand_overs(server.url(), count))
            report.line(f"{count} waiters, all served", {"hand-overs_per-s": rates[count]})
    (few, less), (many, more) = rates.items()
    report.against(f"hand-overs/s of {many} waiters at least 0.5 x", more, (f"{few} waiters", less), "per-s", least=0.5)


async def _hand_overs(url: str, count: int) -> float:
    """Every waiter takes the lock often enough that about 6,000 hand-overs are counted."""
    turns = max(1, 6000 // count)
    async with dibs.aio.connect(url) as client:
        hold = await client.lock("crowd").acquire()

        async def one() -> None:
            for _ in range(turns):
                async with client.lock("crowd") as mine:
                    mine.check()

        tasks = [asyncio.create_task(one()) for _ in range(count)]
        while len((await client.inspect("crowd")).waiters) < count:  # noqa: ASYNC110  (the server's queue, not ours)
            await asyncio.sleep(0.2)
        began = time.perf_counter()
        await hold.release()
        await asyncio.gather(*tasks)
        return count * turns / (time.perf_counter() - began)


def holds_20000(report: Report, settings: Settings) -> None:
    count = settings.choose(20_000, 500)
    with ExitStack() as stack:
        stores = {"memory": "memory://holds", "sqlite": settings.sqlite("holds")}
        stores |= {name: stack.enter_context(Server(make())).url() for name, make in SERVERS.items()}
        results = apart(_with_holds, [(url, count) for url in stores.values()], at_once=False)
    for name, result in zip(stores, results, strict=True):
        with report.or_left_out(name):
            before, after, lost = checked(result)
            report.line(f"{name}, none held", microseconds(before))
            report.line(f"{name}, {count} held", {**microseconds(after), "lost_n": lost})
            pair, peer = p50(after) * 1e6, ("none held", p50(before) * 1e6)
            report.against(f"{name}: a free pair with {count} holds at most 1.2 x", pair, peer, "us", most=1.2)


def _with_holds(start: Callable[[], None], url: str, count: int) -> tuple[list[float], list[float], int]:
    """Seconds of free pairs without and with these holds, and how many holds were lost."""
    with dibs.connect(url, lease=LEASE) as client, dibs.connect(url, lease=LEASE) as idle:
        pairs = {one: pair_of(one.lock("free")) for one in (client, idle)}
        start()
        for pair in pairs.values():
            pair(500)
        holds = [got(client.lock(f"hold:{number:05d}").acquire()) for number in range(count)]
        with_none, with_all = [], []
        for _ in range(20):  # in turns: both see the same machine
            with_none += pairs[idle](100)
            with_all += pairs[client](100)
        return with_none, with_all, sum(hold.lost.is_set() for hold in holds)


def closing(report: Report, settings: Settings) -> None:
    for name, make in SERVERS.items():
        with report.or_left_out(name), Server(make()) as server:
            with dibs.connect(server.url()) as client:
                client.inspect("x")  # makes the tables
            with behind(server.url(), 0.05) as url:
                _close(report, f"{name} at 50 ms", url, server.url(), 200, 2.0)
    url = settings.sqlite("closing")
    _close(report, "sqlite", url, url, settings.choose(60_000, 1000), 5.0)


def _close(report: Report, name: str, url: str, near: str, count: int, most: float) -> None:
    client = dibs.connect(url, lease=120.0)
    for number in range(count):
        got(client.lock(f"close:{number:05d}").acquire())
    took = seconds_of(client.close)
    with dibs.connect(near) as other:
        left = sum(bool(info.holders) for info in other.locks(prefix="close:"))
    report.line(f"{name}, {count} holds", {"close_s": took, "left_n": left})
    report.limit(f"{name}: close() of {count} holds", took if not left else math.inf, "s", most=most)


def processes_200(report: Report, settings: Settings) -> None:
    rates = {}
    for count in (20, settings.choose(200, 40)):
        path, seconds = settings.directory / f"{count}" / "locks.db", settings.choose("15", "3")
        path.parent.mkdir()
        command = [sys.executable, str(TESTS / "store" / "sqlite" / "crowds.py"), str(path), str(count), seconds]
        found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)
        rates[f"{count} processes"] = found["rate"]
        figures = {"rate_per-s": found["rate"], "longest gap_s": found["gap"], "served_n": found["served"]}
        report.line(f"{count} processes", {**figures, "errors_n": len(found["errors"])})
        report.limit(f"{count} processes: the longest gap without a holder", found["gap"], "s", most=1.0)
    (few, less), (many, more) = rates.items()
    report.against(f"acquisitions/s of {many} at least 0.5 x", more, (few, less), "per-s", least=0.5)


def quorum_stopped(report: Report, settings: Settings) -> None:
    with independent(3) as servers:
        url = f"quorum+redis://{','.join(f'{ports.HOST}:{server.port}' for server in servers)}?guard=0"
        figures = {}
        with dibs.connect(url) as client:
            pair = pair_of(client.lock("free"))
            pair(100)
            for name in ("three answer", "one is stopped"):
                some = pair(settings.choose(5000, 300))
                figures[name] = p50(some) * 1e6
                report.line(name, microseconds(some))
                servers[2].stop()
            servers[2].resume()
    report.beside("p50 of a free pair", figures, "one is stopped", "three answer", "us", most=1.3)


ROWS = {
    "far": far,
    "give_up": give_up,
    "waiters_3000": waiters_3000,
    "holds_20000": holds_20000,
    "closing": closing,
    "processes_200": processes_200,
    "quorum_stopped": quorum_stopped,
}

if __name__ == "__main__":
    main(__doc__, ROWS)
