"""ZooKeeper's own requests, cut or late; a waiter's session that ends; nodes that an operator removes.

Whatever is lost on the way, one claim makes one node, and leaves none, also where a lock needs several. What befalls a
plain lock on any store is in tests/store/faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import dibs
from dibs.core.queue import UNFAIR
from dibs.testing.contract.harness import World
from dibs.testing.contract.seats import Seat
from dibs.testing.contract.worlds import MUTEXES
from lab import splitters
from lab.faults import Cut, Refuse, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left, standing
from lab.surface import clock
from store.faults.kit import Relay, eventually, usually_sync
from store.zookeeper.faulty import (  # fmt: skip
    CREATE,
    CREATE2,
    DELETE,
    GET,
    MULTI,
    First,
    Witness,
    answer_to,
    asks,
    both_apis,
    directory,
    fresh_name,
    operator,
    through,
)

pytestmark = [pytest.mark.early, pytest.mark.timeout(150)]
LEASE = 60.0
"""Nothing here waits for its end: what is told is told long before."""
SHORT = 3.0
PROMPTLY = LEASE / 4
"""Before the store would look of itself: the watch of the node tells."""
TIME_OUT = 50.0
"""Of an acquire that must succeed."""
MUTEX = pytest.mark.parametrize("mutex", [MUTEXES[kind] for kind in ("write", "semaphore")], ids=["write", "semaphore"])
Mutex = Callable[..., Any]


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
        made.heal()  # in asyncio, what a client says at its end is still on its way
        made.wait_for(lambda: all(transport.up.ended for transport in made.open_links), what="clients have hung up")


@pytest.fixture
def name() -> str:
    return fresh_name()


def nodes(server: Server, name: str) -> list[str]:
    """All of them, of every kind of lock."""
    return [text for text in standing(server.ask("dump")) if f"{directory(name)}/" in text]


async def warm(world: World, client: Any, name: str, mutex: Mutex) -> None:
    """Connected, and the directory made: what follows is the claim's own."""
    hold = await world.actor("ana")(lambda: mutex(client, name).acquire())
    await world.actor("ana")(hold.release)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("write", [CREATE, CREATE2]),
        ("semaphore", [CREATE, CREATE2]),
        ("semaphore", [MULTI]),
    ],
    ids=["write", "semaphore's place", "semaphore's permit"],
)
@pytest.mark.parametrize("lost", ["request", "answer"])
@usually_sync
async def test_the_connection_is_cut_around_a_create(
    world: World, server: Server, proxy: Proxy, name: str, kind: str, steps: list[int], lost: str
) -> None:
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, mutex, witness = world.actor("ana"), MUTEXES[kind], Witness(world, name)
    await warm(world, client, name, mutex)
    strike = First(asks(name, *steps)) if lost == "request" else answer_to(proxy, asks(name, *steps))
    proxy.add(Cut(at_message(match=strike)), UP if lost == "request" else DOWN)
    hold = await ana(witness.take(mutex(client, name), timeout=TIME_OUT))
    assert strike.struck
    info = await world.inspect(other, name)
    assert ([holder.token for holder in info.holders], info.waiters) == ([hold.token], ())
    assert len(nodes(server, name)) == 1, "the first node was found again, or is gone"
    await held_for_a_while(witness, hold)
    await ana(witness.give(hold))
    await eventually(lambda: not nodes(server, name))
    witness.acquit()


async def held_for_a_while(witness: Witness, hold: Any) -> None:
    """Long enough for the store to have looked after the node once more, of itself."""
    await eventually(witness.watching(lambda: clock() > witness.granted(hold) + 2.0))
    hold.check()


@MUTEX
@pytest.mark.parametrize("lost", ["request", "answer"])
@usually_sync
async def test_the_connection_is_cut_around_a_delete(
    world: World, server: Server, proxy: Proxy, name: str, mutex: Mutex, lost: str
) -> None:
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(mutex(client, name)))
    pending = bob.start(witness.take(mutex(other, name), timeout=TIME_OUT))
    await world.in_queue(other, name, 1)
    deletes = asks(name, DELETE, MULTI)
    strike = First(deletes) if lost == "request" else answer_to(proxy, deletes)
    proxy.add(Cut(at_message(match=strike)), UP if lost == "request" else DOWN)
    await ana(witness.give(hold))
    won = await pending
    assert strike.struck
    assert won.token > hold.token
    assert len(proxy.links) >= 2, "it re-attached, and did not wait for the session to end"
    await bob(witness.give(won))
    await eventually(lambda: not nodes(server, name))
    witness.acquit()


