"""Stores whose claims live with a session: the effect of a lock's own `lease` and `renew`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.core.queue import LEASES, PERMITS, RW
from dibs.testing.contract.harness import World, eventually, passed
from dibs.testing.contract.worlds import above_the_store, needs, timed, without

Mutex = Callable[..., Any]
Making = Callable[..., Any]

pytestmark = without(LEASES)

MAKING: dict[str, Making] = {
    "lock": lambda client, **options: client.lock("a", **options),
    "rlock": lambda client, **options: client.rlock("a", **options),
    "rwlock": lambda client, **options: client.rwlock("a", **options),
    "semaphore": lambda client, **options: client.semaphore("a", 3, **options),
    "striped": lambda client, **options: client.striped("a", 3, **options),
    "election": lambda client, **options: client.election("a", **options).lead(),
}


NEEDED = {"rwlock": RW, "semaphore": PERMITS, "striped": PERMITS}


@above_the_store
async def test_a_shorter_lease_that_is_to_be_renewed_is_refused_when_the_lock_is_made(world: World) -> None:
    client = world.client(lease=20)
    has = client._core.store.capabilities
    for making in [make for kind, make in MAKING.items() if kind not in NEEDED or NEEDED[kind] in has]:
        with pytest.raises(dibs.Unsupported) as caught:
            making(client, lease=19)
        assert (caught.value.name, caught.value.store) == ("a", client._core.shown)
        for word in ("19 s", "20 s", "connect with lease=19", "renew=False", "max_hold=19"):
            assert word in str(caught.value)
        for had in (20, 40):
            assert making(client, lease=had) is not None


@timed
async def test_a_longer_lease_is_an_upper_bound(world: World, mutex: Mutex) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: mutex(client, "a", lease=20).acquire())
    assert 0 < hold.remaining <= 18
    await ana(hold.release)


@timed
async def test_a_shorter_one_that_is_not_renewed_is_ended_here(world: World, mutex: Mutex) -> None:
    """The session continues, and with it the other holds."""
    client, other = world.client(lease=20), world.client()
    ana, bob = world.actors("ana", "bob")
    lasting = await ana(lambda: client.lock("b").acquire())
    lost: list[Any] = []
    hold = await ana(lambda: mutex(client, "a", lease=0.5, renew=False, on_lost=lost.append).acquire())
    assert hold.remaining <= 0.45  # the lease less its margin
    pending = bob.start(lambda: mutex(other, "a").acquire(timeout=60))
    assert await ana(lambda: hold.lost.wait(60))
    with pytest.raises(dibs.LockLost, match="renew=False") as caught:
        hold.check()
    assert caught.value.reason == "expired"
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    assert (await pending).token > hold.token
    await eventually(lambda: lost)
    assert [(one.name, one.token) for one in lost] == [("a", hold.token)]
    lasting.check()


@timed
async def test_one_that_is_not_renewed_lives_by_the_session_until_then(world: World, mutex: Mutex) -> None:
    client, other = world.client(lease=world.short), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: mutex(client, "a", lease=30, renew=False).acquire())
    await passed(2 * world.short)
    hold.check()
    assert await bob(lambda: mutex(other, "a").acquire(timeout=0)) is None
    await ana(hold.release)


@timed
async def test_without_a_lease_of_its_own_it_ends_with_the_clients(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: client.lock("a", renew=False).acquire())
    assert await ana(lambda: hold.lost.wait(60))


@timed
@pytest.mark.parametrize(("lease", "max_hold", "least"), [(20, 0.3, 0.3), (0.5, 20, 0.45)])
async def test_the_shorter_of_lease_and_max_hold_counts(
    world: World, lease: float, max_hold: float, least: float
) -> None:
    client, ana = world.client(lease=30), world.actor("ana")
    hold = await ana(lambda: client.lock("a", lease=lease, renew=False, max_hold=max_hold).acquire())
    assert hold.remaining <= least
    assert await ana(lambda: hold.lost.wait(60))
    await world.free(client, "a")


@timed
async def test_who_re_enters_gets_no_longer_than_the_first(world: World) -> None:
    client, ana = world.client(lease=30), world.actor("ana")
    first = await ana(lambda: client.rlock("a", lease=4, renew=False).acquire())
    await eventually(lambda: first.remaining < 3)
    second = await ana(lambda: client.rlock("a").acquire())
    assert second.token == first.token
    assert second.remaining <= 3
    assert await ana(lambda: second.lost.wait(60))
    assert first.lost.is_set()
    await world.free(client, "a")


@timed
@needs(PERMITS)
async def test_a_stripe_ends_and_takes_its_guard_along(world: World) -> None:
    client, ana = world.client(lease=30), world.actor("ana")
    hold = await ana(lambda: client.striped("stock", 4, lease=0.5, renew=False).at("x").acquire())
    assert hold.remaining <= 0.45
    assert await ana(lambda: hold.lost.wait(60))
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)

    async def nothing_stays() -> bool:
        return not await world.locks(client)

    await eventually(nothing_stays)
