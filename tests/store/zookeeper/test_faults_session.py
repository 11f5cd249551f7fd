"""Sessions that end, servers that stand still or start anew, and nodes that somebody else removes.

The holder's own clock has passed before the server gives the lock to another; what an operator takes away is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab import splitters
from lab.faults import Refuse
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left
from lab.surface import clock
from store.zookeeper.faulty import Witness, both_faces, directory, fresh_name, operator, through

LEASE, LONG = 1.0, 5.0
TIME_OUT = 20.0
PROMPTLY = 2.0
"""Much less than LONG: it was not the session's end that told."""


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper(tick_ms=300)) as server:
        yield server


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    yield one_server
    assert left(one_server, within=15) == [], "every session was closed or has ended, and took its nodes along"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.zookeeper) as made:
        yield made


@pytest.fixture
def name() -> str:
    return fresh_name()


@both_faces
async def test_a_session_that_ends_while_it_holds(world: World, server: Server, proxy: Proxy, name: str) -> None:
    told: list[Any] = []
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name, on_lost=told.append)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    proxy.add(Refuse())
    proxy.reset()
    await eventually(witness.watching(pending.done))
    won = await pending
    assert won.token > hold.token
    assert hold.lost.is_set(), "it knew before the other one got it"
    with pytest.raises(dibs.LockLost, match=name):
        hold.check()
    assert hold.remaining == 0
    await eventually(lambda: told == [hold])
    proxy.heal()
    with pytest.raises(dibs.LockLost, match=name):
        await ana(witness.give(hold))
    assert await ana(lambda: client.lock(name).acquire(timeout=0)) is None, "a late release frees nobody else's"
    won.check()
    await bob(witness.give(won))
    again = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    assert again.token > won.token, "in a session of its own"
    await ana(witness.give(again))
    witness.acquit()
    assert told == [hold], "once"


@both_faces
async def test_a_session_that_ends_while_it_waits(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Its place is gone with it: it stands at the end of the line, and is served there."""
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LEASE)
    ana, bob, eve = world.actors("ana", "bob", "eve")
    witness = Witness(world, name)
    hold = await ana(witness.take(near.lock(name)))
    second = bob.start(witness.take(far.lock(name), timeout=TIME_OUT))
    await world.in_line(near, name, 1)
    (before,) = (await world.inspect(near, name)).waiters
    third = eve.start(witness.take(near.lock(name), timeout=TIME_OUT))
    await world.in_line(near, name, 2)
    proxy.add(Refuse())
    proxy.reset()
    await world.in_line(near, name, 1)
    proxy.heal()
    await world.in_line(near, name, 2)
    tokens = [one.token for one in (await world.inspect(near, name)).waiters]
    assert before.token not in tokens
    await ana(witness.give(hold))
    won = await third
    assert won.token == tokens[0]
    await eve(witness.give(won))
    last = await second
    assert last.token == tokens[1]
    await bob(witness.give(last))
    witness.acquit()


@both_faces
async def test_a_server_that_stands_still(world: World, server: Server, name: str) -> None:
    client, other = world.client(server.url(), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    server.stop()
    try:
        await eventually(witness.watching(hold.lost.is_set))
        with pytest.raises(dibs.StoreUnavailable, match=name):
            await ana(lambda: client.lock(name).acquire(timeout=0.3))
        stopped = clock()
        await eventually(lambda: clock() > stopped + 2 * LEASE)
        assert not pending.done()
    finally:
        server.resume()
    won = await pending
    assert won.token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await bob(witness.give(won))
    again = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    await ana(witness.give(again))
    witness.acquit()


@both_faces
async def test_a_server_killed_and_started_again(world: World, server: Server, name: str) -> None:
    """It keeps sessions and nodes: within the time-out nothing is lost, neither the hold nor the place in line."""
    client, other = world.client(server.url(), lease=LONG), world.client(server.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    (waiter,) = (await world.inspect(other, name)).waiters
    await asyncio.to_thread(server.restart)
    started = clock()
    await eventually(witness.watching(lambda: hold.remaining > LONG / 2 and clock() > started + LONG / 2))
    hold.check()
    await ana(witness.give(hold))
    won = await pending
    assert won.token == waiter.token
    await bob(witness.give(won))
    witness.acquit()


@both_faces
async def test_a_server_that_forgot_everything(world: World, server: Server, name: str) -> None:
    """Wiped: the session is unknown, so the hold is lost, and told; a new one is made and works."""
    client, ana = world.client(server.url(), lease=LONG), world.actor("ana")
    hold = await ana(lambda: client.lock(name).acquire())
    await asyncio.to_thread(lambda: server.restart(wipe=True))
    await eventually(hold.lost.is_set)
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    again = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await ana(again.release)


def only_node(server: Server, name: str, place: int = 0) -> str:
    """The path of the claim at that place in the line of a lock."""
    with operator(server) as kazoo:
        children = sorted(kazoo.get_children(directory(name)), key=lambda child: child[-10:])
    return f"{directory(name)}/{children[place]}"


def delete(server: Server, path: str) -> None:
    with operator(server) as kazoo:
        kazoo.delete(path)


@both_faces
async def test_an_operator_removes_a_holder(world: World, server: Server, name: str) -> None:
    told: list[Any] = []
    client, ana = world.client(server.url(), lease=LONG), world.actor("ana")
    hold = await ana(lambda: client.lock(name, on_lost=told.append).acquire())
    await asyncio.to_thread(lambda: delete(server, only_node(server, name)))
    await eventually(hold.lost.is_set, within=PROMPTLY)
    await eventually(lambda: told == [hold])
    with pytest.raises(dibs.LockLost, match=name):
        hold.check()
    with pytest.raises(dibs.LockLost, match=name):
        await ana(hold.release)
    again = await ana(lambda: client.lock(name).acquire(timeout=0))
    assert again.token > hold.token
    await ana(again.release)


@both_faces
async def test_an_operator_removes_a_holder_that_waited_before(world: World, server: Server, name: str) -> None:
    """Its own node was watched since it stood in line, and is watched still."""
    client, other = world.client(server.url(), lease=LONG), world.client(server.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    first = await ana(lambda: client.lock(name).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    await ana(first.release)
    hold = await pending
    await asyncio.to_thread(lambda: delete(server, only_node(server, name)))
    await eventually(hold.lost.is_set, within=PROMPTLY)
    with pytest.raises(dibs.LockLost):
        await bob(hold.release)


@both_faces
async def test_an_operator_removes_a_waiter(world: World, server: Server, name: str) -> None:
    """It stands in line again, at its end, and is served."""
    client, other = world.client(server.url(), lease=LONG), world.client(server.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    (before,) = (await world.inspect(client, name)).waiters
    await asyncio.to_thread(lambda: delete(server, only_node(server, name, place=1)))

    async def back() -> bool:
        return any(one.token > before.token for one in (await world.inspect(client, name)).waiters)

    await eventually(back)
    await ana(witness.give(hold))
    won = await pending
    assert won.token > before.token
    await bob(witness.give(won))
    witness.acquit()
