"""Striped locks: a key has the same stripe everywhere; two numbers of stripes are never in use at once."""

from __future__ import annotations

import asyncio

import pytest

import dibs
from dibs.core.queue import FOREIGN, PERMITS
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.worlds import above_the_store, needs, timed, without

pytestmark = [needs(PERMITS), without(FOREIGN)]


def two_keys(stripes: int) -> tuple[str, str]:
    """Two keys of different stripes."""
    with dibs.connect("memory://keys") as client:
        striped = client.striped("keys", stripes)
        return next(("0", str(n)) for n in range(1, 1000) if striped.at(str(n)) is not striped.at("0"))


@above_the_store
async def test_one_object_per_stripe(world: World) -> None:
    striped = world.client().striped("stock", 10)
    assert striped.name == "stock"
    assert striped.at("user-7") is striped.at("user-7")
    assert len({id(striped.at(n)) for n in range(1000)}) == 10


@above_the_store
async def test_keys_are_text_bytes_or_numbers(world: World) -> None:
    striped = world.client().striped("stock", 1000)
    assert striped.at(42) is striped.at("42") is striped.at(b"42")
    assert striped.at("é") is striped.at("é".encode())
    for key in (None, 4.2, True, ("a",)):
        with pytest.raises(TypeError):
            striped.at(key)


@above_the_store
async def test_the_stripe_of_a_key_never_changes(world: World) -> None:
    # Fixed values: every version of dibs must choose the same stripe.
    striped = world.client().striped("stock", 1009)
    keys: dict[str | bytes | int, int] = {"user-7": 27, "": 0, 42: 439, b"\xff\x00": 755, "Zürich": 232, "0": 546}
    for key, stripe in keys.items():
        assert striped.at(key).name == f"stock#{stripe}"


@above_the_store
async def test_keys_of_one_stripe_exclude_each_other(world: World) -> None:
    one, other = world.client().striped("stock", 1), world.client().striped("stock", 1)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: one.at("x").acquire())
    assert await bob(lambda: other.at("y").acquire(timeout=0)) is None
    await ana(hold.release)
    assert await bob(lambda: other.at("y").acquire(timeout=0))


@above_the_store
async def test_keys_of_different_stripes_do_not(world: World) -> None:
    x, y = two_keys(8)
    one, other = world.client().striped("stock", 8), world.client().striped("stock", 8)
    ana, bob = world.actors("ana", "bob")
    assert await ana(lambda: one.at(x).acquire(timeout=0))
    assert await bob(lambda: other.at(x).acquire(timeout=0)) is None
    assert await bob(lambda: other.at(y).acquire(timeout=0))


async def test_tries_of_different_stripes_at_the_same_time_all_succeed(world: World) -> None:
    client = world.client()
    striped = client.striped("stock", 1000)
    keys = {striped.at(n).name: n for n in range(200)}
    actors = [world.actor(f"worker {n}") for n in range(8)]
    for _ in range(8):
        chosen = [keys.popitem()[1] for _ in actors]
        holds = await asyncio.gather(
            *(
                actor(lambda key=key: striped.at(key).acquire(timeout=0))
                for actor, key in zip(actors, chosen, strict=True)
            )
        )
        assert all(holds), "a free stripe was called busy"
        await asyncio.gather(*(actor(hold.release) for actor, hold in zip(actors, holds, strict=True)))
        await world.free(client, "stock")


async def test_another_number_of_stripes_is_refused_while_any_is_busy(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.striped("stock", 4).at("x").acquire())
    with pytest.raises(dibs.Mismatch):
        await bob(lambda: client.striped("stock", 5).at("y").acquire(timeout=0))
    with pytest.raises(dibs.Mismatch) as caught:
        await bob(lambda: other.striped("stock", 5).at("y").acquire(timeout=0))
    assert str(caught.value.store) in repr(other)
    await ana(hold.release)
    assert await bob(lambda: other.striped("stock", 5).at("y").acquire(timeout=0))


@above_the_store
async def test_the_name_of_stripes_is_not_a_locks(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.striped("stock", 4).at("x").acquire())
    with pytest.raises(dibs.Mismatch):
        await bob(lambda: client.lock("stock").acquire(timeout=0))
    await ana(hold.release)
    assert await bob(lambda: client.lock("stock").acquire(timeout=0))


@above_the_store
async def test_a_busy_stripe_leaves_no_guard_behind(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.striped("stock", 1).at("x").acquire())
    assert await bob(lambda: other.striped("stock", 1).at("x").acquire(timeout=0.1)) is None
    await ana(hold.release)
    await world.free(client, "stock")
    assert not await world.locks(client)


@above_the_store
async def test_all_takes_every_stripe(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.striped("stock", 4).all().acquire())
    assert len(hold.holds) == 4
    for key in range(20):
        assert await bob(lambda key=key: other.striped("stock", 4).at(key).acquire(timeout=0)) is None
    await ana(hold.release)
    assert await bob(lambda: other.striped("stock", 4).at(0).acquire(timeout=0))


@above_the_store
async def test_all_waits_for_a_busy_stripe_and_for_no_longer_than_its_timeout(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.striped("stock", 4).at("x").acquire())
    assert await bob(lambda: client.striped("stock", 4, timeout=0.1).all().acquire()) is None
    await ana(hold.release)
    assert await bob(lambda: client.striped("stock", 4, timeout=60).all().acquire())


async def test_nothing_stays_behind(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    x, y = two_keys(4)
    async with ana.entering(client.striped("stock", 4).at(x)), ana.entering(client.striped("stock", 4).at(y)):
        pass
    async with ana.entering(client.striped("stock", 3).all()):
        pass
    assert not await world.locks(client)


@timed
@above_the_store
async def test_a_stripe_is_lost_with_its_guard(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: client.striped("stock", 4).at("x").acquire())
    guard = (await world.inspect(client, "stock")).holders[0]
    await world(lambda: client.break_("stock", token=guard.token))
    await eventually(hold.lost.is_set)
    with pytest.raises(dibs.LockLost) as caught:
        hold.check()
    assert caught.value.reason == hold.lost_reason in ("broken", "standstill", "unreachable")


@above_the_store
async def test_there_is_at_least_one_stripe(world: World) -> None:
    for stripes in (0, -1):
        with pytest.raises(ValueError, match="stripes"):
            world.client().striped("stock", stripes)


@above_the_store
async def test_a_with_on_a_stripe_pairs_by_actor(world: World) -> None:
    striped = world.client().striped("stock", 1, timeout=60)
    order: list[str] = []

    async def work(name: str) -> None:
        async with world.actor(name).entering(striped.at(name)):
            order.append(name)
            await asyncio.sleep(0)
            assert order[-1] == name

    await asyncio.gather(*(work(name) for name in ("ana", "bob", "cy")))
    assert sorted(order) == ["ana", "bob", "cy"]
