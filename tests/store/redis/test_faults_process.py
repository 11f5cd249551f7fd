"""Clients that die or stand still, in processes of their own: the line goes on without them, and never beside them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.testing.contract.harness import World, eventually
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from process.children import Crew
from store.redis.faulty import both_faces

LEASE = 2.0
TIME_OUT = 14.0
SLACK = 10.0
"""On a machine that others use too: bench/ has the bound."""


@pytest.fixture
def crew(server: Server, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path, server.url(), lease=LEASE)
    yield made
    made.disband()


@both_faces
async def test_a_holder_is_killed(world: World, server: Server, crew: Crew, name: str) -> None:
    """Nobody gives it back: it ends by its lease, and its successor is told by nobody."""
    victim, client, bob = crew.worker(), world.client(server.url(), lease=LEASE), world.actor("bob")
    token = victim.take(name)
    pending = bob.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    died = victim.kill()
    won = await pending
    print(f"figure: a killed holder (lease {LEASE:g} s) delayed the line by {clock() - died:.2f} s")
    assert clock() - died < LEASE + SLACK
    assert won.token > token
    await bob(won.release)


@both_faces
async def test_a_waiter_is_killed(world: World, server: Server, crew: Crew, name: str) -> None:
    """The holder gives the lock to a dead one, who keeps it until its waiting lease is over."""
    victim, client = crew.worker(), world.client(server.url(), lease=30)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    victim.tell("take", name, 60)
    await world.in_line(client, name, 1)
    pending = bob.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(client, name, 2)
    victim.kill()
    freed = clock()
    await ana(hold.release)
    won = await pending
    print(f"figure: a dead waiter (waiting lease {LEASE:g} s) delayed the line by {clock() - freed:.2f} s")
    assert clock() - freed < LEASE + SLACK
    await bob(won.release)
    await world.free(client, name)


@both_faces
async def test_a_holder_stands_still_past_its_lease(world: World, server: Server, crew: Crew, name: str) -> None:
    """On waking it knows that it holds nothing, and gives nothing of its successor's back."""
    victim, client, bob = crew.worker(), world.client(server.url(), lease=LEASE), world.actor("bob")
    witness = Witness(world, name)
    token = victim.take(name)
    pending = bob.start(witness.take(client.lock(name), timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    victim.freeze()
    await eventually(pending.done)
    won = await pending
    assert won.token > token
    victim.signal(signal.SIGCONT)
    check, lost, owned, _ = victim.ask("state", name, hear="state")
    assert (check, lost, owned) == ("LockLost", "lost", "not")
    assert victim.ask("give", name, hear="gave") == ["LockLost"]
    witness.look()
    won.check()
    (holder,) = (await world.inspect(client, name)).holders
    assert holder.token == won.token
    await bob(witness.give(won))
    witness.acquit()
