"""Session mode: a claim ends with its connection, and the client learns of it long before the lease is over."""

from __future__ import annotations

import asyncio
import time

import pytest

import dibs
import dibs.aio
from dibs.testing.contract.harness import World
from lab.proxy import Proxy
from lab.servers.supervisor import Server
from store.faults.kit import PATIENCE, TIMEOUT, Relay, both_apis, eventually, usually_sync, why_lost
from store.faults.stores import SESSION, Store, on

pytestmark = [pytest.mark.gate, pytest.mark.timeout(200), on(SESSION)]
FAR = 600.0
"""A lease whose next renewal is later than anything here waits for."""


@both_apis
async def test_the_holders_connection_ends(world: World, store: Store, server: Server, proxy: Proxy, name: str) -> None:
    relay = Relay(world, name, store.through(server, proxy), FAR, store.url(server))
    await relay.begin()
    proxy.reset()
    await eventually(lambda: relay.lost == [relay.hold])
    assert why_lost(relay.hold) == "broken"
    await relay.end_lost(early=True)


@both_apis
async def test_the_waiters_connection_ends(world: World, store: Store, server: Server, proxy: Proxy, name: str) -> None:
    """It asks again, at the end of the queue, and the holder does not notice."""
    relay = Relay(world, name, store.url(server), FAR, store.through(server, proxy))
    await relay.begin()
    first = relay.waiter
    before = len(proxy.links)
    proxy.reset()
    await eventually(lambda: len(proxy.links) > before)
    await world.in_queue(relay.client, name, 1)
    relay.hold.check()
    await relay.ana(relay.witness.give(relay.hold))
    won = await relay.pending
    assert won.token >= first.token
    await relay.bob(relay.witness.give(won))
    await world.free(relay.client, name)
    relay.witness.acquit()


@usually_sync
async def test_the_server_is_killed_and_comes_back(world: World, store: Store, server: Server, name: str) -> None:
    """The holder learns of it while the server is down; the waiter gets the lock, and tokens rise."""
    relay = Relay(world, name, store.url(server), FAR)
    await relay.begin()
    await asyncio.to_thread(server.kill)
    await eventually(relay.witness.watching(relay.hold.lost.is_set))
    assert not relay.pending.done()
    await asyncio.to_thread(server.restart)
    await relay.end_lost(early=True)


def test_a_blocked_event_loop_hears_of_the_loss(store: Store, server: Server, name: str) -> None:
    """Nothing of the loop runs between the end of the connection and the look at the hold."""

    async def main() -> None:
        async with dibs.aio.connect(store.url(server), lease=FAR) as client:
            hold = await client.lock(name).acquire(timeout=TIMEOUT)
            assert hold is not None
            end = time.monotonic() + PATIENCE
            assert store.end_connections(server) >= 1
            while not hold.lost.is_set():
                assert time.monotonic() < end, "the loss was not told"
                time.sleep(0.01)

    asyncio.run(main())
