"""The async API: cancellation at any point, task groups, timeouts, several event loops, cancel_on_lost."""

# ruff: noqa: PT012  (the tests are about a `with` that an error ends)

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR
from dibs.testing.contract.clocks import PATIENCE
from dibs.testing.contract.harness import World, eventually, lasted, passed
from dibs.testing.contract.worlds import above_the_store, needs, on, timed

pytestmark = on("aio")


async def turns(count: int) -> None:
    """Let the event loop run that many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled(awaitable: asyncio.Task[Any]) -> Any:
    """Cancel a task; return its result if it was done before, else None."""
    awaitable.cancel()
    try:
        return await awaitable
    except asyncio.CancelledError:
        return None


@pytest.mark.parametrize("fair", [pytest.param(True, marks=needs(FAIR)), False])
async def test_a_cancelled_wait_leaves_nothing(world: World, fair: bool) -> None:
    client, other = world.client(), world.client()
    hold = await other.lock("a").acquire()
    task = asyncio.ensure_future(client.lock("a", fair=fair).acquire())
    await eventually(lambda: "1 held or asked for" in repr(client))
    await turns(3)
    assert await cancelled(task) is None
    assert task.cancelled()
    await eventually(lambda: "0 held or asked for" in repr(client))
    await world.in_queue(other, "a", 0)
    await hold.release()
    # The cancelled join may arrive only now, and its leave a moment later. The next acquire waits for both.
    assert await other.lock("a").acquire(timeout=60)


async def test_cancellation_anywhere_in_acquire_leaves_no_claim(world: World) -> None:
    other = world.client()
    for busy in (False, True):
        for count in range(25):
            name = f"{busy}-{count}"
            held = await other.lock(name).acquire() if busy else None
            client = world.connect()
            task = asyncio.ensure_future(client.lock(name).acquire())
            await turns(count)
            hold = await cancelled(task)
            if hold is not None:
                await hold.release()
            if held is not None:
                await held.release()
            await world.free(other, name)
            await client.close()


async def test_cancellation_anywhere_in_release_gives_back(world: World) -> None:
    client, other = world.client(), world.client()
    for count in range(15):
        hold = await client.lock("a").acquire()
        task = asyncio.ensure_future(hold.release())
        await turns(count)
        await cancelled(task)
        if task.cancelled() and count == 0:  # it never started
            await hold.release()
        await world.free(other, "a")


@above_the_store
async def test_cancellation_anywhere_in_a_multi_gives_back_all(world: World) -> None:
    client, other = world.client(), world.client()
    held = await other.lock("b").acquire()
    for count in range(25):
        task = asyncio.ensure_future(world.multi(client.lock("a"), client.lock("b"), client.lock("c")).acquire())
        await turns(count)
        assert await cancelled(task) is None
        await world.free(other, "a")
        await world.in_queue(other, "b", 0)
    await held.release()


@above_the_store
@needs(FAIR)
async def test_a_cancelled_acquire_does_not_cancel_others_of_its_owner(world: World) -> None:
    client, other = world.client(owner="client"), world.client()
    held = await other.rlock("a").acquire()
    first = asyncio.ensure_future(client.rlock("a").acquire())
    await world.in_queue(other, "a", 1)
    second = asyncio.ensure_future(client.rlock("a").acquire(timeout=60))
    await turns(3)
    await cancelled(first)
    await held.release()
    assert await second


@above_the_store
@pytest.mark.parametrize("cancel_on_lost", [False, True])
async def test_cancelling_the_body_gives_back(world: World, cancel_on_lost: bool) -> None:
    client = world.client()
    entered = asyncio.Event()

    async def body() -> None:
        async with client.lock("a", cancel_on_lost=cancel_on_lost):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await entered.wait()
    await cancelled(task)
    assert task.cancelled()
    await world.free(client, "a")


@above_the_store
async def test_wait_for_ends_a_wait(world: World) -> None:
    client, other = world.client(), world.client()
    await other.lock("a").acquire()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.lock("a").acquire(), 0.05)
    await world.in_queue(other, "a", 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), client.lock("a"):
            pytest.fail("the lock is busy")
    await world.in_queue(other, "a", 0)


@above_the_store
async def test_wait_for_does_not_change_the_owner(world: World) -> None:
    lock = world.client().rlock("a")
    hold = await asyncio.wait_for(lock.acquire(), PATIENCE)
    assert lock.owned()
    again = await asyncio.wait_for(lock.acquire(), PATIENCE)
    assert again.token == hold.token
    await lock.release()
    await lock.release()


@above_the_store
async def test_another_task_is_another_owner(world: World) -> None:
    lock = world.client().rlock("a")
    await lock.acquire()

    async def ask() -> Any:
        return await lock.acquire(timeout=0)

    assert await asyncio.create_task(ask()) is None


@above_the_store
async def test_a_task_group_may_share_a_lock_object(world: World) -> None:
    lock = world.client().lock("a", timeout=60)
    inside = 0
    rounds = 0

    async def work() -> None:
        nonlocal inside, rounds
        async with lock:
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            rounds += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(work())
    assert rounds == 20


@above_the_store
async def test_a_failing_task_group_gives_back_everything(world: World) -> None:
    client = world.client()

    async def hold_on(name: str) -> None:
        async with client.lock(name):
            await asyncio.Event().wait()

    async def fail() -> None:
        await eventually(lambda: "2 held" in repr(client))
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(hold_on("a"))
            group.create_task(hold_on("b"))
            group.create_task(fail())
    for name in ("a", "b"):
        await world.free(client, name)


@timed
@above_the_store
async def test_cancel_on_lost_raises_the_loss_from_the_block_and_calls_on_lost(world: World) -> None:
    client = await asyncio.to_thread(world.client, lease=world.short)  # created outside of any event loop
    called: list[Any] = []
    with pytest.raises(dibs.LockLost) as caught:
        async with client.lock("a", cancel_on_lost=True, on_lost=called.append) as hold:
            await world.break_(client, hold)
            await passed(PATIENCE)
    assert caught.value.name == "a"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is pending
    await eventually(lambda: called)
    asyncio_only: dict[str, Any] = {"cancel_on_lost": True}
    with dibs.connect(world.url) as blocking, pytest.raises(TypeError, match="cancel_on_lost"):
        blocking.lock("a", **asyncio_only)


@timed
@above_the_store
async def test_cancel_on_lost_does_not_eat_a_foreign_cancellation(world: World) -> None:
    client = world.client(lease=world.short)

    async def body() -> None:
        async with client.lock("a", cancel_on_lost=True) as hold:
            try:
                await world.break_(client, hold)
                await passed(PATIENCE)
            except asyncio.CancelledError:
                task.cancel()  # a cancellation by the application
                raise

    task = asyncio.create_task(body())
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert task.cancelled()
    assert any("lost" in note for note in getattr(caught.value, "__notes__", []))


@timed
@above_the_store
async def test_a_body_that_swallows_the_cancellation_still_hears_of_the_loss(world: World) -> None:
    client = world.client(lease=world.short)
    with pytest.raises(dibs.LockLost):
        async with client.lock("a", cancel_on_lost=True) as hold:
            await world.break_(client, hold)
            with suppress(asyncio.CancelledError):
                await passed(PATIENCE)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@timed
@above_the_store
async def test_without_cancel_on_lost_nothing_is_cancelled(world: World) -> None:
    client = world.client(lease=world.short)
    with pytest.raises(dibs.LockLost):
        async with client.lock("a") as hold:
            await world.break_(client, hold)
            await eventually(hold.lost.is_set)
            await turns(5)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


@needs(FAIR)
def test_a_second_loop_after_the_first_was_closed_works(world: World) -> None:
    client = world.connect()
    hold = run(lambda: client.lock("a").acquire())

    async def second() -> None:
        assert await client.lock("a").acquire(timeout=0) is None
        waiting = asyncio.ensure_future(client.lock("a").acquire(timeout=60))
        await world_in_queue(client)
        await hold.release()
        await (await waiting).release()

    async def world_in_queue(client: Any) -> None:
        async def waits() -> bool:
            return bool((await client.inspect("a")).waiters)

        await eventually(waits)

    asyncio.run(second())
    run(client.close)


@timed
def test_a_hold_outlives_its_loop(world: World) -> None:
    client = world.connect(lease=world.short)
    hold = run(lambda: client.lock("a").acquire())

    async def second() -> None:
        await passed(2 * world.short)
        hold.check()
        await hold.release()
        await client.close()

    asyncio.run(second())


@timed
def test_closing_in_another_loop_waits_for_nothing(world: World) -> None:
    client = world.connect()
    run(lambda: client.lock("a").acquire())

    async def second() -> float:
        return (await lasted(client.close()))[1]

    assert asyncio.run(second()) < 4  # the release may take 5 s, but must not use them up


@above_the_store
async def test_a_second_loop_while_the_first_is_open_is_refused(world: World) -> None:
    client = world.client()
    await client.lock("a").acquire()

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="event loop"):
            run(lambda: client.inspect("a"))

    await asyncio.to_thread(elsewhere)
