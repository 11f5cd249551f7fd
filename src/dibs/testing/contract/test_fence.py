"""Fences: once an exclusive token is admitted, every lower token is stale."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

import dibs
from dibs.core.queue import CELLS, FOREIGN, RW
from dibs.testing.contract.harness import World
from dibs.testing.contract.worlds import above_the_store, every_form, needs, timed, without

pytestmark = needs(CELLS)
LARGEST = 2**63 - 1


async def stale(world: World, fence: Any, token: int, **how: Any) -> dibs.StaleToken:
    with pytest.raises(dibs.StaleToken) as caught:
        await world(lambda: fence.admit(token, **how))
    return caught.value


async def test_a_token_is_stale_once_a_higher_one_was_admitted(world: World) -> None:
    client, other = world.client(), world.client()
    fence = client.fence("stock")
    assert fence.name == "stock"
    assert repr(fence).endswith(f'Fence "stock" on {client._core.shown}>')
    assert await world(lambda: fence.admit(5)) is None
    await world(lambda: other.fence("stock").admit(9))
    error = await stale(world, fence, 8)
    assert (error.name, error.store) == ("stock", client._core.shown)
    assert "token 8 is stale: 9 was admitted before" in str(error)
    assert "a later holder has written since" in str(error)


@above_the_store
async def test_a_token_is_admitted_as_often_as_it_comes(world: World) -> None:
    client, other = world.client(), world.client()
    for one in (client, other, client):
        await world(lambda one=one: one.fence("a").admit(5))
    for token in (4, 1):
        await stale(world, other.fence("a"), token)
    await world(lambda: other.fence("a").admit(5))  # the stale tokens changed nothing


async def test_readers_are_compared_with_writers_only(world: World) -> None:
    client, other = world.client(), world.client()
    fence = client.fence("a")
    for token in (7, 5, 6):
        await world(lambda token=token: fence.admit(token, shared=True))
    await world(lambda: other.fence("a").admit(4))
    await world(lambda: fence.admit(4, True))
    await world(lambda: other.fence("a").admit(8))
    error = await stale(world, fence, 7, shared=True)
    assert "8 was admitted before" in str(error)
    await world(lambda: fence.admit(9, shared=True))
    await stale(world, fence, 7)
    await world(lambda: other.fence("a").admit(8))


async def test_a_fence_outlives_its_clients(world: World) -> None:
    onlooker = world.client()
    for token in (3, 5, 7):
        client = world.connect()
        await world(lambda client=client, token=token: client.fence("a").admit(token))
        await stale(world, client.fence("a"), token - 1)
        await world(client.close)
        with pytest.raises(dibs.Closed):
            await world(lambda client=client: client.fence("a").admit(9))
    await stale(world, onlooker.fence("a"), 6)


async def test_the_tokens_of_holders_are_admitted_in_their_order(world: World) -> None:
    """The fence has the name of its lock."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    first = await ana(lambda: client.lock("a").acquire())
    await ana(lambda: client.fence("a").admit(first.token))
    await ana(first.release)
    second = await bob(lambda: other.lock("a").acquire())
    await ana(lambda: client.fence("a").admit(first.token))  # no higher token was admitted yet
    await bob(lambda: other.fence("a").admit(second.token))
    await stale(world, client.fence("a"), first.token)
    await bob(lambda: other.fence("a").admit(second.token))
    await bob(second.release)


@timed
@above_the_store
async def test_a_holder_that_was_taken_away_is_stale(world: World) -> None:
    client, other = world.client(lease=world.short), world.client()
    ana, bob = world.actors("ana", "bob")
    lost = await ana(lambda: client.lock("a").acquire())
    await world.break_(other, lost)
    hold = await bob(lambda: other.lock("a").acquire(timeout=60))
    await bob(lambda: other.fence("a").admit(hold.token))
    await stale(world, client.fence("a"), lost.token)


@above_the_store
@needs(RW)
@without(FOREIGN)
async def test_readers_of_a_lock_do_not_exclude_each_other(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    first = await ana(client.rwlock("a").read.acquire)
    second = await bob(other.rwlock("a").read.acquire)
    for token in (second.token, first.token):
        await world(lambda token=token: client.fence("a").admit(token, shared=True))
    await ana(first.release)
    await bob(second.release)
    writer = await ana(client.rwlock("a").write.acquire)
    await world(lambda: client.fence("a").admit(writer.token))
    await stale(world, client.fence("a"), second.token, shared=True)


@above_the_store
async def test_the_fence_may_stand_in_another_store_than_the_lock(world: World) -> None:
    locks, fences = world.client(), world.client(world.another_url())
    ana = world.actor("ana")
    tokens = []
    for _ in range(2):
        async with ana.entering(locks.lock("a", timeout=60)) as hold:
            tokens.append(hold.token)
            await ana(lambda: fences.fence("a").admit(tokens[-1]))
    await stale(world, fences.fence("a"), tokens[0])
    await world(lambda: locks.fence("a").admit(tokens[0]))


@every_form
async def test_who_comes_at_once_is_admitted_in_one_order(world: World) -> None:
    """The highest token is always admitted. A refusal names an admitted token, and follows every higher one."""
    clients = [world.client() for _ in range(4)]
    tokens = random.Random(7).sample(range(1, 5000), 80)
    told: list[tuple[int, int]] = []
    """Each token with the highest token at that time, in the order of the replies."""

    async def admits(n: int) -> None:
        fence, actor = clients[n].fence("a"), world.actor(f"resource {n}")
        for token in tokens[n::4]:
            known = max((highest for _, highest in told), default=0)
            try:
                await actor(lambda token=token: fence.admit(token))
                highest = token
            except dibs.StaleToken as error:
                highest = int(re.findall(r"\d+", error.what)[-1])
            told.append((token, highest))
            assert highest >= known, "a higher one had been admitted before this one came"

    await asyncio.gather(*(admits(n) for n in range(4)))
    admitted = {token for token, highest in told if token == highest}
    assert max(tokens) in admitted
    assert {highest for _, highest in told} == admitted
    assert all(highest > token for token, highest in told if token not in admitted)
    await stale(world, clients[0].fence("a"), max(tokens) - 1)


async def test_the_largest_token(world: World) -> None:
    fence = world.client().fence("a")
    await world(lambda: fence.admit(LARGEST - 1))
    await world(lambda: fence.admit(LARGEST))
    await stale(world, fence, LARGEST - 1)


NO_TOKENS: list[tuple[Any, type[Exception]]] = [
    (0, ValueError),
    (-1, ValueError),
    (LARGEST + 1, ValueError),
    (2**70, ValueError),
    (True, TypeError),
    ("5", TypeError),
    (5.0, TypeError),
    (None, TypeError),
    (b"5", TypeError),
]


@above_the_store
async def test_a_token_is_what_a_hold_has(world: World) -> None:
    fence = world.client().fence("a")
    for token, error in NO_TOKENS:
        for shared in (False, True):
            with pytest.raises(error, match=r"token must be .* as hold\.token is"):
                await world(lambda token=token, shared=shared: fence.admit(token, shared=shared))
    for wrong in (None, 1, "yes"):
        with pytest.raises(TypeError, match="shared must be"):
            await world(lambda wrong=wrong: fence.admit(5, shared=wrong))
    await world(lambda: fence.admit(1))


@above_the_store
async def test_within_is_an_open_connection(world: World) -> None:
    fence = world.client().fence("a")
    for within in (object(), "connection", 5, False, dibs):
        with pytest.raises(TypeError, match="within must be an open connection"):
            await world(lambda within=within: fence.admit(5, within=within))
    await world(lambda: fence.admit(1))
