"""A healthy server that is far away: connecting takes several round trips, and longer than some callers have.

The `Queue` of a store is asked by hand, in threads and in an event loop; the proxy adds the distance.
"""

from __future__ import annotations

import asyncio
import gc
import select
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dibs
import dibs.aio
from dibs.backends import make_store
from dibs.backends.common import connections
from dibs.backends.mysql import connection as mysql_connection
from dibs.backends.redis import connection as redis_connection
from dibs.core.queue import QUEUE, ClientIdentity, Queue
from dibs.core.rule import Claim, Standing
from dibs.runtime.aio import AioRuntime
from dibs.runtime.threads import ThreadRuntime, step
from dibs.url import parse
from lab import leaks
from lab.faults import BlackHole, Latency, Refuse
from lab.proxy import DOWN, Proxy
from lab.servers.supervisor import Server
from process.children import until
from store.faults.kit import TIMEOUT
from store.faults.stores import SERVERS, SESSION, Store, on

FAR = ("redis", "postgresql", "mysql")
QUEUED = ("postgresql", "mysql")
"""Stores whose requests wait for a free connection in the async API."""
FEW = 3
"""Connections: on a busy machine one that was made may be given up because its first answer is late."""
HOP = 0.15
"""Seconds that a message is on its way: half of a round trip."""
T = TypeVar("T")
Play = Callable[["Desk"], Awaitable[None]]
each_api = pytest.mark.parametrize("runtime", [ThreadRuntime, AioRuntime], ids=["blocking", "aio"])


class Desk:
    """One client of a store, whose lines are asked by hand."""

    def __init__(self, url: str, runtime: Any) -> None:
        self.runtime = runtime
        self.now = runtime.now
        self.store = make_store(parse(url), {})
        self.me = ClientIdentity(runtime.fresh_id(), runtime.inbox(), 60.0, lambda _: None)

    @property
    def soon(self) -> float:
        return float(self.now() + TIMEOUT)

    def queue(self) -> Any:
        return self.store.open(self.runtime, self.me)

    def claim(self, name: str) -> Claim:
        now = self.now()
        return Claim(self.runtime.fresh_id(), f"dibs:{name}", "mutex", 1, 1, 60.0, 5.0, now + 60, self.me.id, "{}")

    def close(self) -> None:
        self.store.close()
        self.runtime.close()


def play(url: str, runtime: Any, scene: Play) -> None:
    """The queues of the sync API never suspend."""

    async def whole() -> None:
        if runtime.bind is not None:
            runtime.bind()
        with closing(Desk(url, runtime)) as desk:
            await scene(desk)

    if runtime.call_soon is None:
        step(whole())
    else:
        asyncio.run(whole())


def one_connection(store: Store, server: Server, proxy: Proxy) -> str:
    """Redis has no such option: its tasks share one in any case."""
    url = store.through(server, proxy)
    return url if store.name == "redis" else f"{url}{'&' if '?' in url else '?'}connections=1"


@pytest.fixture
def ready(store: Store, server: Server, name: str) -> None:
    """The server has its tables, and knows our scripts."""
    with dibs.connect(store.url(server)) as client, client.lock(name):
        client.inspect(name)


@on(FAR)
@each_api
def test_a_caller_without_time_leaves_the_connection_to_the_next(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None, runtime: Any
) -> None:
    """None of them has the time to connect, and together they need one connection."""
    proxy.add(Latency(HOP))

    async def scene(desk: Desk) -> None:
        line = desk.queue()
        await on_few_connections(proxy, lambda: line.inspect(f"dibs:{name}", desk.now() + HOP))

    play(store.through(server, proxy), runtime(), scene)


@on(SESSION)
@each_api
def test_a_caller_without_time_leaves_its_session_to_the_next(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None, runtime: Any
) -> None:
    proxy.add(Latency(HOP))

    async def scene(desk: Desk) -> None:
        line = desk.queue()
        claim, standing = await on_few_connections(proxy, lambda: joined(line, desk.claim(name), desk.now() + HOP))
        assert standing.holds
        assert await line.leave(claim, True, desk.soon)

    play(store.through(server, proxy), runtime(), scene)


async def joined(queue: Queue, claim: Claim, until: float) -> tuple[Claim, Standing]:
    standing = await queue.join(claim, QUEUE, until)
    assert standing is not None
    return claim, standing


