"""Latches: arming, counting down, waiting; generations, timeouts, bad input, many waiters, closing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import dibs
from dibs.core.kinds.options import MOST
from dibs.core.queue import CELLS, LATCHES
from dibs.testing.contract.harness import Action, World, eventually
from dibs.testing.contract.worlds import above_the_store, every_form, needs, on, timed, without

pytestmark = needs(CELLS)


def instead(latch: Any, verb: str, *actions: Action, once: bool = False, then: bool = False) -> Callable[[], int]:
    """Run `actions` instead of this latch's `get`, `put` or `changed`, or with `then` before it. Returns a function
    that counts the calls. This is the only way to act between two requests of one latch, which is kept in a cell."""
    slot, calls = latch._core._slot, 0
    usual = getattr(slot, verb)

    async def done(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1 or not once:
            for action in actions:
                result = action()
                if inspect.isawaitable(result):
                    await result
        return await usual(*args) if then else None

    setattr(slot, verb, done)
    return lambda: calls


async def counted(world: World, latch: Any, verb: str = "changed") -> Callable[[], int]:
    """A function that counts the calls of this verb; where the store keeps latches, the readings of its latches."""
    if LATCHES not in world.subject.capabilities:
        return instead(latch, verb, then=True)
    await world(latch.count)  # opens the way to the latches
    latches, calls = latch._core._client._latches, 0
    usual = latches.count

    async def count(*args: Any) -> int:
        nonlocal calls
        left: int = await usual(*args)
        calls += 1
        return left

    latches.count = count
    return lambda: calls


async def waiting(world: World, name: str, latch: Any, **how: Any) -> Any:
    """A started wait that has read the latch and found it closed."""
    looked = await counted(world, latch)
    pending = world.actor(name).start(lambda: latch.wait(**how))
    await eventually(lambda: looked() > 0)
    return pending


@above_the_store
async def test_a_latch_that_is_not_armed_is_open(world: World) -> None:
    latch = world.client().latch("a")
    assert latch.name == "a"
    assert repr(latch).endswith(f'Latch "a" on {latch._core._client.shown}>')
    assert await world(latch.count) == 0
    assert await world(latch.wait) is True
    assert await world(lambda: latch.wait(timeout=0)) is True


async def test_armed_counted_down_open(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: client.latch("a").arm(3))
    for left in (3, 2, 1):
        assert await world(other.latch("a").count) == left
        assert await world(lambda: client.latch("a").wait(timeout=0)) is False
        await world(other.latch("a").count_down)
    assert await world(client.latch("a").count) == 0
    assert await world(client.latch("a").wait) is True


@above_the_store
async def test_counting_several_down_ends_at_nothing(world: World) -> None:
    client = world.client()
    for count, down, left in ((5, 2, 3), (5, 5, 0), (5, 6, 0), (1, MOST, 0), (MOST, 1, MOST - 1)):
        latch = client.latch(f"{count} less {down}")
        await world(lambda latch=latch, count=count: latch.arm(count))
        await world(lambda latch=latch, down=down: latch.count_down(down))
        assert await world(latch.count) == left
        assert await world(lambda latch=latch: latch.wait(timeout=0)) is (left == 0)


@above_the_store
async def test_counting_an_open_latch_down_does_nothing(world: World) -> None:
    latch = world.client().latch("a")
    await world(latch.count_down)
    await world(lambda: latch.arm(2))
    assert await world(latch.count) == 2, "what was counted before it was armed does not count"
    await world(lambda: latch.count_down(2))
    await world(lambda: latch.count_down(7))
    await world(lambda: latch.arm(2))
    assert await world(latch.count) == 2


async def test_arming_a_latch_that_is_not_open_is_a_conflict(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: client.latch("jobs").arm(3))
    await world(client.latch("jobs").count_down)
    with pytest.raises(dibs.Conflict, match="2 to go") as caught:
        await world(lambda: other.latch("jobs").arm(5))
    assert caught.value.name == "jobs"
    assert caught.value.store == client._core.shown
    assert "wait for it to open" in str(caught.value)
    assert await world(client.latch("jobs").count) == 2


async def test_of_several_who_arm_at_once_one_does(world: World) -> None:
    clients = [world.client() for _ in range(4)]
    arming = [
        world.actor(f"armer {n}").start(lambda one=one, n=n: one.latch("a").arm(n + 1)) for n, one in enumerate(clients)
    ]
    done = await asyncio.gather(*arming, return_exceptions=True)
    assert [type(one) for one in done if one is not None] == [dibs.Conflict] * 3
    assert await world(clients[0].latch("a").count) == done.index(None) + 1


async def test_every_count_counts_once(world: World) -> None:
    clients = [world.client() for _ in range(3)]
    await world(lambda: clients[0].latch("a").arm(61))

    async def counts(n: int) -> None:
        latch, actor = clients[n % 3].latch("a"), world.actor(f"counter {n}")
        for _ in range(10):
            await actor(latch.count_down)

    await asyncio.gather(*(counts(n) for n in range(6)))
    assert await world(clients[0].latch("a").count) == 1
    assert await world(lambda: clients[0].latch("a").wait(timeout=0)) is False


# Waiting


@above_the_store
async def test_the_time_is_over(world: World) -> None:
    latch = world.client().latch("a")
    await world(lambda: latch.arm(1))
    for timeout in (0, 0.05, timedelta(seconds=0.05)):
        assert await world(lambda timeout=timeout: latch.wait(timeout=timeout)) is False
        assert await world(lambda timeout=timeout: latch.wait(timeout)) is False
    assert await world(latch.count) == 1


@pytest.mark.parametrize(
    ("by", "how"),
    [
        pytest.param("other", {}, marks=every_form),
        pytest.param("other", {"timeout": 60}, marks=above_the_store),
        pytest.param("other", {"armed": True}, marks=above_the_store),
        ("itself", {}),
    ],
)
async def test_who_waits_wakes_when_it_opens(world: World, by: str, how: dict[str, Any]) -> None:
    """With `retry=600` a client would poll only after minutes: the change must wake it, or the store polls sooner."""
    client = world.client(retry=600)
    other = world.client() if by == "other" else client
    await world(lambda: other.latch("a").arm(2))
    pending = await waiting(world, "ana", client.latch("a"), **how)
    await world(other.latch("a").count_down)
    assert not pending.done()
    await world(other.latch("a").count_down)
    assert await pending is True


async def test_several_clients_wait_and_all_wake(world: World) -> None:
    clients = [world.client(retry=600) for _ in range(3)]
    await world(lambda: clients[0].latch("a").arm(2))
    pending = [await waiting(world, f"waiter {n}", clients[n % 3].latch("a")) for n in range(12)]
    await world(lambda: clients[0].latch("a").count_down(2))
    assert await asyncio.gather(*pending) == [True] * 12


async def test_fifty_of_one_client_wait_and_all_wake(world: World) -> None:
    client, other = world.client(retry=600), world.client()
    await world(lambda: client.latch("a").arm(1))
    pending = [await waiting(world, f"waiter {n}", client.latch("a")) for n in range(50)]
    await world(other.latch("a").count_down)
    assert await asyncio.gather(*pending) == [True] * 50


async def test_a_timeout_among_waiters_that_stay(world: World) -> None:
    client = world.client()
    await world(lambda: client.latch("a").arm(1))
    patient = await waiting(world, "ana", client.latch("a"))
    hasty = await waiting(world, "bob", client.latch("a"), timeout=0.2)
    assert await hasty is False
    assert not patient.done()
    await world(client.latch("a").count_down)
    assert await patient is True


@timed
async def test_waiting_is_not_asking_again_and_again(world: World) -> None:
    latch = world.client().latch("a")
    await world(lambda: latch.arm(1))
    looked = await counted(world, latch, "get")
    assert await world(lambda: latch.wait(timeout=0.4)) is False
    assert looked() <= 4


@without(LATCHES)
async def test_a_latch_may_bear_the_name_of_anything_else(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.latch("a").arm(1))
    await ana(lambda: client.cell("a").set(b"x", 0))
    await ana(lambda: client.fence("a").admit(5))
    async with ana.entering(client.lock("a", timeout=60)):
        assert await ana(client.latch("a").count) == 1
        assert [info.kind for info in await world.locks(client)] == ["mutex"]
    assert await ana(client.cell("a").get) == (b"x", 1)


# Generations


@above_the_store
async def test_a_latch_is_armed_again_and_again(world: World) -> None:
    client, other = world.client(), world.client()
    for count in range(1, 6):
        await world(lambda count=count: client.latch("a").arm(count))
        assert await world(lambda: other.latch("a").wait(timeout=0)) is False
        await world(lambda count=count: other.latch("a").count_down(count))
        assert await world(lambda: client.latch("a").wait(timeout=0)) is True


@above_the_store
@without(LATCHES)
async def test_opened_and_armed_again_while_a_waiter_slept_is_opened(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: client.latch("a").arm(1))
    sleeper, latch = client.latch("a"), other.latch("a")
    slept = instead(sleeper, "changed", latch.count_down, lambda: latch.arm(7), once=True)
    assert await world(lambda: sleeper.wait(timeout=60)) is True
    assert slept() == 1
    assert await world(latch.count) == 7


@pytest.mark.parametrize("armed", [False, True])
async def test_opened_and_armed_again_at_once_is_opened(world: World, armed: bool) -> None:
    client, latch = world.client(retry=600), world.client().latch("a")
    if not armed:
        await world(lambda: latch.arm(1))
    pending = await waiting(world, "ana", client.latch("a"), armed=armed)
    for action in [*([lambda: latch.arm(1)] if armed else []), latch.count_down, lambda: latch.arm(7)]:
        await world(action)
    assert (await pending, await world(latch.count)) == (True, 7)


@above_the_store
@without(LATCHES)
async def test_a_count_that_raced_past_an_opening_does_not_reach_the_next_generation(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: client.latch("a").arm(2))
    racer, latch = client.latch("a"), other.latch("a")
    tried = instead(racer, "put", lambda: latch.count_down(2), lambda: latch.arm(7), once=True, then=True)
    await world(racer.count_down)
    assert tried() == 1, "it tried, and saw that its generation is over"
    assert await world(latch.count) == 7


@above_the_store
@without(LATCHES)
async def test_a_count_that_raced_with_another_counts_all_the_same(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: client.latch("a").arm(3))
    racer, latch = client.latch("a"), other.latch("a")
    tried = instead(racer, "put", latch.count_down, once=True, then=True)
    await world(racer.count_down)
    assert tried() == 2
    assert await world(latch.count) == 1


# Waiting with armed=True


@above_the_store
async def test_armed_waits_for_an_arm_first(world: World) -> None:
    client, other = world.client(), world.client()
    assert await world(lambda: client.latch("a").wait(0.05, armed=True)) is False
    pending = await waiting(world, "ana", client.latch("a"), armed=True)
    await world(lambda: other.latch("a").arm(1))
    assert await world(lambda: client.latch("a").wait(0.05)) is False
    assert not pending.done()
    await world(other.latch("a").count_down)
    assert await pending is True


@above_the_store
@pytest.mark.parametrize("again", [False, True])
@without(LATCHES)
async def test_armed_and_opened_between_two_looks_is_opened(world: World, again: bool) -> None:
    client, other = world.client(), world.client()
    sleeper, latch = client.latch("a"), other.latch("a")
    actions = [lambda: latch.arm(1), latch.count_down, *([lambda: latch.arm(1)] if again else [])]
    slept = instead(sleeper, "changed", *actions, once=True)
    assert await world(lambda: sleeper.wait(60, armed=True)) is True
    assert slept() == 1


@above_the_store
async def test_armed_does_not_take_an_earlier_opening_for_the_next(world: World) -> None:
    client, other = world.client(), world.client()
    await world(lambda: other.latch("a").arm(1))
    await world(other.latch("a").count_down)
    assert await world(lambda: client.latch("a").wait(0.05, armed=True)) is False
    assert await world(lambda: client.latch("a").wait(0.05)) is True


# Bad input


NO_COUNTS: list[tuple[Any, type[Exception]]] = [
    (0, ValueError),
    (-1, ValueError),
    (MOST + 1, ValueError),
    (2**64, ValueError),
    (True, TypeError),
    ("1", TypeError),
    (1.5, TypeError),
    (1.0, TypeError),
    (None, TypeError),
]
NO_WAITS: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"timeout": float("nan")}, ValueError),
    ({"timeout": -1}, ValueError),
    ({"timeout": float("inf")}, ValueError),
    ({"timeout": "1"}, TypeError),
    ({"timeout": True}, TypeError),
    ({"armed": "yes"}, TypeError),
    ({"armed": 1}, TypeError),
    ({"armed": None}, TypeError),
]


@above_the_store
async def test_a_count_is_a_positive_int(world: World) -> None:
    latch = world.client().latch("a")
    await world(lambda: latch.arm(2))
    for given, error in NO_COUNTS:
        with pytest.raises(error, match="count must be"):
            await world(lambda given=given: latch.arm(given))
        with pytest.raises(error, match="n must be"):
            await world(lambda given=given: latch.count_down(given))
    assert await world(latch.count) == 2


@above_the_store
async def test_how_to_wait_is_checked(world: World) -> None:
    latch = world.client().latch("a")
    for how, error in NO_WAITS:
        (word,) = how
        with pytest.raises(error, match=f"{word} must be"):
            await world(lambda how=how: latch.wait(**how))


@above_the_store
async def test_a_name_is_checked_before_any_io(world: World) -> None:
    client = world.client()
    for name in ("", " ", "a\n", "\ud800", "x" * 513, 5, None):
        for make in (client.latch, client.cell, client.fence, client.election):
            with pytest.raises(dibs.BadName):
                make(name)


# Closing


async def test_closing_the_client_ends_the_waiting(world: World) -> None:
    client, other = world.connect(retry=600), world.client()
    await world(lambda: other.latch("a").arm(1))
    pending = [await waiting(world, f"waiter {n}", client.latch("a")) for n in range(5)]
    await world(client.close)
    for one in pending:
        with pytest.raises(dibs.Closed):
            await one
    for verb in (client.latch("a").count, client.latch("a").wait, client.latch("a").count_down):
        with pytest.raises(dibs.Closed):
            await world(verb)
    assert await world(other.latch("a").count) == 1


async def test_a_latch_outlives_who_armed_it(world: World) -> None:
    client, other = world.connect(), world.client()
    await world(lambda: other.latch("b").arm(1))
    await world(lambda: client.latch("a").arm(3))
    await world(client.latch("a").count_down)
    await world(client.close)
    assert await world(other.latch("a").count) == 2


@on("aio")
async def test_a_cancelled_wait_leaves_those_who_stay_alone(world: World) -> None:
    client, other = world.client(), world.client()
    await other.latch("a").arm(1)
    latches = [client.latch("a") for _ in range(4)]
    looked = [await counted(world, latch) for latch in latches]
    tasks = [asyncio.ensure_future(latch.wait()) for latch in latches]
    await eventually(lambda: all(look() for look in looked))
    for task in tasks[1:]:
        task.cancel()
    for task in tasks[1:]:
        with pytest.raises(asyncio.CancelledError):
            await task
    await eventually(lambda: len(client._core._watching) == 1)
    await other.latch("a").count_down()
    assert await tasks[0] is True


@above_the_store
@without(LATCHES)
async def test_a_count_never_gives_up_before_others(world: World) -> None:
    """Each conflict means that another client has counted, so all of them finish."""
    client, other = world.client(), world.client()
    latch, theirs, before = client.latch("a"), other.latch("a"), 150
    await world(lambda: latch.arm(1000))
    put, tries = latch._core._slot.put, 0

    async def late_put(value: bytes, version: int) -> int:
        nonlocal tries
        tries += 1
        if tries <= before:
            counted = theirs.count_down()
            if inspect.isawaitable(counted):
                await counted
        return int(await put(value, version))

    async def at_once(seconds: float) -> None:
        """Replaces the pause."""

    latch._core._slot.put, client._core.runtime.sleep = late_put, at_once
    await world(latch.count_down)
    assert tries == before + 1
    assert await world(latch.count) == 1000 - before - 1
