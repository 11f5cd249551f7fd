"""The line to a server that serves: cut before a request, before its answer, late both ways, reset, refused.

A hold outlives its connection, and a place in line does, because both are the session's; and whatever is lost on the
way, one claim makes one node, and leaves none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import MUTEXES
from lab import splitters
from lab.faults import BlackHole, Cut, Latency, Refuse, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left, owners, standing
from lab.surface import clock
from store.zookeeper.faulty import (
    CREATE,
    CREATE2,
    DELETE,
    MULTI,
    First,
    Witness,
    answer_to,
    asks,
    both_faces,
    directory,
    fresh_name,
    operator,
    through,
)  # fmt: skip

LEASE = 4.0
TIME_OUT = 20.0
"""Of an acquire that must succeed."""
MUTEX = pytest.mark.parametrize("mutex", [MUTEXES[kind] for kind in ("lock", "write", "semaphore")],
                                ids=["lock", "write", "semaphore"])  # fmt: skip
Mutex = Callable[..., Any]


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper(tick_ms=300)) as server:
        yield server


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    yield one_server
    assert left(one_server, within=10) == [], "every session was closed, and took its nodes along"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.zookeeper) as made:
        yield made


@pytest.fixture
def name() -> str:
    return fresh_name()


def nodes(server: Server, name: str) -> list[str]:
    """All of them, of every kind of lock."""
    return [text for text in standing(server.ask("dump")) if f"{directory(name)}/" in text]


def session_of(server: Server, name: str) -> int:
    """Whose the only node is."""
    (session,) = (owner for path, owner in owners(server.ask("dump")).items() if path.startswith(f"{directory(name)}/"))
    return session


async def warm(world: World, client: Any, name: str, mutex: Mutex) -> None:
    """Connected, and the directory made: what follows is the claim's own."""
    hold = await world.actor("ana")(lambda: mutex(client, name).acquire())
    await world.actor("ana")(hold.release)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        ("lock", [CREATE, CREATE2]),
        ("write", [CREATE, CREATE2]),
        ("semaphore", [CREATE, CREATE2]),
        ("semaphore", [MULTI]),
    ],
    ids=["lock", "write", "semaphore's place", "semaphore's permit"],
)
@pytest.mark.parametrize("lost", ["request", "answer"])
@both_faces
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
    await eventually(witness.watching(lambda: clock() > witness.granted(hold) + LEASE / 2))
    hold.check()