async def on_few_connections(proxy: Proxy, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until it succeeds; no attempt has the time to connect."""
    while len(proxy.links) <= FEW:
        with suppress(dibs.StoreUnavailable):
            return await attempt()
    pytest.fail("each attempt began to connect anew")


@on(FAR)
@each_api
def test_a_connection_that_arrives_after_close_is_closed(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None, runtime: Any
) -> None:
    proxy.add(Latency(HOP))

    async def scene(desk: Desk) -> None:
        line = desk.queue()
        while not proxy.links:  # on a busy machine a caller may be gone before anybody begins to connect for it
            with pytest.raises(dibs.StoreUnavailable):
                await line.inspect(f"dibs:{name}", desk.now())

    play(store.through(server, proxy), runtime(), scene)
    until(lambda: [link.up.ended or not link.open for link in proxy.links] == [True], what="it came, and is closed")


@on(FAR)
@each_api
def test_close_ends_a_dial_that_is_under_way(
    store: Store,
    server: Server,
    proxy: Proxy,
    name: str,
    ready: None,
    runtime: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server says nothing, and the thread that waits for it would stay."""
    for module in (connections, redis_connection, mysql_connection):
        monkeypatch.setattr(module, "STEP", 600.0)
    monkeypatch.setattr(connections, "CONNECTING", 600.0)
    proxy.add(BlackHole(), DOWN)

    async def scene(desk: Desk) -> None:
        with pytest.raises(dibs.StoreUnavailable):
            await desk.queue().inspect(f"dibs:{name}", desk.now() + 0.5)

    with leaks.watch(within=TIMEOUT):
        play(store.through(server, proxy), runtime(), scene)


@on(FAR)
@each_api
def test_the_round_trip_is_measured_for_all_lines(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None, runtime: Any
) -> None:
    proxy.add(Latency(HOP))

    async def scene(desk: Desk) -> None:
        line, other = desk.queue(), desk.queue()
        assert other.round_trip() == 0.0
        await line.connect(desk.soon)
        assert line.round_trip() >= 2 * HOP
        assert other.round_trip() == line.round_trip()

    play(store.through(server, proxy), runtime(), scene)


@on(FAR)
@each_api
def test_a_line_that_is_connected_asks_when_nobody_can_connect(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None, runtime: Any
) -> None:
    async def scene(desk: Desk) -> None:
        line = desk.queue()
        await line.connect(desk.soon)
        await line.connect(desk.soon)
        assert len(proxy.links) == 1
        proxy.add(Refuse())
        info = await line.inspect(f"dibs:{name}", desk.soon)
        assert not info.holders

    play(store.through(server, proxy), runtime(), scene)


@on(FAR)
@pytest.mark.parametrize("base", [ThreadRuntime, AioRuntime], ids=["blocking", "aio"])
def test_a_request_that_was_never_sent_is_no_repetition(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None, base: Any
) -> None:
    """The claim was broken: its holder must hear of it, also if the first try to release it found no connection."""

    class Healing(base):
        async def sleep(self, seconds: float) -> None:
            """Between two tries."""
            proxy.heal()
            await super().sleep(seconds)

    async def scene(desk: Desk) -> None:
        claim = desk.claim(name)
        with closing(Desk(store.url(server), ThreadRuntime())) as near:
            line = near.queue()
            standing = step(line.join(claim, QUEUE, near.soon))
            assert standing is not None
            assert step(line.evict(claim.name, standing.ticket, near.soon))
        proxy.add(Refuse())
        assert not await desk.queue().leave(claim, True, desk.soon)

    play(store.through(server, proxy), Healing(), scene)


@on(QUEUED)
def test_a_timeout_and_a_hand_over_in_one_round_of_the_loop(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None
) -> None:
    """The only connection becomes free in the moment in which the one who waits for it gives up."""

    async def scene(desk: Desk) -> None:
        line, key = desk.queue(), f"dibs:{name}"
        await line.inspect(key, desk.soon)
        held = proxy.hold(DOWN)
        first = asyncio.create_task(line.inspect(key, desk.soon))
        await asyncio.to_thread(held.await_held)
        patience = 0.3
        second = asyncio.create_task(line.inspect(key, desk.now() + patience))
        await asyncio.sleep(0)
        held.deliver()
        time.sleep(2 * patience)  # which blocks the loop: both are due when it goes on
        await first
        await asyncio.gather(second, return_exceptions=True)
        await line.inspect(key, desk.soon)
        assert len(proxy.links) == 1

    play(one_connection(store, server, proxy), AioRuntime(), scene)


@on(FAR)
def test_a_cancelled_task_leaves_its_connection_to_others(
    store: Store, server: Server, proxy: Proxy, name: str, ready: None
) -> None:
    async def scene(desk: Desk) -> None:
        line, key = desk.queue(), f"dibs:{name}"
        await line.inspect(key, desk.soon)
        held = proxy.hold(DOWN)
        asked = asyncio.create_task(line.inspect(key, desk.soon))
        await asyncio.to_thread(held.await_held)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        held.deliver()
        await line.inspect(key, desk.soon)
        assert len(proxy.links) == 1

    play(one_connection(store, server, proxy), AioRuntime(), scene)


@on((*FAR, *SESSION))
@pytest.mark.parametrize("api", ["blocking", "aio"])
def test_close_leaves_no_socket_to_the_garbage_collector(
    store: Store, server: Server, name: str, ready: None, api: str
) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def once() -> None:
        with dibs.connect(store.url(server)) as client, client.lock(name):
            pass

    async def once_in_a_loop() -> None:
        async with dibs.aio.connect(store.url(server)) as client, client.lock(name):
            pass

    def several(times: int) -> None:
        for _ in range(times):
            if api == "aio":
                asyncio.run(once_in_a_loop())
            else:
                once()

    several(1)
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        several(3)
        until(lambda: descriptors() <= before, what="all are closed")
    finally:
        gc.enable()


@on(SERVERS)
@each_api
def test_nothing_needs_poll(
    store: Store, server: Server, name: str, ready: None, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows has none."""
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(connections, "TRUSTED", 0.0)  # each is checked before it is used

    async def scene(desk: Desk) -> None:
        queue, claim = desk.queue(), desk.claim(name)
        standing = await queue.join(claim, QUEUE, desk.soon)
        assert standing is not None
        assert standing.holds
        assert await queue.leave(claim, True, desk.soon)

    play(store.url(server), runtime(), scene)
