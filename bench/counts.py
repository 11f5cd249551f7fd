#!/usr/bin/env python3
"""What servers are asked to do, by their own counts. Counts are exact; they are not timings.

  bench/counts.py [--only redis_commands | --only postgresql_statements | --only mysql_statements]

A free pair, beside the floor's: two scripts that call four commands, or two statements, show that the counting is
right. Then 10 and 1,000 tasks (200 on SQL servers) wait for one lock. They share five clients, and no client has two in
a row, so each hand-off goes from one client to another. Counts per hand-off, from calling `release` until the next task
has the lock, and per claim that joins the end. Bar: many waiters cost what 10 cost. On Redis, `sent` is what clients
send and `inside` what their scripts call within the server; on SQL servers only statements of clients are counted.

Claims are renewed meanwhile, which is not part of a hand-off: of many short spells the median counts, and the cost of
waiting is shown as commands per second while all only wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from crew import Failed, apart, checked
from measure import Report, Settings, Timed, dibs_lock, main, p50, pair_of
from peers import PEERS
from redis_peers import Bare
from servers import serving
from sql_peers import dialect

PAIRS = 20
FEW = 10
CLIENTS = 5
SPELL = 5
"""Hand-offs between two looks at the counts."""
PATIENCE = 30.0
_QUIET = 0.02
_SENT = {
    "evalsha", "eval", "fcall", "wait", "subscribe", "unsubscribe", "ping", "hello", "auth", "select", "script|load",
}  # fmt: skip
"""Commands that a client of dibs sends. All others are called by its scripts."""


class Counts(NamedTuple):
    """Commands that a server carried out."""

    sent: float
    inside: float

    def __sub__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(self.sent - other.sent, self.inside - other.inside)

    def per(self, number: float) -> Counts:
        return Counts(self.sent / number, self.inside / number)


Counter = Callable[[], Counts]


class Commands:
    """The counts of a Redis server (INFO commandstats), on a socket of its own."""

    def __init__(self, url: str) -> None:
        self._bare = Bare(url)

    def counts(self) -> Counts:
        sent = inside = 0
        for line in self._bare.ask("INFO", "commandstats").decode().splitlines():
            if line.startswith("cmdstat_"):
                name, _, about = line.removeprefix("cmdstat_").partition(":calls=")
                calls = int(about.split(",")[0])
                if name in _SENT or name.startswith("client|"):
                    sent += calls
                elif name != "info":
                    inside += calls
        return Counts(sent, inside)

    def close(self) -> None:
        self._bare.close()


def counter(url: str, stack: ExitStack) -> Counter:
    if url.startswith("redis:"):
        commands = Commands(url)
        stack.callback(commands.close)
        return commands.counts
    counted = dialect(url).counter(url, stack)
    return lambda: Counts(counted(), 0)


def commands(kind: str, most: int, report: Report, settings: Settings) -> None:
    sizes, spells, seconds = settings.choose(((FEW, most), 40, 10.0), ((FEW, most // 10), 5, 3.0))
    with serving(kind, settings.directory, quick=settings.quick) as store, ExitStack() as stack:
        pairs: dict[str, Callable[[], Timed]] = {
            PEERS[kind].floor: lambda: PEERS[kind].floor_pair(store.url, stack),
            "dibs": lambda: pair_of(dibs_lock(store.url, stack, "free")),
        }
        for name, make in pairs.items():
            with report.or_left_out(f"free pair, {name}"):
                report.line(f"free pair, {name}", _figures(_per_pair(store.url, make(), stack)))
    found: dict[str, dict[int, Counts]] = {"hand-off": {}, "join": {}}
    for size in sizes:
        with serving(kind, settings.directory, quick=True) as store, report.or_left_out(f"{size} waiters"):
            passing, joining, idle, share = checked(
                *apart(in_queue, [(store.url, size, spells, seconds)], at_once=True)
            )
            for what, some in (("hand-off", passing), ("join", joining)):
                found[what][size] = Counts(p50([one.sent for one in some]), p50([one.inside for one in some]))
                most_sent = max(one.sent for one in some)
                report.line(f"{what}, {size} waiters", {**_figures(found[what][size]), "sent at most_": most_sent})
            report.line(f"{size} only wait", {**_figures(idle, "per-s"), "cpu_pct": share * 100.0})
    for what, of in found.items():
        with report.or_left_out(f"the bars on a {what}"):
            for part, few, many in zip(Counts._fields, *(of[size] for size in sizes), strict=True):
                if few:
                    name = f"{what}: {part}, {sizes[1]} waiters as {FEW}"
                    report.against(name, many, (f"{FEW} waiters", few), "", most=1.0)


def _figures(counts: Counts, unit: str = "") -> dict[str, float]:
    return {f"sent_{unit}": counts.sent} | ({f"inside the scripts_{unit}": counts.inside} if counts.inside else {})


def _per_pair(url: str, run: Timed, stack: ExitStack) -> Counts:
    run(3)  # connects
    counted = counter(url, stack)
    before = counted()
    run(PAIRS)
    return (counted() - before).per(PAIRS)


def in_queue(
    start: Callable[[], None], url: str, size: int, spells: int, seconds: float
) -> tuple[list[Counts], list[Counts], Counts, float]:
    start()
    with ExitStack() as stack:
        return asyncio.run(_spells(url, counter(url, stack), size, spells, seconds))


async def _spells(
    url: str, counted: Counter, size: int, spells: int, seconds: float
) -> tuple[list[Counts], list[Counts], Counts, float]:  # fmt: skip
    """Per hand-off and per join, of each spell; per second while all wait, and this process's CPU share of it."""
    async with _queue_of(url, counted) as queue:
        await queue.grow(size + 1)  # one of them holds
        passing, joining = [], []
        for _ in range(spells):
            before = counted()
            for _ in range(SPELL):
                await queue.pass_on()
            between = counted()
            await queue.grow(SPELL)
            after = counted()
            passing.append((between - before).per(SPELL))
            joining.append((after - between).per(SPELL))
        before, began, used = counted(), time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        return passing, joining, (counted() - before).per(took), (time.process_time() - used) / took


