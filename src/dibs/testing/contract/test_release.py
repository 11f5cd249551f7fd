"""Release: which hold `release` and the end of a `with` end, from which thread or task, and lost holds."""

# ruff: noqa: PT012  (the tests are about a `with` that an error ends)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.core.queue import PERMITS
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import above_the_store, every_form, foreign_kinds, needs, timed

Mutex = Callable[..., Any]
whose_holders_are_shown = foreign_kinds("lock", "rlock", "write", "plain", "fair", "expiring")


async def lose(world: World, client: Any, hold: Any) -> None:
    """Break the hold, and wait until its holder notices."""
    await world.break_(client, hold)
    await eventually(hold.lost.is_set)


@every_form
@whose_holders_are_shown
async def test_releasing_what_was_taken_away_a_moment_ago_says_so(world: World, mutex: Mutex) -> None:
    """The holder has not noticed yet: the store reports the loss when the claim leaves."""
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: mutex(client, "a", lease=30).acquire())
    await world.break_(world.client(), hold)
    theirs = await bob(lambda: mutex(client, "a").acquire(timeout=0))
    with pytest.raises(dibs.LockLost, match="lost") as caught:
        await ana(hold.release)
    assert caught.value.reason == hold.lost_reason == "broken"
    assert hold.lost.is_set()
    assert await bob(lambda: mutex(client, "a").locked()), "the next hold is not affected"
    await bob(theirs.release)


@above_the_store
async def test_another_actor_may_release_a_hold(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    await bob(hold.release)
    assert not await ana(client.lock("a").owned)
    assert await bob(lambda: client.lock("a").acquire(timeout=0))


@above_the_store
async def test_a_released_hold_is_not_lost_but_fails_its_check(world: World) -> None:
    ana, client = world.actor("ana"), world.client()
    hold = await ana(lambda: client.lock("a").acquire())
    await ana(hold.release)
    assert not hold.lost.is_set()
    assert hold.remaining == 0
    with pytest.raises(dibs.LockLost) as caught:
        hold.check()
    assert caught.value.reason is hold.lost_reason is None


@timed
@whose_holders_are_shown
async def test_releasing_a_lost_hold_does_not_touch_its_successor(world: World, mutex: Mutex) -> None:
    client, other = world.client(lease=world.short), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: mutex(client, "a").acquire())
    await lose(world, other, hold)
    assert await bob(lambda: mutex(other, "a").acquire(timeout=0))
    with pytest.raises(dibs.LockLost) as caught:
        await ana(hold.release)
    assert caught.value.name == "a"
    assert str(caught.value.store) in repr(client)
    assert await cy(lambda: mutex(other, "a").acquire(timeout=0)) is None


@above_the_store
async def test_lock_release_without_a_hold_is_an_error(world: World) -> None:
    lock, ana = world.client().lock("a"), world.actor("ana")
    with pytest.raises(dibs.NotHeld) as caught:
        await ana(lock.release)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.name == "a"
    await ana(lock.acquire)
    await ana(lock.release)
    with pytest.raises(dibs.NotHeld):
        await ana(lock.release)


@above_the_store
async def test_lock_release_of_another_actor_is_an_error_and_frees_nothing(world: World) -> None:
    lock = world.client().lock("a")
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lock.acquire)
    with pytest.raises(dibs.NotHeld):
        await bob(lock.release)
    hold.check()
    assert await bob(lambda: lock.acquire(timeout=0)) is None


@above_the_store
async def test_lock_release_knows_only_what_was_taken_through_it(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    with pytest.raises(dibs.NotHeld):
        await ana(lambda: client.lock("a").release())
    hold.check()


@timed
@above_the_store
async def test_lock_release_of_a_lost_hold_says_so_and_spares_the_successor(world: World) -> None:
    # One lock object: ana's hold is lost, bob acquires through the same object, then ana's `finally` releases.
    lock, other = world.client(lease=world.short).lock("a"), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lock.acquire)
    await lose(world, other, hold)
    theirs = await bob(lambda: lock.acquire(timeout=60))
    with pytest.raises(dibs.LockLost):
        await ana(lock.release)
    theirs.check()
    assert await cy(lambda: other.lock("a").acquire(timeout=0)) is None


@above_the_store
@needs(PERMITS)
async def test_lock_release_means_the_latest(world: World) -> None:
    semaphore, ana = world.client().semaphore("a", 3), world.actor("ana")
    first = await ana(semaphore.acquire)
    second = await ana(semaphore.acquire)
    await ana(semaphore.release)
    first.check()
    assert second.remaining == 0


@above_the_store
async def test_with_on_a_hold_gives_it_back(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    async with ana.entering(hold) as entered:
        assert entered is hold
    assert await bob(lambda: client.lock("a").acquire(timeout=0))


@above_the_store
async def test_a_hold_released_inside_its_with_is_fine(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    async with ana.entering(client.lock("a")) as hold:
        await ana(hold.release)
    await world.free(client, "a")


@above_the_store
async def test_a_with_may_end_on_another_actor(world: World) -> None:
    lock = world.client().lock("a")
    ana, bob = world.actors("ana", "bob")
    await ana.enter(lock)
    await bob.leave(lock)
    assert await bob(lambda: lock.acquire(timeout=0))


@above_the_store
@needs(PERMITS)
async def test_withs_on_one_object_pair_by_actor(world: World) -> None:
    semaphore = world.client().semaphore("a", 2)
    ana, bob = world.actors("ana", "bob")
    hers = await ana.enter(semaphore)
    his = await bob.enter(semaphore)
    await ana.leave(semaphore)
    assert hers.remaining == 0
    his.check()
    await bob.leave(semaphore)
    assert his.remaining == 0


@above_the_store
@needs(PERMITS)
async def test_a_with_that_ends_elsewhere_with_several_open_is_an_error(world: World) -> None:
    semaphore = world.client().semaphore("a", 2)
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hers, his = await ana.enter(semaphore), await bob.enter(semaphore)
    with pytest.raises(RuntimeError, match="object of its own"):
        await cy.leave(semaphore)
    hers.check()
    his.check()
    await ana.leave(semaphore)
    await bob.leave(semaphore)


@above_the_store
async def test_leaving_a_with_that_nobody_entered_is_an_error(world: World) -> None:
    with pytest.raises(dibs.NotHeld):
        await world.actor("ana").leave(world.client().lock("a"))


@above_the_store
@needs(PERMITS)
async def test_nested_withs_end_inside_out(world: World) -> None:
    semaphore, ana = world.client().semaphore("a", 2), world.actor("ana")
    async with ana.entering(semaphore) as outer:
        async with ana.entering(semaphore) as inner:
            outer.check()
        assert inner.remaining == 0
        outer.check()


@above_the_store
async def test_the_bodys_exception_stays(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    with pytest.raises(ZeroDivisionError) as caught:
        async with ana.entering(client.lock("a")):
            _ = 1 // 0
    assert not getattr(caught.value, "__notes__", [])
    await world.free(client, "a")


@timed
@above_the_store
async def test_a_failing_release_is_a_note_on_the_bodys_exception(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    with pytest.raises(ZeroDivisionError) as caught:
        async with ana.entering(client.lock("a")) as hold:
            await lose(world, client, hold)
            _ = 1 // 0
    assert any("lost" in note and '"a" on ' in note for note in caught.value.__notes__)
