"""A lock object remembers the holds that its `release()` can mean, a client those that may be shared, and no others."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.core.grants import Hold
from process.children import until

pytestmark = pytest.mark.gate
FEW = 130
"""The most holds that may still be in memory, however many were acquired."""
SHORT = 2.0


def holds(name: str) -> int:
    """How many there are in memory."""
    gc.collect()
    return sum(type(one) is Hold and one.name == name for one in gc.get_objects())


def test_a_released_hold_is_forgotten_while_others_are_held() -> None:
    async def main() -> None:
        async with dibs.aio.connect("memory://") as client:
            pool = client.semaphore("released", 4)

            async def use() -> None:
                for _ in range(50):
                    hold = await pool.acquire()
                    await asyncio.sleep(0)
                    await hold.release()

            kept = await pool.acquire()
            await asyncio.gather(use(), use(), use())
            assert holds("released") == 1
            await kept.release()

    asyncio.run(main())


def test_permits_that_come_back_by_themselves_are_forgotten() -> None:
    with dibs.connect("memory://") as client:
        rate = client.semaphore("rate", 1000, lease=SHORT, renew=False)
        for _ in range(300):
            assert (hold := rate.acquire(timeout=0))
        until(lambda: holds("rate") <= FEW)
        assert hold.lost.wait(60)  # the latest permit may come back a moment after the others
        with pytest.raises(dibs.LockLost):
            rate.release()


def test_lost_holds_of_tasks_that_ended_are_forgotten_once_the_lock_is_used_again() -> None:
    async def main() -> None:
        async with dibs.aio.connect("memory://") as client:
            permits, everybody = client.semaphore("lost", 1000, lease=SHORT, renew=False), asyncio.Barrier(3 * FEW)

            async def lose() -> None:
                await (await permits.acquire()).lost.wait()
                await everybody.wait()

            await asyncio.gather(*(lose() for _ in range(3 * FEW)))
            for _ in range(3 * FEW):
                await (await permits.acquire()).release()
            assert holds("lost") <= FEW

    asyncio.run(main())


def test_each_task_that_lost_its_hold_is_told_so_by_release() -> None:
    """However many others have lost theirs, and have taken new ones."""

    async def main() -> None:
        async with dibs.aio.connect("memory://") as client:
            rate = client.semaphore("told", 1000, lease=SHORT, renew=False)

            async def lose(others: asyncio.Barrier) -> None:
                hold = await rate.acquire(timeout=0)
                assert hold is not None
                await hold.lost.wait()
                await others.wait()
                with pytest.raises(dibs.LockLost):
                    await rate.release()

            async def take(others: asyncio.Barrier) -> None:
                await others.wait()
                for _ in range(100):
                    assert await rate.acquire(timeout=0)

            together = asyncio.Barrier(51)
            await asyncio.gather(take(together), *(lose(together) for _ in range(50)))

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("options", [{"max_hold": SHORT}, {"lease": SHORT, "renew": False}], ids=["max_hold", "renew"])
def test_a_grant_that_ended_by_itself_is_no_longer_there_to_share(options: dict[str, Any]) -> None:
    with dibs.connect("memory://") as client:
        for number in range(20):
            assert client.rlock(f"re-entrant {number}", **options).acquire(timeout=0)
            assert client.rwlock(f"read-write {number}", **options).read.acquire(timeout=0)
        until(lambda: not client._core.registry._shared)
