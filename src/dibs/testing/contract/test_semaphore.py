"""The semaphore: permits, several at once; first come, first served, even if a later request would fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR, FOREIGN, PERMITS
from dibs.testing.contract.harness import Actor, World, eventually
from dibs.testing.contract.worlds import above_the_store, every_form, needs, timed, without

pytestmark = needs(PERMITS)


async def test_as_many_as_there_are_permits(world: World) -> None:
    one, other = world.client().semaphore("a", 3), world.client().semaphore("a", 3)
    ana, bob = world.actors("ana", "bob")
    holds = [await ana(lambda: one.acquire(timeout=0)) for _ in range(2)]
    assert await bob(lambda: other.acquire(timeout=0))
    assert await bob(lambda: other.acquire(timeout=0)) is None
    assert all(hold.mode == "shared" for hold in holds)
    await ana(holds[0].release)
    assert await bob(lambda: other.acquire(timeout=0))


async def test_several_permits_at_once(world: World) -> None:
    semaphore = world.client().semaphore("a", 5)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: semaphore.acquire(3))
    assert await bob(lambda: semaphore.acquire(3, timeout=0)) is None
    assert await bob(lambda: semaphore.acquire(n=2, timeout=0))
    await ana(hold.release)
    assert await ana(lambda: semaphore.acquire(3, timeout=0))


@above_the_store
async def test_all_permits_are_exclusive(world: World) -> None:
    semaphore, ana = world.client().semaphore("a", 2), world.actor("ana")
    hold = await ana(lambda: semaphore.acquire(2))
    assert hold.mode == "exclusive"


@every_form
@needs(FAIR)
@without(FOREIGN)
async def test_the_head_of_the_queue_is_not_passed(world: World) -> None:
    client = world.client()
    semaphore = client.semaphore("a", 3)
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: semaphore.acquire(2))
    big = bob.start(lambda: semaphore.acquire(3))
    await world.in_queue(client, "a", 1)
    assert await cy(lambda: semaphore.acquire(1, timeout=0)) is None
    small = cy.start(lambda: semaphore.acquire(1))
    await world.in_queue(client, "a", 2)
    await ana(hold.release)
    taken = await big
    assert not small.done()
    await bob(taken.release)
    assert await small


@needs(FAIR)
async def test_one_release_frees_all_who_fit(world: World) -> None:
    client = world.client()
    semaphore = client.semaphore("a", 3)
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: semaphore.acquire(3))
    pending = [actor.start(semaphore.acquire) for actor in (bob, cy)]
    await world.in_queue(client, "a", 2)
    await ana(hold.release)
    for waiter in pending:
        (await waiter).check()


async def test_never_more_inside_than_permits(world: World) -> None:
    clients = [world.client(), world.client()]
    inside, most = 0, 0

    async def work(actor: Actor, semaphore: Any) -> None:
        nonlocal inside, most
        for _ in range(5):
            async with actor.entering(semaphore):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

    await asyncio.gather(
        *(work(world.actor(f"worker {n}"), clients[n % 2].semaphore("a", 3, timeout=60)) for n in range(8))
    )
    assert most <= 3


@timed
async def test_grants_that_are_not_renewed_end_by_themselves(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    semaphore = client.semaphore("a", 2, lease=world.short, renew=False)
    assert await ana(semaphore.acquire)
    assert await ana(semaphore.acquire)
    assert await ana(lambda: semaphore.acquire(timeout=0)) is None
    assert await ana(lambda: semaphore.acquire(timeout=60))


@above_the_store
async def test_permits_that_can_never_be_held_are_refused_at_once(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for n in (4, 1000, 0, -1):
        with pytest.raises(ValueError, match="permits: that can never be granted"):
            await ana(lambda n=n: client.semaphore("a", 3).acquire(n))
    for wrong in (True, "1", 1.0, None):
        with pytest.raises(TypeError):
            await ana(lambda wrong=wrong: client.semaphore("a", 3).acquire(wrong))
        with pytest.raises(TypeError):
            client.semaphore("a", 3).permits(wrong)
    for n in (4, 0, -1):
        with pytest.raises(ValueError, match="can never be granted"):
            client.semaphore("a", 3).permits(n)
    await world.free(client, "a")


@above_the_store
@without(FOREIGN)
async def test_a_number_of_permits_is_a_lock(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    semaphore = client.semaphore("a", 5, timeout=30)
    two = semaphore.permits(2)
    assert two.name == "a"
    async with ana.entering(two) as hold:
        assert hold.mode == "shared"
        (holder,) = (await bob(lambda: other.inspect("a"))).holders
        assert (holder.weight, holder.token) == (2, hold.token)
        assert await ana(two.owned)
        assert await bob(two.locked)
        assert await bob(lambda: other.semaphore("a", 5).permits(4).acquire(timeout=0)) is None
        with pytest.raises(dibs.AcquireTimeout):
            await bob.enter(other.semaphore("a", 5, timeout=0).permits(4))
        with pytest.raises(dibs.NotHeld):
            await ana(semaphore.release)
    assert await ana(two.acquire)
    await ana(two.release)
    assert (await ana(lambda: semaphore.permits(5).acquire())).mode == "exclusive"


@above_the_store
@without(FOREIGN)
async def test_permits_of_several_locks_add_up(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    semaphore = client.semaphore("a", 5)
    several = world.multi(semaphore.permits(3), semaphore, client.lock("b"))
    async with ana.entering(several) as hold:
        assert [part.name for part in hold.holds] == ["a", "a", "b"]
        (holder,) = (await ana(lambda: client.inspect("a"))).holders
        assert holder.weight == 4
    with pytest.raises(ValueError, match="can never be granted"):
        await ana(world.multi(semaphore.permits(3), semaphore.permits(3)).acquire)


async def test_another_size_while_busy_is_a_mismatch(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.semaphore("a", 3, **world.shown_permits).acquire())
    another = other.semaphore("a", 4, **world.shown_permits)
    for timeout in (0, 5):
        with pytest.raises(dibs.Mismatch) as caught:
            await bob(lambda timeout=timeout: another.acquire(timeout=timeout))
        assert caught.value.name == "a"
        assert str(caught.value.store) in repr(other)
    hold.check()
    assert len((await world.inspect(client, "a")).holders) == 1
    await ana(hold.release)
    if not world.is_foreign:  # there the size stays
        assert await bob(lambda: another.acquire(timeout=0))


async def test_onlookers_see_weights_and_capacity(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.semaphore("a", 5, **world.shown_permits).acquire(2))
    info = await world.inspect(client, "a")
    weights = [1, 1] if world.is_foreign else [2]
    assert (info.kind, info.capacity, [holder.weight for holder in info.holders]) == ("semaphore", 5, weights)


@timed
@above_the_store
@without(FOREIGN)
async def test_a_lost_permit_is_one_of_many(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    semaphore = client.semaphore("a", 2)
    first, second = await ana(semaphore.acquire), await ana(semaphore.acquire)
    await world.break_(client, second)
    await eventually(second.lost.is_set)
    first.check()
    assert await ana(lambda: semaphore.acquire(timeout=0))