@MUTEX
@pytest.mark.parametrize("lost", ["request", "answer"])
@both_faces
async def test_the_connection_is_cut_around_a_delete(
    world: World, server: Server, proxy: Proxy, name: str, mutex: Mutex, lost: str
) -> None:
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(mutex(client, name)))
    pending = bob.start(witness.take(mutex(other, name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
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


@both_faces
async def test_a_late_answer_to_a_create(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Late, but before anybody has given the connection up: what is left of the hold counts from the asking."""
    client = world.client(through(proxy), lease=LEASE)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name, MUTEXES["lock"])
    late = proxy.hold(DOWN, at_message(match=answer_to(proxy, asks(name, CREATE, CREATE2))))
    asked = clock()
    pending = ana.start(witness.take(client.lock(name), timeout=TIME_OUT))
    await asyncio.to_thread(late.await_held)
    await eventually(lambda: clock() > asked + LEASE / 8)
    assert not pending.done()
    assert late.deliver() == 1
    hold = await pending
    assert clock() + hold.remaining < asked + LEASE, "a late answer makes no longer hold"
    assert len(nodes(server, name)) == 1
    await ana(witness.give(hold))
    witness.acquit()


@pytest.mark.parametrize("late", ["request", "answer"])
@both_faces
async def test_a_create_that_comes_too_late(world: World, server: Server, proxy: Proxy, name: str, late: str) -> None:
    """The client gives the connection up and asks on another one; then the first arrives, and changes nothing."""
    client, ana = world.client(through(proxy), lease=LEASE), world.actor("ana")
    witness = Witness(world, name)
    await warm(world, client, name, MUTEXES["lock"])
    creates = asks(name, CREATE, CREATE2)
    spot = First(creates) if late == "request" else answer_to(proxy, creates)
    held = proxy.hold(UP if late == "request" else DOWN, at_message(match=spot))
    hold = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    assert held.messages, "it was held back"
    assert len(proxy.links) >= 2
    held.deliver()
    await eventually(witness.watching(lambda: clock() > witness.granted(hold) + LEASE))
    hold.check()
    assert len(nodes(server, name)) == 1
    await ana(witness.give(hold))
    await eventually(lambda: not nodes(server, name))
    witness.acquit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lock", "semaphore"])
@both_faces
async def test_a_slow_line(world: World, server: Server, proxy: Proxy, name: str, kind: str) -> None:
    """Looks of waiters, renewals and grants meet on it. A hold may end by its own clock, and none before."""
    witness = Witness(world, name)
    proxy.add(Latency(0.01, jitter=0.1))

    async def turns(who: str) -> None:
        actor, client = world.actor(who), world.client(through(proxy), lease=2 * LEASE)
        for _ in range(2):
            hold = await actor(witness.take(MUTEXES[kind](client, name), timeout=TIME_OUT))
            begun = clock()
            await eventually(witness.watching(lambda begun=begun: clock() > begun + 0.15))
            with suppress(dibs.LockLost, dibs.StoreUnavailable):
                await actor(witness.give(hold))

    await asyncio.gather(*map(turns, ("ana", "bob", "eve", "joe")))
    assert any(link.up.delays for link in proxy.links)
    assert len(witness.uses) == 8
    witness.acquit()


@both_faces
async def test_a_hold_outlives_its_connections(world: World, server: Server, proxy: Proxy, name: str) -> None:
    lost: list[Any] = []
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name, on_lost=lost.append)))
    session = session_of(server, name)
    for cut in (proxy.reset, proxy.cut, proxy.reset):
        before = len(proxy.links)
        cut()
        await eventually(witness.watching(lambda before=before: len(proxy.links) > before and proxy.open_links))
    ended = clock()
    await eventually(witness.watching(lambda: clock() > ended + 1.5 * LEASE))
    hold.check()
    assert await bob(lambda: other.lock(name).acquire(timeout=0)) is None
    assert (session_of(server, name), lost) == (session, [])
    await ana(witness.give(hold))
    witness.acquit()


@both_faces
async def test_a_waiter_keeps_its_place(world: World, server: Server, proxy: Proxy, name: str) -> None:
    near, far = world.client(server.url(), lease=LEASE), world.client(through(proxy), lease=LEASE)
    ana, bob, eve = world.actors("ana", "bob", "eve")
    witness = Witness(world, name)
    hold = await ana(witness.take(near.lock(name)))
    second = bob.start(witness.take(far.lock(name), timeout=TIME_OUT))
    await world.in_line(near, name, 1)
    third = eve.start(witness.take(near.lock(name), timeout=TIME_OUT))
    await world.in_line(near, name, 2)
    line, before = sorted(nodes(server, name)), [one.token for one in (await world.inspect(near, name)).waiters]
    proxy.reset()
    await eventually(lambda: len(proxy.links) > 1 and proxy.open_links)
    begun = clock()
    await eventually(witness.watching(lambda: clock() > begun + 1.2 * LEASE))
    assert sorted(nodes(server, name)) == line, "the very same nodes"
    assert [one.token for one in (await world.inspect(near, name)).waiters] == before
    await ana(witness.give(hold))
    won = await second
    assert won.token == before[0]
    await bob(witness.give(won))
    last = await third
    assert last.token == before[1]
    await eve(witness.give(last))
    witness.acquit()


@both_faces
async def test_a_grant_that_came_while_nobody_listened(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """The one ahead goes while the waiter has no connection: it learns of that once it has one again."""
    near, far = world.client(server.url(), lease=LEASE), world.client(through(proxy), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(near.lock(name)))
    pending = bob.start(witness.take(far.lock(name), timeout=TIME_OUT))
    await world.in_line(near, name, 1)
    (waiter,) = (await world.inspect(near, name)).waiters
    proxy.add(Refuse())
    proxy.reset()
    await ana(witness.give(hold))
    await eventually(lambda: len(nodes(server, name)) == 1)
    assert not pending.done()
    proxy.heal()
    won = await pending
    assert won.token == waiter.token
    await bob(witness.give(won))
    witness.acquit()


@both_faces
async def test_half_open(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Nothing comes back, though all goes out and the server is content: the client must not be."""
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    proxy.add(BlackHole(), DOWN)
    await eventually(witness.watching(hold.lost.is_set))
    proxy.heal()
    won = await pending
    assert won.token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await bob(witness.give(won))
    again = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    await ana(witness.give(again))
    witness.acquit()


@pytest.mark.slow
@both_faces
async def test_refused_for_ten_seconds(world: World, server: Server, proxy: Proxy, name: str) -> None:
    client, ana, bob = world.client(through(proxy), lease=LEASE, retry=1.0), *world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    proxy.add(Refuse())
    proxy.reset()
    begun = clock()
    pending = bob.start(witness.take(client.lock(name), timeout=40))
    with pytest.raises(dibs.StoreUnavailable, match=name):
        await ana(lambda: client.lock(f"{name}-b").acquire(timeout=0.5))
    with pytest.raises(dibs.StoreUnavailable, match=name):
        await ana(lambda: client.lock(f"{name}-b").acquire())
    assert clock() - begun < 10, "the retry of the client, not for ever"
    await eventually(witness.watching(hold.lost.is_set))
    with pytest.raises(dibs.LockLost):
        hold.check()
    await eventually(lambda: clock() > begun + 10, within=12)
    assert not pending.done()
    proxy.heal()
    healed = clock()
    won = await pending
    print(f"figure: {clock() - healed:.2f} s after a refusal of 10 s the waiter had it")
    assert won.token > hold.token
    await bob(witness.give(won))
    witness.acquit()


@both_faces
async def test_a_first_use_without_a_server(world: World, server: Server, proxy: Proxy, name: str) -> None:
    client, ana = world.client(through(proxy), lease=LEASE), world.actor("ana")
    proxy.add(Refuse())
    with pytest.raises(dibs.StoreUnavailable, match=name):
        await ana(lambda: client.lock(name).acquire(timeout=0.3))
    pending = ana.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    proxy.heal()
    hold = await pending
    await ana(hold.release)


@both_faces
async def test_an_acquire_that_gives_up_on_a_cut_line_leaves_nothing(
    world: World, server: Server, proxy: Proxy, name: str
) -> None:
    """Its create was sent, its answer is late, its time is over: once the line is well, the node goes."""
    client, other = world.client(through(proxy), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    await warm(world, client, name, MUTEXES["lock"])
    held = proxy.hold(DOWN, at_message(match=answer_to(proxy, asks(name, CREATE, CREATE2))))
    refusal = proxy.add(Refuse())  # it cannot go and ask on another connection
    with pytest.raises(dibs.StoreUnavailable):
        await ana(lambda: client.lock(name).acquire(timeout=LEASE / 4))
    assert held.messages
    proxy.remove(refusal)
    held.deliver()
    hold = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert [f"node {directory(name)}/" in node for node in nodes(server, name)] == [True]
    await bob(hold.release)
    with operator(server) as kazoo:
        assert kazoo.exists(directory(name)) is None or kazoo.get_children(directory(name)) == []
