"""Clients of a healthy server whose answers take a fifth of a second: holds stay held, and what is given up goes."""

from __future__ import annotations

import asyncio

import pytest

import dibs
import dibs.aio
from dibs.testing.contract.harness import World
from lab.faults import Latency, Refuse
from lab.proxy import Proxy
from lab.servers.supervisor import Server
from lab.stopwatch import Stopwatch
from lab.witness import Witness
from process.children import Child
from store.faults.kit import LONG, RENEWED, TIMEOUT, eventually, renewed, usually_sync
from store.faults.stores import LEASED, SURVIVING, Store, on, row

HOP = 0.1
"""Seconds that a message is on its way: half of a round trip."""
TRIES = 8
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
async def test_a_free_lock_is_taken_by_the_first_try_of_a_client(
    world: World, store: Store, server: Server, name: str, far: str
) -> None:
    """It has three seconds. Another client tries only if others had the machine for a part of them."""
    (ana,) = world.actors("ana")
    for left in reversed(range(TRIES)):
        client = world.client(far)
        with Stopwatch() as watch:
            try:
                hold = await ana(lambda client=client: client.lock(name).acquire(timeout=0))
            except dibs.StoreUnavailable:
                if not left or watch.stolen() < 0.3:
                    raise
                continue
        await ana(hold.release)
        return


@pytest.mark.parametrize("store", [row("redis"), row("postgresql"), row("mysql", marks=[pytest.mark.soak])])
@usually_sync
async def test_a_short_lease_is_kept(world: World, store: Store, server: Server, name: str, far: str) -> None:
    """Where connections were opened for one attempt only, 6 s were too short. On MySQL the first one takes two of
    them, and longer where all tests compete for the machine: the soak has it."""
    client, witness = world.client(far), Witness(world, name)
    (ana,) = world.actors("ana")
    hold = await ana(witness.take(client.lock(name, lease=6.0)))
    for _ in range(2):
        await renewed(witness, hold, 6.0)
    await ana(witness.give(hold))


@on(LEASED)
@usually_sync
async def test_short_leases_cost_a_long_one_nothing(
    world: World, store: Store, server: Server, name: str, far: str
) -> None:
    """They may be lost: a second is hardly enough here. The attempts to renew them must not end those of the other."""
    client, witness = world.client(far), Witness(world, name)
    (ana,) = world.actors("ana")
    hold = await ana(witness.take(client.lock(name, lease=9.0)))
    for number in range(8):
        await ana(lambda number=number: client.lock(f"{name}-{number}", lease=1.0).acquire())
    await renewed(witness, hold, 9.0)
    await ana(witness.give(hold))


@on(LEASED)
@usually_sync
async def test_a_server_that_takes_no_more_connections_ends_no_hold(
    world: World, store: Store, server: Server, proxy: Proxy, name: str
) -> None:
    """What renews has its connection since the lock was taken, though nothing was due yet."""
    client, witness = world.client(store.through(server, proxy)), Witness(world, name)
    (ana,) = world.actors("ana")
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


@on(SURVIVING)
def test_closing_gives_back_what_many_names_hold(store: Store, server: Server, name: str, far: str) -> None:
    with dibs.connect(far, lease=LONG) as client:
        for number in range(20):
            assert client.lock(f"{name}-{number}").acquire(timeout=TIMEOUT) is not None
    with dibs.connect(store.url(server)) as near:
        assert [info.name for info in near.locks(prefix=f"{name}-") if info.holders] == []


@on(LEASED)
def test_a_process_that_ends_gives_back(store: Store, server: Server, name: str, far: str) -> None:
    """It has a second for that. Another process tries only if others had the machine for a part of it."""
    with dibs.connect(store.url(server)) as near:
        for number in range(TRIES):
            child = Child("worker", far, LONG)
            try:
                child.hear("ready")
                child.take(f"{name}-{number}")
                assert child.process.stdin is not None
                with Stopwatch() as watch:
                    child.process.stdin.close()
                    assert child.end() == 0
            finally:
                child.discard()
            if not near.lock(f"{name}-{number}").locked():
                return
            assert watch.stolen() >= 0.1, "it was not given back"
    pytest.fail("no process gave its lock back")