@both_apis
async def test_a_late_answer_to_a_create(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Late, but before anybody has given the connection up: what is left of the hold counts from the asking."""
    client = world.client(through(proxy), lease=LEASE)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name, MUTEXES["lock"])
    late = proxy.hold(DOWN, at_message(match=answer_to(proxy, asks(name, CREATE, CREATE2))))
    asked = clock()
    pending = ana.start(witness.take(client.lock(name), timeout=TIME_OUT))
    await asyncio.to_thread(late.await_held)
    await eventually(lambda: clock() > asked + 0.5)
    assert not pending.done()
    assert late.deliver() == 1
    hold = await pending
    assert clock() + hold.remaining < asked + LEASE, "a late answer makes no longer hold"
    assert len(nodes(server, name)) == 1
    await ana(witness.give(hold))
    witness.acquit()


@both_apis
async def test_an_acquire_that_gives_up_on_a_cut_line_leaves_nothing(
    world: World, server: Server, proxy: Proxy, name: str
) -> None:
    """Its create was sent, its answer is late, its time is over: once the queue is well, the node goes."""
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    await warm(world, client, name, MUTEXES["lock"])
    held = proxy.hold(DOWN, at_message(match=answer_to(proxy, asks(name, CREATE, CREATE2))))
    refusal = proxy.add(Refuse())  # it cannot go and ask on another connection
    with pytest.raises(dibs.StoreUnavailable):
        await ana(lambda: client.lock(name).acquire(timeout=1.0))
    assert held.messages
    proxy.remove(refusal)
    held.deliver()
    hold = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert [f"node {directory(name)}/" in node for node in nodes(server, name)] == [True]
    await bob(hold.release)
    with operator(server) as kazoo:
        assert kazoo.exists(directory(name)) is None or kazoo.get_children(directory(name)) == []


@both_apis
async def test_a_session_that_ends_while_it_waits(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Its place is gone with it: it stands at the end of the queue, and is served there."""
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


def only_node(server: Server, name: str, place: int = 0) -> str:
    """The path of the claim at that place in the queue of a lock."""
    with operator(server) as kazoo:
        children = sorted(kazoo.get_children(directory(name)), key=lambda child: child[-10:])
    return f"{directory(name)}/{children[place]}"


def delete(server: Server, path: str) -> None:
    with operator(server) as kazoo:
        kazoo.delete(path)


@pytest.mark.parametrize("waited", [False, True], ids=["that came first", "that waited before"])
@both_apis
async def test_an_operator_removes_a_holder(world: World, server: Server, name: str, waited: bool) -> None:
    """It is told by the watch of its own node, which one that stood in the queue has had since then."""
    relay = Relay(world, name, server.url(), LEASE)
    await relay.begin()
    actor, hold = relay.ana, relay.hold
    if waited:
        await relay.ana(relay.witness.give(relay.hold))
        actor, hold = relay.bob, await relay.pending
    await asyncio.to_thread(lambda: delete(server, only_node(server, name)))
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


@both_apis
async def test_an_operator_removes_a_waiter(world: World, server: Server, name: str) -> None:
    """It joins the queue again, at its end, and is served."""
    relay = Relay(world, name, server.url(), LEASE)
    await relay.begin()
    await asyncio.to_thread(lambda: delete(server, only_node(server, name, place=1)))

    async def back() -> bool:
        return any(one.token > relay.waiter.token for one in (await world.inspect(relay.client, name)).waiters)

    await eventually(back)
    await relay.ana(relay.witness.give(relay.hold))
    won = await relay.pending
    assert won.token > relay.waiter.token
    await relay.bob(relay.witness.give(won))
    relay.witness.acquit()


def test_an_unfair_waiter_that_left_hears_nothing_of_its_late_watch(server: Server, proxy: Proxy, name: str) -> None:
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
