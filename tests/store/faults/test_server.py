"""A server that is killed, restarted with its data and without, or stopped; its connections ended by an operator.

It honours the claims that it kept, also after a restart. It grants those that it lost to the next client: holders
overlap then, and a fence that is kept elsewhere refuses the older of them, because tokens rise all the same.
"""

from __future__ import annotations

import asyncio

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.servers.supervisor import Server
from lab.witness import Witness
from store.faults.kit import (
    RENEWED,
    SHORT,
    TIMEOUT,
    Relay,
    both_apis,
    eventually,
    give_up,
    passes,
    usually_sync,
    why_lost,
)
from store.faults.stores import LEASED, SERVERS, SURVIVING, Store, on

pytestmark = [pytest.mark.gate, pytest.mark.timeout(200)]


@on(LEASED)
@both_apis
async def test_its_connections_are_ended(world: World, store: Store, server: Server, name: str) -> None:
    """Connections of the holder, the waiter, the watchdogs and the subscribers: all are replaced, and both claims keep
    their places."""
    relay = Relay(world, name, store.url(server))
    await relay.begin()
    assert await asyncio.to_thread(store.end_connections, server) >= 3
    await relay.end()


@on(SURVIVING)
@usually_sync
async def test_killed_and_back(world: World, store: Store, server: Server, name: str) -> None:
    """Acknowledged claims are there after the crash; tokens rise."""
    relay = Relay(world, name, store.url(server))
    await relay.begin()
    await asyncio.to_thread(server.restart)
    await relay.end()


@on(SERVERS)
@usually_sync
async def test_stopped_past_the_lease(world: World, store: Store, server: Server, name: str) -> None:
    """The holder's own deadline passes while nobody answers; once the server goes on the next one is served."""
    relay = Relay(world, name, store.url(server), SHORT)
    await relay.begin()
    await asyncio.to_thread(server.stop)
    try:
        await eventually(relay.witness.watching(relay.hold.lost.is_set))
        assert why_lost(relay.hold) in ("unreachable", "standstill"), "the second: the machine was taken away"
        await passes(relay.witness, 0.5)
        assert not relay.pending.done()
    finally:
        await asyncio.to_thread(server.resume)
    await relay.end_lost()


@on(("redis",))
@usually_sync
async def test_everything_is_forgotten(world: World, store: Store, server: Server, name: str) -> None:
    """The next one gets the lock beside the holder, with a higher token. The holder learns of it at its next renewal,
    and the fence, which is kept elsewhere, refuses it."""
    client, other = (world.client(store.url(server), lease=2 * RENEWED, retry=TIMEOUT) for _ in range(2))
    fence = world.client("memory://").fence(name)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await asyncio.to_thread(lambda: server.ask("FLUSHALL"))  # tests that set the clock leave a floor in the future
    hold = await ana(witness.take(client.lock(name)))
    await ana(lambda: fence.admit(hold.token))
    await asyncio.to_thread(lambda: server.restart(wipe=True))
    won = await bob(witness.take(other.lock(name), timeout=TIMEOUT))
    assert won.token > hold.token, "tokens rise though nobody remembers the last one"
    await bob(lambda: fence.admit(won.token))
    with pytest.raises(dibs.StaleToken):
        await ana(lambda: fence.admit(hold.token))
    await eventually(witness.watching(hold.lost.is_set))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await give_up(witness, bob, won)
    assert {kind for kind, count in witness.verdict().guilty.items() if count} <= {"overlap", "taken"}


@on(("zookeeper",))
@usually_sync
async def test_a_forgotten_session_is_a_loss(world: World, store: Store, server: Server, name: str) -> None:
    """A server that was wiped refuses a client that has seen more than it has: the hold is lost at its deadline. A new
    one works."""
    client, ana = world.client(store.url(server), lease=RENEWED), world.actor("ana")
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    await asyncio.to_thread(lambda: server.restart(wipe=True))
    await eventually(hold.lost.is_set)
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    await ana((await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))).release)


@on(SERVERS)
@both_apis
async def test_a_stopped_server_answers_no_ping(world: World, store: Store, server: Server, name: str) -> None:
    client = world.client(store.url(server))
    await world(lambda: client.ping(TIMEOUT))
    await asyncio.to_thread(server.stop)
    try:
        with pytest.raises(dibs.StoreUnavailable) as caught:
            await world(lambda: client.ping(timeout=0.2))
    finally:
        await asyncio.to_thread(server.resume)
    assert caught.value.store in str(caught.value)
    assert await world(lambda: client.ping(TIMEOUT)) > 0
