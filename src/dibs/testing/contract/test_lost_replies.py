"""Latches, cells and fences when replies are lost: a change is retried, happens once, and is reported as done."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.core.queue import CELLS, LATCHES
from dibs.testing.contract.harness import Action, World
from dibs.testing.contract.worlds import above_the_store, every_form, needs, without

pytestmark = needs(CELLS)


async def losing(world: World, client: Any, verb: str, times: int, *meanwhile: Action) -> Callable[[], int]:
    """Lose the next replies of this operation, after running `meanwhile`. The requests themselves are carried out.
    Returns a function that counts the requests."""
    await world(client.cell("warm").get)  # the Cells interface is opened at first use
    cells, asked = client._core._cells, 0
    usual = getattr(cells, verb)

    async def lossy(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        answer = await usual(*args)
        if asked > times:
            return answer
        for action in meanwhile:
            result = action()
            if inspect.isawaitable(result):
                await result
        raise dibs.StoreUnavailable("the reply was lost")

    setattr(cells, verb, lossy)
    return lambda: asked


async def test_a_set_whose_reply_was_lost_is_done_once(world: World) -> None:
    client, other = world.client(), world.client()
    asked = await losing(world, client, "put", 3)
    assert await world(lambda: client.cell("a").set(b"x", 0)) == 1
    assert asked() == 4
    assert await world(other.cell("a").get) == (b"x", 1)


@every_form
async def test_a_set_whose_reply_was_lost_is_done_although_another_wrote_since(world: World) -> None:
    client, other = world.client(), world.client()
    await losing(world, client, "put", 1, lambda: other.cell("a").set(b"later", 1))
    assert await world(lambda: client.cell("a").set(b"x", 0)) == 1
    assert await world(other.cell("a").get) == (b"later", 2)


@above_the_store
async def test_an_update_whose_reply_was_lost_adds_once(world: World) -> None:
    client, other = world.client(), world.client()
    await losing(world, client, "put", 2, lambda: other.cell("a").update(lambda value: value + b"-"))
    assert await world(lambda: client.cell("a").update(lambda value: (value or b"") + b"+")) == (b"+", 1)
    assert await world(other.cell("a").get) == (b"+--", 3)


@without(LATCHES)
async def test_a_count_whose_reply_was_lost_counts_once(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: other.latch("a").arm(9))
    asked = await losing(world, client, "put", 3, other.latch("a").count_down)
    await world(client.latch("a").count_down)
    assert asked() == 4
    assert await world(other.latch("a").count) == 5, "three of the other's, one of ours"


@above_the_store
@without(LATCHES)
async def test_an_arm_whose_reply_was_lost_is_no_conflict(world: World) -> None:
    client, other = world.client(), world.client()
    await losing(world, client, "put", 2)
    await world(lambda: client.latch("a").arm(3))
    assert await world(other.latch("a").count) == 3


@every_form
async def test_an_admit_whose_reply_was_lost_is_admitted(world: World) -> None:
    client, other = world.client(), world.client()
    asked = await losing(world, client, "admit", 2)
    await world(lambda: client.fence("a").admit(5))
    assert asked() == 3
    with pytest.raises(dibs.StaleToken):
        await world(lambda: other.fence("a").admit(4))


async def test_an_admit_whose_reply_was_lost_is_stale_if_a_higher_one_came_since(world: World) -> None:
    client, other = world.client(), world.client()
    await losing(world, client, "admit", 1, lambda: other.fence("a").admit(9))
    with pytest.raises(dibs.StaleToken):
        await world(lambda: client.fence("a").admit(5))


@above_the_store
async def test_a_set_that_was_never_answered_says_what_is_not_known(world: World) -> None:
    client, other = world.client(retry=0), world.client()
    asked = await losing(world, client, "put", 10**6)
    with pytest.raises(dibs.StoreUnavailable, match="whether the change happened is not known") as caught:
        await world(lambda: client.cell("a").set(b"x", 0))
    assert asked() > 1
    assert (caught.value.name, caught.value.store) == ("a", client._core.shown)
    assert "read the value again" in str(caught.value)
    assert await world(other.cell("a").get) == (b"x", 1)


@above_the_store
async def test_a_read_that_is_never_answered_ends(world: World) -> None:
    client = world.client(retry=0)
    await losing(world, client, "get", 10**6)
    kept_in_cells: list[Action] = [client.cell("a").get]
    if LATCHES not in world.subject.capabilities:
        kept_in_cells.append(lambda: client.latch("a").wait(timeout=0))
    for question in kept_in_cells:
        with pytest.raises(dibs.StoreUnavailable) as caught:
            await world(question)
        assert (caught.value.name, caught.value.store) == ("a", client._core.shown)


@above_the_store
@without(LATCHES)
async def test_who_waits_is_patient_with_a_store_that_cannot_be_watched(world: World) -> None:
    """A failed watch does not end the wait: it continues to poll."""
    client, other = world.client(), world.client()
    await world(lambda: other.latch("a").arm(2))
    await world(client.latch("a").count)
    watched = 0

    async def unavailable(*_: Any) -> None:
        nonlocal watched
        watched += 1
        counting = other.latch("a").count_down()
        if inspect.isawaitable(counting):
            await counting
        raise dibs.StoreUnavailable("no reply")

    client._core._cells.watch = unavailable
    assert await world(lambda: client.latch("a").wait(timeout=60)) is True
    assert watched == 2
