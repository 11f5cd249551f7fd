"""Clients of a healthy server whose answers take a fifth of a second: holds stay held, and abandoned claims go."""

from __future__ import annotations

import asyncio

import pytest

import dibs
import dibs.aio
from dibs.testing.contract.harness import World
from lab.faults import Latency, Refuse
from lab.proxy import Proxy
from lab.servers.supervisor import Server
from lab.witness import Witness
from process.children import Crew
from store.faults.kit import LONG, RENEWED, eventually, renewed, usually_sync
from store.faults.stores import LEASED, SURVIVING, Store, on

pytestmark = pytest.mark.gate
HOP = 0.1
"""Seconds that a message is on its way: half of a round trip."""
SOON = 20.0
"""Seconds: far less than a lease, far more than some round trips."""


@pytest.fixture
def far(store: Store, server: Server, proxy: Proxy, name: str) -> str:
    """The server has its tables, and knows our scripts: making them takes many round trips, once."""
    with dibs.connect(store.url(server)) as client, client.lock(name):
        pass
    proxy.add(Latency(HOP))
    return store.through(server, proxy)


@on(SURVIVING)
@usually_sync
async def test_a_free_lock_is_taken_by_a_first_try(world: World, store: Store, name: str, far: str) -> None:
    """A timeout of zero still leaves time for round trips and a connection."""
    client, ana = world.client(far), world.actor("ana")
    await ana((await ana(lambda: client.lock(name).acquire(timeout=0))).release)


@on(LEASED)
@usually_sync
async def test_a_server_that_takes_no_more_connections_ends_no_hold(
    world: World, store: Store, server: Server, proxy: Proxy, name: str
) -> None:
    """The watchdog has its connection since the lock was taken, though no renewal was due yet."""
    client, witness, ana = world.client(store.through(server, proxy)), Witness(world, name), world.actor("ana")
    hold = await ana(witness.take(client.lock(name, lease=RENEWED)))
    await eventually(lambda: client._core.watchdog.is_connected)
    proxy.add(Refuse())
    await renewed(witness, hold, RENEWED)
    await ana(witness.give(hold))


@on(LEASED)
@pytest.mark.parametrize("waits", [False, True], ids=["asking", "waiting"])
def test_a_cancelled_acquire_leaves_soon(store: Store, server: Server, name: str, far: str, waits: bool) -> None:
    """Before any answer has come, and while it waits behind a holder."""

    async def scene() -> None:
        async with dibs.aio.connect(far, lease=LONG) as client, dibs.aio.connect(store.url(server)) as near:
            hold = await near.lock(name).acquire() if waits else None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0 if waits else HOP):
                    await client.lock(name).acquire()
            if hold is not None:
                await hold.release()
            async with near.lock(name, timeout=SOON):
                pass

    asyncio.run(scene())


@on(LEASED)
def test_a_process_that_ends_gives_back(store: Store, server: Server, crew: Crew, name: str, far: str) -> None:
    child = crew.start("worker", far, LONG)
    child.hear("ready")
    child.take(name)
    assert child.process.stdin is not None
    child.process.stdin.close()
    assert child.end() == 0
    with dibs.connect(store.url(server)) as near:
        assert not near.lock(name).locked()
