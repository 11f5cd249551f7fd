"""A healthy server that is far away: connecting takes several round trips, and longer than some callers have.

The `Queue` of a store is asked directly, in threads and in an event loop; the proxy adds the distance.
"""

from __future__ import annotations

import asyncio
import gc
import select
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends import make_store
from dibs.backends.common import connections
from dibs.backends.mysql import connection as mysql_connection
from dibs.backends.redis import connection as redis_connection
from dibs.core.queue import QUEUE, ClientIdentity
from dibs.core.rule import Claim
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
each_runtime = pytest.mark.parametrize("base", [ThreadRuntime, AioRuntime], ids=["blocking", "aio"])
pytestmark = [pytest.mark.gate, pytest.mark.usefixtures("ready")]


class Asker:
    """One client of a store, whose queues are asked directly."""

    def __init__(self, url: str, runtime: Any, name: str) -> None:
        self.runtime, self.key = runtime, f"dibs:{name}"
        self.now = runtime.now
        self.store = make_store(parse(url), {})
        self.me = ClientIdentity(runtime.fresh_id(), runtime.inbox(), 60.0, lambda _: None)

    @property
    def soon(self) -> float:
        return float(self.now() + TIMEOUT)

    def queue(self) -> Any:
        return self.store.open(self.runtime, self.me)

    def claim(self) -> Claim:
        now = self.now()
        return Claim(self.runtime.fresh_id(), self.key, "mutex", 1, 1, 60.0, 5.0, now + 60, self.me.id, "{}")

    def close(self) -> None:
        self.store.close()
        self.runtime.close()


class Far:
    """A store behind a proxy, for one test."""

    def __init__(self, store: Store, server: Server, proxy: Proxy, name: str) -> None:
        self.proxy, self.name = proxy, name
        self.near = store.url(server)
        self.url = store.through(server, proxy)
        # Redis has no such option: its tasks share one connection in any case.
        one = "" if store.name == "redis" else f"{'&' if '?' in self.url else '?'}connections=1"
        self.by_one_connection = self.url + one

    def play(self, base: Any, scene: Callable[[Asker], Awaitable[None]], url: str = "") -> None:
        """The queues of the sync API never suspend."""
        runtime = base()

        async def whole() -> None:
            if runtime.bind is not None:
                runtime.bind()
            with closing(Asker(url or self.url, runtime, self.name)) as asker:
                await scene(asker)

        if runtime.call_soon is None:
            step(whole())
        else:
            asyncio.run(whole())


@pytest.fixture
def ready(store: Store, server: Server, name: str) -> None:
    """The server has its tables, and knows our scripts."""
    with dibs.connect(store.url(server)) as client, client.lock(name):
        client.inspect(name)


@pytest.fixture
def far(ready: None, store: Store, server: Server, proxy: Proxy, name: str) -> Far:
    return Far(store, server, proxy, name)


@on((*FAR, *SESSION))
@each_runtime
def test_a_caller_without_time_leaves_the_connection_to_the_next(far: Far, store: Store, base: Any) -> None:
    """None of them has the time to connect, and together they need few connections."""
    far.proxy.add(Latency(HOP))

    async def scene(asker: Asker) -> None:
        queue, claim, is_answered = asker.queue(), asker.claim(), False
        while not is_answered:
            assert len(far.proxy.links) <= FEW, "each attempt began to connect anew"
            with suppress(dibs.StoreUnavailable):
                if store.lasts:
                    await queue.inspect(asker.key, asker.now() + HOP)
                else:
                    claim = asker.claim()
                    assert (await queue.join(claim, QUEUE, asker.now() + HOP)).holds
                is_answered = True
        assert store.lasts or await queue.leave(claim, True, asker.soon)

    far.play(base, scene)


@on(FAR)
@each_runtime
def test_a_connection_that_arrives_after_close_is_closed(far: Far, base: Any) -> None:
    far.proxy.add(Latency(HOP))

    async def scene(asker: Asker) -> None:
        queue = asker.queue()
        while not far.proxy.links:  # on a busy machine a caller may be gone before anybody begins to connect for it
            with pytest.raises(dibs.StoreUnavailable):
                await queue.inspect(asker.key, asker.now())

    far.play(base, scene)
    until(lambda: [link.up.ended or not link.open for link in far.proxy.links] == [True], what="it came, and is closed")


