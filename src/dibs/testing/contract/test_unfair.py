"""`fair=False`: an unfair waiter gets the lock only if the queue is empty; different kinds on one name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.core.queue import ATOMIC_TRY, FAIR, FOREIGN, PERMITS, RECORDS, RW
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import above_the_store, every_form, needs, timed, without

Mutex = Callable[..., Any]


async def asks(client: Any) -> None:
    """Wait until the client has sent its request: other clients do not see unfair waiters."""
    await eventually(lambda: "0 held or asked for" not in repr(client))


async def test_it_excludes_and_leaves_nothing(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", fair=False).acquire())
    assert await bob(lambda: client.lock("a", fair=False).acquire(timeout=0)) is None
    assert await bob(lambda: client.lock("a", fair=False).acquire(timeout=0.1)) is None
    await ana(hold.release)
    assert not await world.locks(client)


@needs(ATOMIC_TRY, RECORDS)
async def test_it_is_not_in_the_queue(world: World) -> None:
    client, outside = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    bob.start(lambda: outside.lock("a", fair=False).acquire())
    await asks(outside)
    assert not (await world.inspect(client, "a")).waiters


async def test_it_is_in_the_queue_only_while_it_tries_and_a_release_wakes_it(world: World) -> None:
    client, outside = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: outside.lock("a", fair=False).acquire(timeout=60))
    await asks(outside)
    if RECORDS in client._core.store.capabilities:
        await world.in_queue(client, "a", 0)
    assert not pending.done()
    await ana(hold.release)
    assert await pending


@timed
async def test_an_expired_holder_frees_it(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a", lease=0.5, renew=False).acquire())
    assert await bob(lambda: client.lock("a", fair=False).acquire(timeout=60))


@every_form
@needs(FAIR, RECORDS)
async def test_it_does_not_pass_the_queue(world: World) -> None:
    client, outside = world.client(), world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: client.lock("a").acquire())
    barger = cy.start(lambda: outside.lock("a", fair=False).acquire(timeout=60))
    await asks(outside)
    pending = bob.start(lambda: client.lock("a").acquire())

    async def bob_waits() -> bool:  # an unfair waiter may be listed while it tries
        return "bob" in [waiter.thread for waiter in (await world.inspect(client, "a")).waiters]

    await eventually(bob_waits)
    await ana(hold.release)
    theirs = await pending
    assert not barger.done()
    await bob(theirs.release)
    assert await barger


@needs(FAIR)
@without(FOREIGN)
async def test_never_two_inside_fair_or_not(world: World) -> None:
    clients = [world.client(), world.client()]
    await world.never_two_inside(*(clients[n % 2].lock("a", timeout=60, fair=n % 3 == 0) for n in range(6)))
    await world.free(clients[0], "a")


KINDS: dict[str, Mutex] = {
    "lock": lambda client: client.lock("a"),
    "read": lambda client: client.rwlock("a").read,
    "write": lambda client: client.rwlock("a").write,
    "semaphore of 1": lambda client: client.semaphore("a", 1),
    "semaphore of 2": lambda client: client.semaphore("a", 2),
}
NEEDED = {"lock": [], "read": [RW], "write": [RW], "semaphore of 1": [PERMITS], "semaphore of 2": [PERMITS]}


@above_the_store
@without(FOREIGN)
@pytest.mark.parametrize("there", [pytest.param(there, marks=needs(*NEEDED[there])) for there in KINDS])
async def test_another_kind_or_size_on_a_busy_name_is_a_mismatch(world: World, there: str) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    has = client._core.store.capabilities
    for wanted in [kind for kind in KINDS if kind != there and has.issuperset(NEEDED[kind])]:
        if {there, wanted} == {"read", "write"}:
            continue
        hold = await ana(lambda: KINDS[there](client).acquire())
        with pytest.raises(dibs.Mismatch) as caught:
            await bob(lambda wanted=wanted: KINDS[wanted](other).acquire(timeout=0))
        assert caught.value.name == "a"
        hold.check()
        info = await world.inspect(client, "a")
        assert (len(info.holders), len(info.waiters)) == (1, 0)
        await ana(hold.release)
        theirs = await bob(lambda wanted=wanted: KINDS[wanted](other).acquire(timeout=0))
        await bob(theirs.release)


@above_the_store
async def test_lock_and_rlock_are_one_kind(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    assert await bob(lambda: client.rlock("a").acquire(timeout=0)) is None


@above_the_store
@needs(PERMITS)
async def test_a_mismatch_is_said_to_who_would_wait_too(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    with pytest.raises(dibs.Mismatch):
        await bob.enter(client.semaphore("a", 2))
    with pytest.raises(dibs.Mismatch):
        await bob(lambda: client.semaphore("a", 2, fair=False).acquire(timeout=60))
