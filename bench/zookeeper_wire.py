#!/usr/bin/env python3
"""Requests of dibs to ZooKeeper, counted by a proxy between them. Counts are exact; they are not timings.

  bench/zookeeper_wire.py

zookeeper_wire  Requests and waits of a free pair. The proxy delays every reply, so that requests which do not wait for
                one are seen; a wait begins with each request that follows a reply. Bars: 3 requests in 2 waits.
                A hand-off between two clients: requests from the event that frees the waiter until it has the lock.
                The count ends with its own release (it removes its watch and deletes its node). Bar: none.
                500 waiters for one name, tasks of five clients: events sent to any of them while all of them take
                their turn, beside the releases. Bar: one event per release.

Heartbeats (sync, ping) are counted apart. The floor and kazoo, whose counts are known, show that the counting is
right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from itertools import dropwhile, pairwise, takewhile
from typing import Any, NamedTuple

from crew import Failed
from free import aio_pair
from measure import Report, Settings, Timed, dibs_lock, main, pair_of, timed
from redis_peers import address
from servers import serving
from zookeeper_peers import FLOOR, KAZOO, Floor, kazoo_lock

from lab import splitters
from lab.faults import Cut, Direction, Latency
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.supervisor import until

PATIENCE = 60.0
LATE = 0.01
"""How much later an answer comes, where waits are counted: far longer than two requests in a row take to be sent."""
CLIENTS = 5
DELETE, EXISTS, GET_DATA, SYNC, PING, MULTI, REMOVE_WATCHES, ADD_WATCH = 2, 3, 4, 9, 11, 14, 18, 106
_BEATS = {SYNC, PING}
_WATCHES = {EXISTS, GET_DATA, ADD_WATCH}
_RELEASES = {DELETE, MULTI, REMOVE_WATCHES}
_EVENT = -1
"""Stands in the place of a request's number."""
_PATH, _EVENT_PATH = 12, 28
"""Where it begins, in a request and in an event."""


class Message(NamedTuple):
    client: int
    way: Direction
    number: int
    """Of the request: its answer bears the same."""
    kind: int
    """Of request; 0 in an answer."""
    path: bytes
    """What is deleted, or has an event; else empty."""

    @property
    def event(self) -> bool:
        return self.way is DOWN and self.number == _EVENT


class Log:
    """What went by, in the order in which it was handed on. Each client has a proxy of its own."""

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self._all: list[Message] = []
        for client, proxy in enumerate(proxies):
            for way in Direction:
                proxy.add(Cut(_Tap(client, way, self._all)), way)

    def mark(self) -> int:
        return len(self._all)

    def since(self, mark: int = 0) -> list[Message]:
        """All but heartbeats and their answers."""
        seen = self._all[mark:]
        beats = {(message.client, message.number) for message in _requests(seen) if message.kind in _BEATS}
        return [message for message in seen if (message.client, message.number) not in beats]

    def beats(self, mark: int = 0) -> int:
        return sum(message.kind in _BEATS for message in _requests(self._all[mark:]))

    def await_watches(self, mark: int, number: int) -> None:
        """Until so many watches were set, and every request has its answer."""

        def quiet() -> bool:
            seen = [message for message in self.since(mark) if not message.event]
            asked = _requests(seen)
            return len(seen) == 2 * len(asked) and sum(message.kind in _WATCHES for message in asked) >= number

        until(quiet, PATIENCE, f"{number} watches set")


class _Tap:
    """A spot at which nothing ever strikes: it sees every message."""

    def __init__(self, client: int, way: Direction, log: list[Message]) -> None:
        self._client, self._way, self._log = client, way, log

    def meet(self, message: bytes) -> None:
        number, kind = _integer(message, 4), _integer(message, 8) if self._way is UP else 0
        path_at = _EVENT_PATH if number == _EVENT else _PATH if kind == DELETE else len(message)
        path = message[path_at + 4 :][: _integer(message, path_at)]
        self._log.append(Message(self._client, self._way, number, kind, path))


def _integer(message: bytes, at: int) -> int:
    return int.from_bytes(message[at : at + 4], "big", signed=True)


def url(port: int) -> str:
    return f"zookeeper://{ports.HOST}:{port}"


def zookeeper_wire(report: Report, settings: Settings) -> None:
    with serving("zookeeper", settings.directory, quick=True) as store:
        port = address(store.url)[1]
        free_pairs(report, port, settings.choose(20, 5))
        for ahead in (1, 3):
            with report.or_left_out(f"hand-off, {ahead + 1} in line"):
                hand_offs(report, port, ahead, settings.choose(20, 5))
        with report.or_left_out("many waiters"):
            asyncio.run(many_waiters(report, port, settings.choose(500, 50)))


