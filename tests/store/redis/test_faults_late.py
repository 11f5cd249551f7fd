"""Requests and answers that come when nobody waits for them any more: what they were about was asked again meanwhile on
another connection, or given up. They change nothing.
"""

from __future__ import annotations

import asyncio

import pytest

import dibs
from dibs.backends.redis.scripts import JOIN, LEAVE, RENEW, Script
from dibs.core.deadline import WAITING_LEASE
from dibs.testing.contract.harness import World, eventually
from lab.faults import at_message
from lab.proxy import DOWN, UP, Holding, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import First, Witness
from store.redis.faulty import after, alone, answer_to, asks, both_faces, seen, through, warm

LEASE = 4.0
LONG = 40.0
TIME_OUT = 14.0
EITHER = pytest.mark.parametrize("late", ["request", "answer"])


def hold_back(proxy: Proxy, name: str, script: Script, late: str) -> Holding:
    """The first such request on that name, or the answer to it."""
    if late == "answer":
        return proxy.hold(DOWN, at_message(match=answer_to(proxy, name, script)))
    return proxy.hold(UP, at_message(match=First(asks(name, script))))


@pytest.mark.parametrize("late", ["request", "answer", "request, by more than it may be"])
@both_faces
async def test_a_join_that_comes_after_the_claim_has_left(
    world: World, server: Server, proxy: Proxy, name: str, late: str
) -> None:
    """Its caller gives up, its leave overtakes it on another connection; then it arrives, and makes no ghost."""
    client, other = world.client(through(proxy), lease=LONG), world.client(server.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await warm(world, client, name)
    left = seen(proxy, DOWN, answer_to(proxy, name, LEAVE))
    held = hold_back(proxy, name, JOIN, late)
    asked = clock()
    with pytest.raises(dibs.StoreUnavailable, match=name):
        await ana(lambda: client.lock(name).acquire(timeout=0.2))
    assert held.messages, "it was held back"
    await eventually(lambda: left.struck)
    if "by more" in late:
        await eventually(lambda: clock() > asked + WAITING_LEASE + 0.5)
        await warm(world, other, name)  # so that nobody remembers that it has left
    held.deliver()
    hold = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await alone(world, other, name, hold)
    await bob(hold.release)
    await world.free(other, name)


@EITHER
@both_faces
async def test_a_late_join(world: World, server: Server, proxy: Proxy, name: str, late: str) -> None:
    """Asked again with the same id it stands once, and is not extended by that."""
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name)
    held = hold_back(proxy, name, JOIN, late)
    hold = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    assert held.messages, "it was held back"
    await alone(world, other, name, hold)
    held.deliver()
    await after(witness, LEASE / 4)
    await alone(world, other, name, hold)
    await ana(witness.give(hold))
    await world.free(other, name)
    witness.acquit()


@EITHER
@both_faces
async def test_a_late_renewal(world: World, server: Server, proxy: Proxy, name: str, late: str) -> None:
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name)
    hold = await ana(witness.take(client.lock(name)))
    held = hold_back(proxy, name, RENEW, late)
    await eventually(witness.watching(lambda: held.messages and hold.remaining > 0.7 * LEASE), within=LEASE)
    await alone(world, other, name, hold)
    held.deliver()
    await after(witness, LEASE / 4)
    await alone(world, other, name, hold)
    await ana(witness.give(hold))
    witness.acquit()


@EITHER
@both_faces
async def test_a_late_look(world: World, server: Server, proxy: Proxy, name: str, late: str) -> None:
    """A waiter's renewal is its look: what it says late, of a line that has moved on, invents no hold."""
    near, far = world.client(server.url(), lease=LEASE), world.client(through(proxy), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await warm(world, far, name)
    hold = await ana(witness.take(near.lock(name)))
    pending = bob.start(witness.take(far.lock(name), timeout=TIME_OUT))
    held = hold_back(proxy, name, RENEW, late)
    await asyncio.to_thread(held.await_held)
    await after(witness, LEASE / 4)
    assert not pending.done()
    held.deliver()
    await ana(witness.give(hold))
    won = await pending
    await alone(world, near, name, won)
    await bob(witness.give(won))
    await world.free(near, name)
    witness.acquit()


@EITHER
@both_faces
async def test_a_late_leave(world: World, server: Server, proxy: Proxy, name: str, late: str) -> None:
    """The next one has it by then, and keeps it."""
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await warm(world, far, name)
    hold = await ana(witness.take(far.lock(name)))
    pending = bob.start(witness.take(near.lock(name), timeout=LONG))
    await world.in_line(near, name, 1)
    held = hold_back(proxy, name, LEAVE, late)
    await ana(witness.give(hold))
    won = await pending
    assert held.messages, "it was held back"
    held.deliver()
    await after(witness, LEASE / 8)
    await alone(world, near, name, won)
    await bob(witness.give(won))
    await world.free(near, name)
    witness.acquit()