@on(FAR)
@each_runtime
def test_close_ends_a_dial_that_is_under_way(far: Far, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says nothing, and the thread that waits for it would stay."""
    for module in (connections, redis_connection, mysql_connection):
        monkeypatch.setattr(module, "STEP", 600.0)
    monkeypatch.setattr(connections, "CONNECTING", 600.0)
    far.proxy.add(BlackHole(), DOWN)

    async def scene(asker: Asker) -> None:
        with pytest.raises(dibs.StoreUnavailable):
            await asker.queue().inspect(asker.key, asker.now() + 0.5)

    with leaks.watch(within=TIMEOUT):
        far.play(base, scene)


@on(FAR)
@each_runtime
def test_queues_of_a_client_share_connection_and_round_trip(far: Far, base: Any) -> None:
    """A queue that is connected asks when nobody can connect any more."""
    far.proxy.add(Latency(HOP))

    async def scene(asker: Asker) -> None:
        queue, other = asker.queue(), asker.queue()
        assert other.round_trip() == 0.0
        await queue.connect(asker.soon)
        await queue.connect(asker.soon)
        assert len(far.proxy.links) == 1
        assert queue.round_trip() >= 2 * HOP
        assert other.round_trip() == queue.round_trip()
        far.proxy.add(Refuse())
        assert not (await queue.inspect(asker.key, asker.soon)).holders

    far.play(base, scene)


@on(FAR)
@each_runtime
def test_a_request_that_was_never_sent_is_no_repetition(far: Far, base: Any) -> None:
    """The claim was broken: its holder must hear of it, also if the first try to release it found no connection."""

    class Healing(base):
        async def sleep(self, seconds: float) -> None:
            """Between two tries."""
            far.proxy.heal()
            await super().sleep(seconds)

    async def scene(asker: Asker) -> None:
        claim = asker.claim()
        with closing(Asker(far.near, ThreadRuntime(), far.name)) as near:
            queue = near.queue()
            standing = step(queue.join(claim, QUEUE, near.soon))
            assert standing is not None
            assert step(queue.evict(claim.name, standing.ticket, near.soon))
        far.proxy.add(Refuse())
        assert not await asker.queue().leave(claim, True, asker.soon)

    far.play(Healing, scene)


@on(QUEUED)
def test_a_timeout_and_a_hand_over_in_one_round_of_the_loop(far: Far) -> None:
    """The only connection becomes free at the moment when its waiter gives up."""

    async def scene(asker: Asker) -> None:
        queue, patience = asker.queue(), 0.3
        await queue.inspect(asker.key, asker.soon)
        held = far.proxy.hold(DOWN)
        first = asyncio.create_task(queue.inspect(asker.key, asker.soon))
        await asyncio.to_thread(held.await_held)
        second = asyncio.create_task(queue.inspect(asker.key, asker.now() + patience))
        await asyncio.sleep(0)
        held.deliver()
        time.sleep(2 * patience)  # which blocks the loop: both are due when it goes on
        await first
        await asyncio.gather(second, return_exceptions=True)
        await queue.inspect(asker.key, asker.soon)
        assert len(far.proxy.links) == 1

    far.play(AioRuntime, scene, far.by_one_connection)


@on(FAR)
def test_a_cancelled_task_leaves_its_connection_to_others(far: Far) -> None:
    async def scene(asker: Asker) -> None:
        queue = asker.queue()
        await queue.inspect(asker.key, asker.soon)
        held = far.proxy.hold(DOWN)
        asked = asyncio.create_task(queue.inspect(asker.key, asker.soon))
        await asyncio.to_thread(held.await_held)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        held.deliver()
        await queue.inspect(asker.key, asker.soon)
        assert len(far.proxy.links) == 1

    far.play(AioRuntime, scene, far.by_one_connection)


@on((*FAR, *SESSION))
@pytest.mark.parametrize("api", ["blocking", "aio"])
def test_close_leaves_no_socket_to_the_garbage_collector(store: Store, server: Server, name: str, api: str) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def in_a_loop() -> None:
        async with dibs.aio.connect(store.url(server)) as client, client.lock(name):
            pass

    def use() -> None:
        if api == "aio":
            asyncio.run(in_a_loop())
        else:
            with dibs.connect(store.url(server)) as client, client.lock(name):
                pass

    use()
    gc.collect()
    gc.disable()
    try:
        before = descriptors()
        use()
        until(lambda: descriptors() <= before, what="all are closed")
    finally:
        gc.enable()


@on(SERVERS)
@each_runtime
def test_nothing_needs_poll(far: Far, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none."""
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(connections, "TRUSTED", 0.0)  # each is checked before it is used

    async def scene(asker: Asker) -> None:
        queue, claim = asker.queue(), asker.claim()
        standing = await queue.join(claim, QUEUE, asker.soon)
        assert standing is not None
        assert standing.holds
        assert await queue.leave(claim, True, asker.soon)

    far.play(base, scene, far.near)