def free_pairs(report: Report, port: int, pairs: int) -> None:
    cases: dict[str, Callable[[str, ExitStack], Timed]] = {
        FLOOR: lambda at, stack: timed(stack.enter_context(closing(Floor(at))).pair),
        KAZOO: lambda at, stack: pair_of(kazoo_lock(at, stack)),
        "dibs": lambda at, stack: pair_of(dibs_lock(at, stack, "free")),
        "dibs.aio": aio_pair,
    }
    for name, make in cases.items():
        with report.or_left_out(name), tapped(port) as ([proxy], log), ExitStack() as stack:
            run = make(url(proxy.port), stack)
            run(2)  # connects, and makes the directory
            late, mark = proxy.add(Latency(LATE), DOWN), log.mark()
            run(pairs)
            proxy.remove(late)
            seen = log.since(mark)
            requests, waits = len(_requests(seen)) / pairs, _waits(seen) / pairs
            report.line(f"free pair, {name}", {"requests_n": requests, "waits_n": waits, "beats_n": log.beats(mark)})
            if name.startswith("dibs"):
                report.limit(f"free pair, {name}: 3 requests", requests, "n", most=3)
                report.limit(f"free pair, {name}: 2 waits", waits, "n", most=2)


def hand_offs(report: Report, port: int, ahead: int, turns: int) -> None:
    """The client that is tapped comes last in a line of `ahead` others."""
    import dibs

    with tapped(port) as ([proxy], log), ExitStack() as stack:
        clients = [stack.enter_context(dibs.connect(url(at))) for at in [port] * ahead + [proxy.port]]
        pool = stack.enter_context(ThreadPoolExecutor(ahead))
        counts = [hand_off(clients, log, pool) for _ in range(turns)]
    name = f"hand-off, {ahead + 1} in line"
    report.line(name, {"requests after the event_n": max(counts), "turns_n": turns, "beats_n": log.beats()})
    if ahead == 1:
        report.limit("hand-off: no request between the event and the grant", max(counts), "n", most=0)


def hand_off(clients: Sequence[Any], log: Log, pool: ThreadPoolExecutor) -> int:
    """What the last client sent from the event on, until it gave back what it had got."""
    first, *others = (client.lock("hand-off", timeout=PATIENCE) for client in clients)
    first.acquire()
    waiting = []
    for number, lock in enumerate(others, 1):
        mark = log.mark()
        waiting.append(pool.submit(pair_of(lock), 1))
        until(lambda: len(clients[0].inspect("hand-off").waiters) == number, PATIENCE, f"{number} wait")  # noqa: B023
    log.await_watches(mark, 1)
    mark = log.mark()
    first.release()
    for pair in waiting:
        pair.result(PATIENCE)
    return _between_event_and_release(log.since(mark))


def _between_event_and_release(seen: Sequence[Message]) -> int:
    if not any(message.event for message in seen):
        raise Failed("the waiter got the lock without an event")
    after = dropwhile(lambda message: not message.event, seen)
    return sum(message.way is UP for message in takewhile(lambda message: message.kind not in _RELEASES, after))


async def many_waiters(report: Report, port: int, waiters: int) -> None:
    import dibs.aio

    with tapped(port, CLIENTS) as (proxies, log):
        async with AsyncExitStack() as stack:
            places = [port, *(proxy.port for proxy in proxies)]
            holder, *clients = [await stack.enter_async_context(dibs.aio.connect(url(at))) for at in places]
            held = await holder.lock("many").acquire()

            async def take_turn(number: int) -> None:
                async with clients[number % CLIENTS].lock("many", timeout=PATIENCE):
                    pass

            turns = asyncio.gather(*map(take_turn, range(waiters)))
            await asyncio.to_thread(log.await_watches, 0, waiters)
            mark = log.mark()
            await held.release()
            await turns
    seen = log.since(mark)
    events, requests = sum(message.event for message in seen), len(_requests(seen))
    name, releases = f"{waiters} waiters", waiters + 1
    counts = {"events_n": events, "releases_n": releases}
    report.line(name, {**counts, "requests per hand-off_": requests / waiters, "beats_n": log.beats(mark)})
    report.limit(f"{name}: one event per release", events / releases, "", most=1)


@contextmanager
def tapped(port: int, clients: int = 1) -> Iterator[tuple[list[Proxy], Log]]:
    with ExitStack() as stack:
        made = (Proxy((ports.HOST, port), splitter=splitters.zookeeper) for _ in range(clients))
        proxies = [stack.enter_context(proxy) for proxy in made]
        yield proxies, Log(proxies)


def _requests(seen: Iterable[Message]) -> list[Message]:
    return [message for message in seen if message.way is UP]


def _waits(seen: Sequence[Message]) -> int:
    """How often a request came first, or behind an answer."""
    ways = [DOWN, *(message.way for message in seen)]
    return sum(before is DOWN and now is UP for before, now in pairwise(ways))


ROWS = {"zookeeper_wire": zookeeper_wire}

if __name__ == "__main__":
    main(__doc__, ROWS)
