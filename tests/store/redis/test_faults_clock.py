"""The server's wall clock jumps: an hour ahead, and everything has run out; an hour back, and nothing lasts longer than
its lease for that. Time is measured on our own clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.clock import Clock, shim
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from process.children import Crew
from store.redis.faulty import after, both_faces

LEASE = 4.0
TIME_OUT = 14.0
HOUR = 3600
SLACK = 10.0
"""More than a lease takes on a machine that others use too; much less than an hour."""


@pytest.fixture
def hands(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Clock:
    require("redis")
    return Clock(tmp_path, shim(tmp_path_factory))


@pytest.fixture
def server(hands: Clock) -> Iterator[Server]:
    with Server(Redis(), hands.env()) as made:
        yield made


@pytest.fixture
def crew(server: Server, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path, server.url(), lease=LEASE)
    yield made
    made.disband()


@both_faces
async def test_an_hour_ahead(world: World, server: Server, hands: Clock, name: str) -> None:
    """The lease has run out for the server and not for its holder: both are valid, until the first one's next renewal;
    the fence, which is elsewhere, refuses the older one."""
    client, other = world.client(server.url(), lease=2 * LEASE), world.client(server.url(), lease=2 * LEASE)
    fence = world.client("memory://").fence(name)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await ana(lambda: fence.admit(hold.token))
    hands.step(HOUR)
    won = await bob(witness.take(other.lock(name), timeout=TIME_OUT))
    witness.look()
    assert not hold.lost.is_set(), "nobody can have told it yet"
    assert won.token > hold.token
    await bob(lambda: fence.admit(won.token))
    with pytest.raises(dibs.StaleToken):
        await ana(lambda: fence.admit(hold.token))
    await eventually(witness.watching(hold.lost.is_set))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await bob(witness.give(won))
    guilty = {kind: count for kind, count in witness.verdict().guilty.items() if count}
    print(f"figure: the server's clock an hour ahead: {guilty}; the fence refused the older holder")
    assert guilty == {"overlap": 1, "taken": 1}


@both_faces
async def test_an_hour_ahead_while_somebody_waits(world: World, server: Server, hands: Clock, name: str) -> None:
    """The waiter has run out as well: it asks again, and nobody is left standing."""
    client, other = world.client(server.url(), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    hands.step(HOUR)
    won = await pending
    assert won.token > hold.token
    await eventually(hold.lost.is_set)
    await bob(won.release)
    await world.free(other, name)


@both_faces
async def test_an_hour_back_and_the_holder_lives(world: World, server: Server, hands: Clock, name: str) -> None:
    client, other = world.client(server.url(), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    hands.step(-HOUR)
    await after(witness, 1.2 * LEASE)
    hold.check()
    assert not pending.done()
    freed = clock()
    await ana(witness.give(hold))
    won = await pending
    assert clock() - freed < LEASE + SLACK
    await bob(witness.give(won))
    again = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    assert again.token > won.token > hold.token, "the last token is remembered, whatever the clock shows"
    await ana(witness.give(again))
    witness.acquit()


@both_faces
async def test_an_hour_back_and_the_holder_is_dead(
    world: World, server: Server, crew: Crew, hands: Clock, name: str
) -> None:
    """What it left behind would last an hour and a lease: each look cuts it to a lease."""
    dead, client, bob = crew.worker(), world.client(server.url(), lease=LEASE), world.actor("bob")
    token = dead.take(name)
    dead.kill()
    hands.step(-HOUR)
    begun = clock()
    won = await bob(lambda: client.lock(name).acquire(timeout=LEASE + SLACK))
    print(f"figure: an hour back: a dead holder (lease {LEASE:g} s) kept the next one {clock() - begun:.2f} s")
    assert won is not None, "nobody waits longer than one lease"
    assert won.token > token
    await bob(won.release)
