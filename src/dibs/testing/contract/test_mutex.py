"""Every mutex: exclusion, order, timeouts. Tests in which kinds may differ run for each kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dibs
from dibs.core.queue import ATOMIC_TRY, FAIR, FOREIGN, LEASES, RECORDS
from dibs.testing.contract.harness import World
from dibs.testing.contract.worlds import above_the_store, every_form, foreign_kinds, needs, timed, without

Mutex = Callable[..., Any]


@foreign_kinds("lock", "rlock", "write", "plain", "fair", "expiring")
async def test_acquire_gives_a_hold(world: World, mutex: Mutex) -> None:
    client, ana = world.client(), world.actor("ana")
    before = datetime.now(UTC)
    hold = await ana(lambda: mutex(client, "a").acquire())
    assert (hold.name, hold.mode) == ("a", "exclusive")
    if (token := world.token(hold)) is not None:
        assert isinstance(token, int)
        assert not isinstance(token, bool)
    assert hold.acquired_at.utcoffset() == timedelta(0)
    assert before - timedelta(seconds=1) <= hold.acquired_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert (20 if LEASES in client._core.store.capabilities else 0) < hold.remaining <= 27  # 30 s less a tenth
    assert not hold.lost.is_set()
    assert not hold.revoke_requested.is_set()
    hold.check()


@every_form
async def test_actors_and_clients_exclude_each_other_until_the_release(world: World, mutex: Mutex) -> None:
    ana, bob = world.actors("ana", "bob")
    client = world.client()
    lock, others = mutex(client, "a"), mutex(world.client(), "a")
    hold = await ana(lock.acquire)
    for busy in (lock, others):
        assert await bob(lambda busy=busy: busy.acquire(timeout=0)) is None
    assert await bob(lambda: mutex(client, "b").acquire(timeout=0)), "another name is free"
    await ana(hold.release)
    theirs = await bob(lambda: others.acquire(timeout=0))
    assert theirs
    await ana(hold.release)
    assert await ana(lambda: lock.acquire(timeout=0)) is None, "a second release does nothing"


async def test_never_two_inside(world: World, mutex: Mutex) -> None:
    clients = [world.client(), world.client()]
    await world.never_two_inside(*(mutex(clients[n % 2], "a", timeout=60) for n in range(6)))


@every_form
@foreign_kinds("lock", "rlock")
@needs(FAIR)
async def test_who_came_first_is_served_first(world: World, mutex: Mutex) -> None:
    one, other = world.client(), world.client()
    ana = world.actor("ana")
    held = await ana(lambda: mutex(one, "a").acquire())
    waiting = []
    for n, client in enumerate([other, one, other, one]):
        lock = mutex(client, "a")
        waiting.append((world.actor(f"waiter {n}"), world.actor(f"waiter {n}").start(lock.acquire)))
        await world.in_queue(one, "a", n + 1)
    last = ana
    for actor, pending in waiting:
        assert not any(later.done() for _, later in waiting[waiting.index((actor, pending)) :])
        token = world.token(held)
        await last(held.release)
        held, last = await pending, actor
        assert token is None or held.token > token
    await last(held.release)
    await world.free(one, "a")


@pytest.mark.parametrize(
    "arguments", [{"timeout": 0}, {"blocking": False}, {"timeout": 0, "blocking": False}, {"timeout": timedelta(0)}]
)
@above_the_store
async def test_a_try_takes_what_is_free_and_gives_none_while_busy(world: World, arguments: dict[str, Any]) -> None:
    client = world.client()
    lock = client.lock("a")
    ana, bob = world.actors("ana", "bob")
    assert await ana(lambda: lock.acquire(**arguments))
    assert await bob(lambda: lock.acquire(**arguments)) is None
    assert not (await world.inspect(client, "a")).waiters


@timed
@needs(FAIR)
async def test_a_try_does_not_pass_those_who_wait(world: World) -> None:
    client, lone = world.client(), world.client(lease=2)
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: lone.lock("a").acquire())
    await world.in_queue(client, "a", 1)
    assert await cy(lambda: client.lock("a").acquire(timeout=0)) is None
    await ana(hold.release)
    assert await cy(lambda: client.lock("a").acquire(timeout=0)) is None
    assert await pending


@needs(ATOMIC_TRY)
async def test_a_try_that_fails_stands_in_nobodys_way(world: World) -> None:
    one, other = world.client(), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    for _ in range(10):
        held = await ana(lambda: one.lock("a").acquire())
        first = bob.start(lambda: other.lock("a").acquire(timeout=0))  # before or after the release
        await ana(held.release)
        second = await cy(lambda: one.lock("a").acquire(timeout=0))  # after it: only the first can be ahead
        (hold,) = [hold for hold in (await first, second) if hold is not None]
        await ana(hold.release)


async def test_acquire_gives_none_when_the_time_is_over(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    start = world.now()
    assert await bob(lambda: client.lock("a").acquire(timeout=0.2)) is None
    assert world.now() - start >= 0.19
    assert not (await world.inspect(client, "a")).waiters


@above_the_store
async def test_a_lock_has_a_default_timeout(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    assert await bob(lambda: client.lock("a", timeout=0.05).acquire()) is None
    assert await bob(lambda: client.lock("a", timeout=timedelta(seconds=0.05)).acquire()) is None


@above_the_store
@needs(FAIR)
async def test_the_timeout_of_acquire_overrides_that_of_the_lock(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: client.lock("a", timeout=0).acquire(timeout=None))
    await world.in_queue(client, "a", 1)
    await ana(hold.release)
    assert await pending


async def test_with_raises_when_the_time_is_over(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", owner="ana", info={"job": 7}).acquire())
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await bob.enter(client.lock("a", timeout=0.05))
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert isinstance(error, dibs.Busy)
    assert error.name == "a"
    assert error.store is not None
    assert error.store in repr(client)
    assert error.info is not None
    assert [holder.token for holder in error.info.holders] == [hold.token]
    if RECORDS in client._core.store.capabilities:
        assert error.info.holders[0].info == {"job": 7}


@above_the_store
@needs(FAIR)
@without(FOREIGN)
async def test_the_timeout_error_names_the_holder(world: World) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: client.lock("invoice:42", owner="ana").acquire())
    pending = bob.start(lambda: client.lock("invoice:42").acquire())
    await world.in_queue(client, "invoice:42", 1)
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await cy.enter(client.lock("invoice:42", timeout=0.1))
    text = str(caught.value)
    holder = (await world.inspect(client, "invoice:42")).holders[0]
    assert text.startswith(
        f'"invoice:42" on {caught.value.store}: not free after 0.1 s: held by ana@{holder.host} pid '
    )
    assert f"pid {holder.pid}" in text
    assert f"(token {hold.token}), 2 ahead of you" in text
    step = caught.value.step
    assert text.endswith("2 ahead of you" if step is None else f". Next: {step}")
    assert step is None or "invoice:42" in step
    assert not pending.done()


@timed
@needs(FAIR)
async def test_who_gives_up_frees_the_place(world: World) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: client.lock("a").acquire())
    gave_up = bob.start(lambda: client.lock("a").acquire(timeout=world.short))
    await world.in_queue(client, "a", 1)
    pending = cy.start(lambda: client.lock("a").acquire())
    await world.in_queue(client, "a", 2)
    assert await gave_up is None
    await ana(hold.release)
    assert await pending


@every_form
@foreign_kinds("lock", "rlock")
async def test_tokens_rise_strictly(world: World, mutex: Mutex) -> None:
    clients = [world.client(), world.client()]
    ana = world.actor("ana")
    tokens = []
    for n in range(10):
        hold = await ana(lambda n=n: mutex(clients[n % 2], "a").acquire())
        tokens.append(hold.token)
        await ana(hold.release)
    assert tokens == sorted(set(tokens))


async def test_locked_says_whether_anyone_holds(world: World) -> None:
    lock, others = world.client().lock("a"), world.client().lock("a")
    ana, bob = world.actors("ana", "bob")
    assert not await bob(others.locked)
    hold = await ana(lock.acquire)
    assert await bob(others.locked)
    await ana(hold.release)
    assert not await bob(others.locked)


@above_the_store
async def test_owned_says_whether_this_owner_holds(world: World) -> None:
    client = world.client()
    lock, others = client.lock("a"), world.client().lock("a")
    ana, bob = world.actors("ana", "bob")
    assert not await ana(lock.owned)
    hold = await ana(lock.acquire)
    assert await ana(lock.owned)
    assert await ana(client.lock("a").owned)
    assert not await ana(client.lock("b").owned)
    assert not await bob(lock.owned)
    assert not await ana(others.owned)
    await ana(hold.release)
    assert not await ana(lock.owned)


@above_the_store
async def test_a_holds_repr_shows_its_state(world: World) -> None:
    lock, ana = world.client().lock("a"), world.actor("ana")
    hold = await ana(lock.acquire)
    assert '"a" on ' in repr(lock)
    assert '"a" on ' in repr(hold)
    assert f"token {hold.token}" in repr(hold)
    assert "s left" in repr(hold)
    await ana(hold.release)
    assert "over" in repr(hold)
