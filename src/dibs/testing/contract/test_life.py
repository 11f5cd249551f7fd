"""The life of a client: no I/O before its first use, `close`, and no leftovers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR, PERMITS, RW
from dibs.testing.contract.harness import Actor, World, eventually
from dibs.testing.contract.worlds import above_the_store, every_form, needs, timed


async def close(world: World, client: Any) -> None:
    await world(client.close)


@every_form
@needs(RW)
async def test_close_gives_back(world: World) -> None:
    client, other, ana = world.client(), world.client(), world.actor("ana")
    await ana(lambda: client.lock("a").acquire())
    await ana(client.rwlock("b").read.acquire)
    await close(world, client)
    for name in ("a", "b"):
        info = await world.inspect(other, name)
        assert not info.holders


@needs(FAIR)
async def test_close_wakes_others_who_wait(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: other.lock("a").acquire())
    await world.in_queue(other, "a", 1)
    await close(world, client)
    assert await pending


async def test_close_marks_every_hold_lost(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    called: list[Any] = []
    hold = await ana(lambda: client.lock("a", on_lost=called.append).acquire())
    pending = ana.start(hold.lost.wait)
    await close(world, client)
    assert await pending
    assert hold.lost.is_set()
    assert hold.remaining == 0
    with pytest.raises(dibs.LockLost, match="the client was closed") as caught:
        hold.check()
    assert caught.value.reason == hold.lost_reason == "closed"
    await eventually(lambda: called)


@above_the_store
async def test_a_with_around_close_and_a_release_after_it_say_that_it_is_lost(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    released = await ana(lambda: client.lock("b").acquire())
    await ana(released.release)
    taken = await ana(lambda: client.lock("c").acquire())
    with pytest.raises(dibs.LockLost):
        async with ana.entering(client.lock("a")):
            await close(world, client)
    with pytest.raises(dibs.LockLost):
        await ana(taken.release)
    await ana(released.release)


@every_form
@pytest.mark.parametrize("fair", [pytest.param(True, marks=needs(FAIR)), False])
async def test_close_wakes_its_own_waiters(world: World, fair: bool) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    held = await ana(lambda: other.lock("a").acquire())
    pending = bob.start(lambda: client.lock("a", fair=fair).acquire())
    await eventually(lambda: "0 held or asked for" not in repr(client))
    if fair:
        await world.in_queue(other, "a", 1)
    await close(world, client)
    with pytest.raises(dibs.Closed) as caught:
        await pending
    assert isinstance(caught.value, RuntimeError)
    assert str(caught.value.store) in repr(client)
    assert not (await world.inspect(other, "a")).waiters
    held.check()


@above_the_store
@needs(FAIR)
async def test_close_wakes_those_who_wait_for_another_of_their_owner(world: World) -> None:
    client, other = world.client(owner="client"), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    held = await ana(lambda: other.rlock("a").acquire())
    first = bob.start(lambda: client.rlock("a").acquire())
    await world.in_queue(other, "a", 1)
    second = cy.start(lambda: client.rlock("a").acquire())
    await close(world, client)
    for pending in (first, second):
        with pytest.raises(dibs.Closed):
            await pending
    await ana(held.release)
    assert not (await world.inspect(other, "a")).holders
    assert not (await world.inspect(other, "a")).waiters


async def test_closing_twice_is_fine(world: World) -> None:
    client, unused = world.client(), world.client()
    await world.actor("ana")(lambda: client.lock("a").acquire())
    for _ in range(2):
        await close(world, client)
        await close(world, unused)


async def test_a_closed_client_refuses(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    lock = client.lock("a")
    await ana(lock.acquire)
    await close(world, client)
    named: dict[str, Any] = {"holder": "x:1"} if world.is_foreign else {"token": 1}
    for action in (
        lock.acquire,
        lambda: lock.acquire(timeout=0),
        lambda: client.lock("b").acquire(),
        lock.locked,
        lock.revoke,
        lambda: client.inspect("a"),
        lambda: client.break_("a", **named),
        lambda: world.multi(lock, client.lock("b")).acquire(),
    ):
        with pytest.raises(dibs.Closed):
            await ana(action)
    with pytest.raises(dibs.Closed):
        await ana.enter(lock)
    with pytest.raises(dibs.Closed):
        await world.locks(client)
    assert not await ana(lock.owned)
    assert "closed" in repr(client)


@above_the_store
async def test_a_client_is_a_context_manager(world: World) -> None:
    client, other, ana = world.connect(), world.client(), world.actor("ana")
    async with ana.entering(client) as entered:
        assert entered is client
        hold = await ana(lambda: client.lock("a").acquire())
    assert hold.lost.is_set()
    await world.free(other, "a")


@timed
async def test_closing_one_client_spares_the_others(world: World) -> None:
    client, other = world.client(lease=world.short), world.client(lease=world.short)
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    hold = await bob(lambda: other.lock("b").acquire())
    await close(world, client)
    hold.check()
    assert len((await world.inspect(other, "b")).holders) == 1


@above_the_store
@needs(RW, PERMITS)
async def test_making_locks_asks_nothing(world: World) -> None:
    client = world.client()
    for make in (client.lock, client.rlock, client.rwlock):
        assert make("a").name == "a"
    assert client.semaphore("a", 3).name == "a"
    assert world.is_foreign or client.striped("a", 3).name == "a"
    assert not await world.locks(client)


@above_the_store
async def test_fifty_on_one_lock_each_once(world: World) -> None:
    lock = world.client().lock("a", timeout=60)
    inside: list[Actor] = []
    tokens: list[int] = []

    async def work(actor: Actor) -> None:
        async with actor.entering(lock) as hold:
            inside.append(actor)
            assert inside == [actor]
            tokens.append(hold.token)
            await asyncio.sleep(0)
            inside.remove(actor)

    await asyncio.gather(*(work(world.actor(f"worker {n}")) for n in range(50)))
    assert len(tokens) == 50
    assert tokens == sorted(set(tokens))


@every_form
async def test_first_use_by_many_at_once(world: World) -> None:
    client = world.client()
    actors = [world.actor(f"worker {n}") for n in range(10)]
    holds = await asyncio.gather(*(actor(lambda a=actor: client.lock(a.name).acquire()) for actor in actors))
    assert len({hold.name if world.is_foreign else hold.token for hold in holds}) == 10
    assert len(await world.locks(client)) == 10
