"""Lost and late requests of ZooKeeper, a waiter's session that ends, and nodes that an operator removes.

A claim makes one node and leaves none, whatever is lost. tests/store/faults has the faults that all stores share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kazoo.client import KazooClient

import dibs
from dibs.core.queue import UNFAIR
from dibs.testing.contract.harness import Actor, World
from dibs.testing.contract.seats import Seat
from dibs.testing.contract.worlds import MUTEXES
from lab import splitters
from lab.faults import Cut, Match, Refuse, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left, standing
from lab.witness import First, Witness
from store.faults.kit import Relay, both_apis, eventually, passes, usually_sync
from store.zookeeper.faulty import CREATE, CREATE2, DELETE, GET, MULTI, answer_to, asks, directory, operate, through

pytestmark = [pytest.mark.gate, pytest.mark.early, pytest.mark.timeout(150)]
LEASE = 60.0
"""No test waits for its end."""
SHORT = 3.0
PROMPTLY = LEASE / 4
"""Before the next renewal: by the watch of the node."""
TIME_OUT = 50.0
"""For an acquire that must succeed."""
KINDS = pytest.mark.parametrize("kind", ["write", "semaphore"])
LOST = pytest.mark.parametrize("lost", ["request", "answer"])


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper("maxSessionTimeout=60000", tick_ms=300)) as server:
        yield server


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    yield one_server
    assert left(one_server, within=LEASE / 2) == [], "every session was closed, and took its nodes along"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.zookeeper) as made:
        yield made
        made.heal()  # the last messages of asyncio clients are still on their way
        made.wait_for(lambda: all(transport.up.ended for transport in made.open_links), what="clients have hung up")


def cut_once(proxy: Proxy, matching: Match, lost: str) -> First:
    """Cut the connection at the first such request, or at its reply."""
    strike = First(matching) if lost == "request" else answer_to(proxy, matching)
    proxy.add(Cut(at_message(match=strike)), UP if lost == "request" else DOWN)
    return strike


def nodes(server: Server, name: str) -> list[str]:
    return [text for text in standing(server.ask("dump")) if f"{directory(name)}/" in text]


async def warm(actor: Actor, lock: Any) -> None:
    """Connect, and make the directory."""
    hold = await actor(lock.acquire)
    await actor(hold.release)


@pytest.mark.parametrize(
    ("kind", "steps"), [("write", [CREATE, CREATE2]), ("semaphore", [CREATE, CREATE2]), ("semaphore", [MULTI])]
)
@LOST
@usually_sync
async def test_the_connection_is_cut_around_a_create(
    world: World, server: Server, proxy: Proxy, name: str, kind: str, steps: list[int], lost: str
) -> None:
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, mutex, witness = world.actor("ana"), MUTEXES[kind], Witness(world, name)
    await warm(ana, mutex(client, name))
    strike = cut_once(proxy, asks(name, *steps), lost)
    hold = await ana(witness.take(mutex(client, name), timeout=TIME_OUT))
    assert strike.struck
    info = await world.inspect(other, name)
    assert ([holder.token for holder in info.holders], info.waiters) == ([hold.token], ())
    assert len(nodes(server, name)) == 1, "the first node was found again, or is gone"
    await passes(witness, 2.0)  # by then the client has checked its node
    hold.check()
    await ana(witness.give(hold))
    await eventually(lambda: not nodes(server, name))
    witness.acquit()


@KINDS
@LOST
@usually_sync
async def test_the_connection_is_cut_around_a_delete(
    world: World, server: Server, proxy: Proxy, name: str, kind: str, lost: str
) -> None:
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    mutex, witness = MUTEXES[kind], Witness(world, name)
    hold = await ana(witness.take(mutex(client, name)))
    pending = bob.start(witness.take(mutex(other, name), timeout=TIME_OUT))
    await world.in_queue(other, name, 1)
    strike = cut_once(proxy, asks(name, DELETE, MULTI), lost)
    await ana(witness.give(hold))
    won = await pending
    assert strike.struck
    assert won.token > hold.token
    assert len(proxy.links) >= 2, "it reconnected, and did not wait for the session to end"
    await bob(witness.give(won))
    await eventually(lambda: not nodes(server, name))
    witness.acquit()


@both_apis
async def test_an_acquire_that_gives_up_leaves_no_node(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """The reply to its create comes after its timeout: the node is removed after that."""
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    await warm(ana, client.lock(name))
    held = proxy.hold(DOWN, at_message(match=answer_to(proxy, asks(name, CREATE, CREATE2))))
    refusal = proxy.add(Refuse())  # it cannot ask on another connection
    with pytest.raises(dibs.StoreUnavailable):
        await ana(lambda: client.lock(name).acquire(timeout=1.0))
    assert held.messages
    proxy.remove(refusal)
    held.deliver()
    hold = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert [f"node {directory(name)}/" in node for node in nodes(server, name)] == [True]
    await bob(hold.release)
    assert not operate(server, lambda kazoo: kazoo.get_children(directory(name)))


@both_apis
async def test_a_session_that_ends_while_it_waits(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """It loses its place, and joins the queue again at the end."""
    near, far = world.client(server.url(), lease=LEASE), world.client(through(proxy), lease=SHORT)
    ana, bob, eve = world.actors("ana", "bob", "eve")
    witness = Witness(world, name)
    hold = await ana(witness.take(near.lock(name)))
    second = bob.start(witness.take(far.lock(name), timeout=TIME_OUT))
    await world.in_queue(near, name, 1)
    (before,) = (await world.inspect(near, name)).waiters
    third = eve.start(witness.take(near.lock(name), timeout=TIME_OUT))
    await world.in_queue(near, name, 2)
    proxy.add(Refuse())
    proxy.reset()
    await world.in_queue(near, name, 1)
    proxy.heal()
    await world.in_queue(near, name, 2)
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


def remove_holder(server: Server, name: str) -> None:

    def remove(kazoo: KazooClient) -> None:
        children = sorted(kazoo.get_children(directory(name)), key=lambda child: child[-10:])
        kazoo.delete(f"{directory(name)}/{children[0]}")

    operate(server, remove)


@pytest.mark.parametrize("waited", [False, True])
@both_apis
async def test_an_operator_removes_a_holder(world: World, server: Server, name: str, waited: bool) -> None:
    """The watch of its own node reports it, also if it was set while the claim waited."""
    relay = Relay(world, name, server.url(), LEASE)
    await relay.begin()
    actor, hold = relay.ana, relay.hold
    if waited:
        await relay.ana(relay.witness.give(relay.hold))
        actor, hold = relay.bob, await relay.pending
    remove_holder(server, name)
    await eventually(hold.lost.is_set, within=PROMPTLY)
    with pytest.raises(dibs.LockLost, match=name):
        hold.check()
    with pytest.raises(dibs.LockLost, match=name):
        await actor(relay.witness.give(hold))
    if not waited:
        await eventually(lambda: relay.lost == [hold])
        won = await relay.pending
        assert won.token > hold.token
        await relay.bob(relay.witness.give(won))
    await world.free(relay.other, name)


def test_an_unfair_waiter_that_left_is_not_woken_by_its_late_watch(server: Server, proxy: Proxy, name: str) -> None:
    """The request that sets its watch arrives when it has left and the holder's node is gone."""
    with closing(Seat(server.url())) as ana, closing(Seat(through(proxy))) as bob:
        bob.leave(bob.joined(name=name)[0])  # connected
        mine, _ = ana.joined(name=name)
        held = proxy.hold(UP, at_message(match=lambda message: asks(name, GET)(message) and message[-1:] == b"\1"))
        outside = bob.claim(name)
        bob.join(outside, UNFAIR)
        held.await_held()
        bob.leave(outside)
        ana.leave(mine)
        held.deliver()
        bob.holders(name)  # behind the late answer
        assert bob.told(outside) is None
