"""What every mutex does: exclude, keep the order, give up in time. Each kind that can be one runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dibs
from dibs.core.line import ATOMIC_TRY, FAIR, LEASES, RECORDS
from dibs.testing.contract.harness import Actor, World
from dibs.testing.contract.worlds import needs

Mutex = Callable[..., Any]


async def test_acquire_gives_a_hold(world: World, mutex: Mutex) -> None:
    client, ana = world.client(), world.actor("ana")
    before = datetime.now(UTC)
    hold = await ana(lambda: mutex(client, "a").acquire())
    assert (hold.name, hold.mode) == ("a", "exclusive")
    assert isinstance(hold.token, int)
    assert not isinstance(hold.token, bool)
    assert hold.acquired_at.utcoffset() == timedelta(0)
    assert before - timedelta(seconds=1) <= hold.acquired_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert 0 < hold.remaining <= 27  # the lease of 30 s less the margin of a tenth
    assert not hold.lost.is_set()
    assert not hold.revoke_requested.is_set()
    hold.check()


@needs(LEASES)
async def test_a_hold_has_the_whole_lease(world: World, mutex: Mutex) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: mutex(client, "a").acquire())
    assert 20 < hold.remaining <= 27


async def test_actors_of_one_client_exclude_each_other(world: World, mutex: Mutex) -> None:
    lock = mutex(world.client(), "a")
    ana, bob = world.actors("ana", "bob")
    assert await ana(lock.acquire) is not None
    assert await bob(lambda: lock.acquire(timeout=0)) is None


async def test_clients_exclude_each_other(world: World, mutex: Mutex) -> None:
    ana, bob = world.actors("ana", "bob")
    one, other = mutex(world.client(), "a"), mutex(world.client(), "a")
    hold = await ana(one.acquire)
    assert await bob(lambda: other.acquire(timeout=0)) is None
    await ana(hold.release)
    assert await bob(lambda: other.acquire(timeout=0)) is not None


async def test_other_names_do_not_exclude(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    assert await ana(lambda: mutex(client, "a").acquire(timeout=0))
    assert await bob(lambda: mutex(client, "b").acquire(timeout=0))


async def test_never_two_inside(world: World, mutex: Mutex) -> None:
    clients = [world.client(), world.client()]
    inside: list[Actor] = []
    rounds = 0

    async def work(actor: Actor, lock: Any) -> None:
        nonlocal rounds
        for _ in range(5):
            async with actor.entering(lock):
                inside.append(actor)
                await asyncio.sleep(0)
                assert inside == [actor]
                inside.remove(actor)
                rounds += 1

    await asyncio.gather(*(work(world.actor(f"worker {n}"), mutex(clients[n % 2], "a", timeout=20)) for n in range(6)))
    assert rounds == 30


@needs(FAIR)
async def test_who_came_first_is_served_first(world: World, mutex: Mutex) -> None:
    one, other = world.client(), world.client()
    ana = world.actor("ana")
    held = await ana(lambda: mutex(one, "a").acquire())
    waiting = []
    for n, client in enumerate([other, one, other, one]):
        lock = mutex(client, "a")
        waiting.append((world.actor(f"waiter {n}"), world.actor(f"waiter {n}").start(lock.acquire)))
        await world.in_line(one, "a", n + 1)
    last = ana
    for actor, pending in waiting:
        assert not any(later.done() for _, later in waiting[waiting.index((actor, pending)) :])
        await last(held.release)
        held, last = await pending, actor
    await last(held.release)
    await world.free(one, "a")


async def test_a_try_gives_none_while_busy(world: World, mutex: Mutex) -> None:
    lock = mutex(world.client(), "a")
    ana, bob = world.actors("ana", "bob")
    await ana(lock.acquire)
    assert await bob(lambda: lock.acquire(timeout=0)) is None
    assert await bob(lambda: lock.acquire(blocking=False)) is None
    assert await bob(lambda: lock.acquire(blocking=False, timeout=0)) is None
    assert await bob(lambda: lock.acquire(timeout=timedelta(0))) is None


async def test_a_try_takes_what_is_free(world: World, mutex: Mutex) -> None:
    lock = mutex(world.client(), "a")
    ana = world.actor("ana")
    hold = await ana(lambda: lock.acquire(blocking=False))
    await ana(hold.release)
    assert await ana(lambda: lock.acquire(timeout=0))


async def test_a_try_leaves_nobody_in_line(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: mutex(client, "a").acquire())
    await bob(lambda: mutex(client, "a").acquire(timeout=0))
    assert not (await world.inspect(client, "a")).waiters


@needs(FAIR)
async def test_a_try_does_not_pass_those_who_wait(world: World, mutex: Mutex) -> None:
    client, lone = world.client(), world.client(lease=2)
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: mutex(client, "a").acquire())
    pending = bob.start(lambda: mutex(lone, "a").acquire())
    await world.in_line(client, "a", 1)
    assert await cy(lambda: mutex(client, "a").acquire(timeout=0)) is None
    await ana(hold.release)
    assert await cy(lambda: mutex(client, "a").acquire(timeout=0)) is None
    assert await pending


@needs(ATOMIC_TRY)
async def test_a_try_that_fails_stands_in_nobodys_way(world: World, mutex: Mutex) -> None:
    one, other = world.client(), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    for _ in range(10):
        held = await ana(lambda: mutex(one, "a").acquire())
        first = bob.start(lambda: mutex(other, "a").acquire(timeout=0))  # before the release or after it
        await ana(held.release)
        second = await cy(lambda: mutex(one, "a").acquire(timeout=0))  # after it: nobody but the first can be ahead
        (hold,) = [hold for hold in (await first, second) if hold is not None]
        await ana(hold.release)


async def test_acquire_gives_none_when_the_time_is_over(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: mutex(client, "a").acquire())
    start = asyncio.get_running_loop().time()
    assert await bob(lambda: mutex(client, "a").acquire(timeout=0.2)) is None
    assert asyncio.get_running_loop().time() - start >= 0.19
    assert not (await world.inspect(client, "a")).waiters


async def test_a_lock_has_a_default_time_out(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: mutex(client, "a").acquire())
    assert await bob(lambda: mutex(client, "a", timeout=0.05).acquire()) is None
    assert await bob(lambda: mutex(client, "a", timeout=timedelta(seconds=0.05)).acquire()) is None


@needs(FAIR)
async def test_acquires_time_out_counts_for_more_than_the_locks(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: mutex(client, "a").acquire())
    pending = bob.start(lambda: mutex(client, "a", timeout=0).acquire(timeout=None))
    await world.in_line(client, "a", 1)
    await ana(hold.release)
    assert await pending


async def test_with_raises_when_the_time_is_over(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: mutex(client, "a", owner="ana").acquire())
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await bob.enter(mutex(client, "a", timeout=0.05))
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert isinstance(error, dibs.Busy)
    assert error.name == "a"
    assert error.store is not None
    assert error.store in repr(client)
    assert error.info is not None
    assert [holder.token for holder in error.info.holders] == [hold.token]


@needs(RECORDS)
async def test_the_time_out_carries_the_info_of_who_is_in_the_way(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: mutex(client, "a", info={"job": 7}).acquire())
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await bob.enter(mutex(client, "a", timeout=0.05))
    assert caught.value.info is not None
    assert caught.value.info.holders[0].info == {"job": 7}


@needs(FAIR)
async def test_the_time_out_says_who_is_in_the_way(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: mutex(client, "invoice:42", owner="ana").acquire())
    pending = bob.start(lambda: mutex(client, "invoice:42").acquire())
    await world.in_line(client, "invoice:42", 1)
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await cy.enter(mutex(client, "invoice:42", timeout=0.1))
    text = str(caught.value)
    holder = (await world.inspect(client, "invoice:42")).holders[0]
    assert text.startswith(
        f'"invoice:42" on {caught.value.store}: not free after 0.1 s: held by ana@{holder.host} pid '
    )
    assert f"pid {holder.pid}" in text
    assert f"(token {hold.token}), 2 ahead of you" in text
    assert text.endswith(". Next: dibs show invoice:42")
    assert not pending.done()


@needs(FAIR)
async def test_who_gives_up_frees_the_place(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: mutex(client, "a").acquire())
    gave_up = bob.start(lambda: mutex(client, "a").acquire(timeout=1.0))
    await world.in_line(client, "a", 1)
    pending = cy.start(lambda: mutex(client, "a").acquire())
    await world.in_line(client, "a", 2)
    assert await gave_up is None
    await ana(hold.release)
    assert await pending


async def test_tokens_rise_strictly(world: World, mutex: Mutex) -> None:
    clients = [world.client(), world.client()]
    ana = world.actor("ana")
    tokens = []
    for n in range(10):
        hold = await ana(lambda n=n: mutex(clients[n % 2], "a").acquire())
        tokens.append(hold.token)
        await ana(hold.release)
    assert tokens == sorted(set(tokens))


@needs(FAIR)
async def test_tokens_rise_while_others_wait(world: World, mutex: Mutex) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    first = await ana(lambda: mutex(client, "a").acquire())
    pending = bob.start(lambda: mutex(client, "a").acquire())
    await world.in_line(client, "a", 1)
    await ana(first.release)
    assert (await pending).token > first.token


async def test_locked_says_whether_anyone_holds(world: World, mutex: Mutex) -> None:
    lock, others = mutex(world.client(), "a"), mutex(world.client(), "a")
    ana, bob = world.actors("ana", "bob")
    assert not await bob(others.locked)
    hold = await ana(lock.acquire)
    assert await bob(others.locked)
    await ana(hold.release)
    assert not await bob(others.locked)


async def test_owned_says_whether_this_owner_holds(world: World, mutex: Mutex) -> None:
    client = world.client()
    lock, others = mutex(client, "a"), mutex(world.client(), "a")
    ana, bob = world.actors("ana", "bob")
    assert not await ana(lock.owned)
    hold = await ana(lock.acquire)
    assert await ana(lock.owned)
    assert await ana(mutex(client, "a").owned)
    assert not await ana(mutex(client, "b").owned)
    assert not await bob(lock.owned)
    assert not await ana(others.owned)
    await ana(hold.release)
    assert not await ana(lock.owned)


async def test_a_holds_repr_shows_its_state(world: World, mutex: Mutex) -> None:
    lock, ana = mutex(world.client(), "a"), world.actor("ana")
    hold = await ana(lock.acquire)
    assert '"a" on ' in repr(hold)
    assert f"token {hold.token}" in repr(hold)
    assert "s left" in repr(hold)
    await ana(hold.release)
    assert "over" in repr(hold)


async def test_a_locks_repr_names_it(world: World, mutex: Mutex) -> None:
    assert '"invoice:42" on ' in repr(mutex(world.client(), "invoice:42"))
