"""The re-entrant lock: its owner, re-entry, and that it is free once every hold is released."""

from __future__ import annotations

from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR, FOREIGN
from dibs.testing.contract.harness import World
from dibs.testing.contract.worlds import above_the_store, needs, timed, without

pytestmark = above_the_store


async def test_the_owner_re_enters(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    lock = client.rlock("a")
    async with ana.entering(lock) as outer, ana.entering(lock) as inner:
        assert inner is not outer
        assert inner.token == outer.token
        another = await ana(lambda: client.rlock("a").acquire(timeout=0))
        assert another.token == outer.token
        assert len((await world.inspect(client, "a")).holders) == 1


@needs(FAIR)
async def test_re_entry_passes_those_who_wait(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.rlock("a").acquire())
    bob.start(lambda: other.rlock("a").acquire())
    await world.in_queue(client, "a", 1)
    assert await ana(lambda: client.rlock("a").acquire(timeout=0))


async def test_a_plain_lock_does_not_re_enter(world: World) -> None:
    lock, ana = world.client().lock("a"), world.actor("ana")
    await ana(lock.acquire)
    assert await ana(lambda: lock.acquire(timeout=0)) is None


async def test_a_plain_lock_does_not_enter_a_re_entrant_hold(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.rlock("a").acquire())
    assert await ana(lambda: client.lock("a").acquire(timeout=0)) is None


async def test_the_lock_is_free_when_every_hold_is_released(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    holds = [await ana(lambda: client.rlock("a").acquire()) for _ in range(3)]
    for hold in (holds[1], holds[1], holds[0]):  # a second release of a hold does not count
        await ana(hold.release)
        assert await bob(lambda: client.rlock("a").acquire(timeout=0)) is None
    holds[2].check()
    await ana(holds[2].release)
    assert await bob(lambda: client.rlock("a").acquire(timeout=0))


async def test_another_client_does_not_re_enter(world: World) -> None:
    ana = world.actor("ana")
    one, other = world.client().rlock("a"), world.client().rlock("a")
    await ana(one.acquire)
    assert await ana(lambda: other.acquire(timeout=0)) is None


@pytest.mark.parametrize(
    ("clients", "options"), [({"owner": "client"}, {}), ({"owner": "job 7"}, {}), ({}, {"owner": "job 7"})]
)
async def test_an_owner_by_name_is_all_actors_of_a_client(
    world: World, clients: dict[str, str], options: dict[str, str]
) -> None:
    client = world.client(**clients)
    ana, bob = world.actors("ana", "bob")
    first = await ana(lambda: client.rlock("a", **options).acquire())
    second = await bob(lambda: client.rlock("a", **options).acquire(timeout=0))
    assert second.token == first.token
    assert await bob(client.rlock("a", **options).owned)


async def test_two_owners_by_name_exclude_each_other(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.rlock("a", owner="job 7").acquire())
    assert await ana(lambda: client.rlock("a", owner="job 8").acquire(timeout=0)) is None
    assert await ana(lambda: client.rlock("a").acquire(timeout=0)) is None


@pytest.mark.parametrize("owner", ["client", "job 7"])
async def test_equal_owners_of_two_clients_exclude_each_other(world: World, owner: str) -> None:
    ana = world.actor("ana")
    one, other = world.client().rlock("a", owner=owner), world.client().rlock("a", owner=owner)
    await ana(one.acquire)
    assert await ana(lambda: other.acquire(timeout=0)) is None


@without(FOREIGN)
async def test_the_owner_is_shown_as_a_label(world: World) -> None:
    client, ana = world.client(owner="team x"), world.actor("ana")
    hold = await ana(lambda: client.rlock("a").acquire())
    assert hold.owner == "team x"
    assert (await world.inspect(client, "a")).holders[0].owner == "team x"
    named = await ana(lambda: client.rlock("b", owner="job 7").acquire())
    assert named.owner == "job 7"


@needs(FAIR)
async def test_a_second_caller_of_one_owner_waits_for_the_first(world: World) -> None:
    client, other = world.client(owner="job 7"), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    held = await cy(lambda: other.rlock("a").acquire())
    first = ana.start(lambda: client.rlock("a").acquire())
    await world.in_queue(client, "a", 1)
    second = bob.start(lambda: client.rlock("a").acquire())
    assert await cy(lambda: client.rlock("a").acquire(timeout=0.1)) is None  # a third one times out alone
    assert len((await world.inspect(client, "a")).waiters) == 1
    assert not second.done()
    await cy(held.release)
    assert world.token(await first) == world.token(await second)


@timed
@needs(FAIR)
async def test_a_second_caller_asks_itself_when_the_first_gives_up(world: World) -> None:
    client, other = world.client(owner="job 7"), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    held = await cy(lambda: other.rlock("a").acquire())
    first = ana.start(lambda: client.rlock("a").acquire(timeout=world.short))
    await world.in_queue(client, "a", 1)
    second = bob.start(lambda: client.rlock("a").acquire(timeout=60))
    assert await first is None
    await world.in_queue(client, "a", 1)
    await cy(held.release)
    assert await second


@timed
async def test_a_lost_grant_is_lost_for_every_hold_of_it(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    holds = [await ana(lambda: client.rlock("a").acquire()) for _ in range(2)]
    await world.break_(client, holds[0])
    assert await ana(lambda: holds[1].lost.wait(60))
    for hold in holds:
        with pytest.raises(dibs.LockLost):
            await ana(hold.release)


@timed
async def test_after_a_loss_the_owner_asks_anew(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: client.rlock("a").acquire())
    await world.break_(client, hold)
    assert await ana(lambda: hold.lost.wait(60))
    again = await ana(lambda: client.rlock("a").acquire(timeout=0))
    assert again.token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    again.check()


async def test_lock_release_on_a_shared_object_means_ones_own(world: World) -> None:
    lock = world.client().rlock("a", owner="client")
    ana, bob = world.actors("ana", "bob")
    hers: Any = await ana(lock.acquire)
    await bob(lock.acquire)
    await bob(lock.release)
    hers.check()
    with pytest.raises(dibs.NotHeld):
        await bob(lock.release)