class Queue:
    """Tasks of several clients that want one lock, in an order that is known."""

    def __init__(self, clients: list[Any], counted: Counter) -> None:
        self._locks = [client.lock("queue") for client in clients]
        self._counted, self._joined = counted, 0
        self._asked: list[asyncio.Task[Any]] = []

    async def grow(self, number: int) -> None:
        """This number of tasks joins, one after the other; afterwards nothing more is sent for any of them."""
        for _ in range(number):
            before = self._counted().sent
            lock = self._locks[self._joined % len(self._locks)]
            self._joined += 1
            self._asked.append(asyncio.create_task(self._hold(lock)))
            await self._until(lambda: self._counted().sent > before)  # noqa: B023  (awaited at once)
            await self._quiet()  # that may have been something else than its join

    async def pass_on(self) -> None:
        """The first releases, and the next one acquires."""
        first = await asyncio.wait_for(self._asked.pop(0), PATIENCE)
        await first.release()
        await asyncio.wait_for(asyncio.shield(self._asked[0]), PATIENCE)

    async def disband(self) -> None:
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    async def _quiet(self) -> None:
        """Wait until nothing was sent for a while."""
        before, now = -1.0, self._counted().sent
        while now > before:
            await asyncio.sleep(_QUIET)
            before, now = now, self._counted().sent

    async def _hold(self, lock: Any) -> Any:
        return await lock.acquire()

    async def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed(f"nothing was sent for {PATIENCE:g} s")
            await asyncio.sleep(0)


@asynccontextmanager
async def _queue_of(url: str, counted: Counter) -> AsyncIterator[Queue]:
    import dibs.aio

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(dibs.aio.connect(url)) for _ in range(CLIENTS)]
        for client in clients:
            async with client.lock("first"):  # connects
                pass
        queue = Queue(clients, counted)
        stack.push_async_callback(queue.disband)
        yield queue


ROWS: dict[str, Callable[[Report, Settings], None]] = {
    "redis_commands": partial(commands, "redis", 1000),
    "postgresql_statements": partial(commands, "postgresql", 200),
    "mysql_statements": partial(commands, "mysql", 200),
}

if __name__ == "__main__":
    main(__doc__, ROWS)
