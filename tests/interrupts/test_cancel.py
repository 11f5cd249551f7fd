"""asyncio: a task cancelled at every suspension of an operation leaves no claim behind.

`Cancelling` awaits a coroutine and cancels its own task, as `task.cancel()` from outside would, while the coroutine
is suspended for the n-th time; `twice` cancels again at the next suspension, while it cleans up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from interrupts.stores import STORES

LEASES = {"memory": 30.0, "sqlite": 4.5}
"""A claim that nobody wants is noticed at its next renewal; one that was forgotten is renewed for ever."""
OTHERS = 120.0
"""The lease of other clients: that is how ours are told from theirs."""
PATIENCE = 40.0
MOST = 60


class Cancelling:
    def __init__(self, coroutine: Coroutine[Any, Any, None], n: int, *, twice: bool) -> None:
        self._coroutine = coroutine
        self._cancel_at = {n, n + 1} if twice else {n}
        self.suspended = 0
        self.cancelled = 0

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._coroutine.__await__()
        task = asyncio.current_task()
        assert task is not None
        step: Callable[[], Any] = lambda: inner.send(None)  # noqa: E731
        while True:
            try:
                future = step()
            except StopIteration:
                return
            self.suspended += 1
            if self.suspended in self._cancel_at:
                self.cancelled += 1
                task.cancel()
            try:
                yield future
            except BaseException as error:
                step = lambda error=error: inner.throw(error)  # noqa: E731
            else:
                step = lambda: inner.send(None)  # noqa: E731


async def with_lock(client: dibs.aio.Client, name: str) -> None:
    async with client.lock(name, timeout=PATIENCE):
        await asyncio.sleep(0)


async def rlock(client: dibs.aio.Client, name: str) -> None:
    lock = client.rlock(name, timeout=PATIENCE)
    async with lock, lock:
        await asyncio.sleep(0)


async def outside(client: dibs.aio.Client, name: str) -> None:
    async with client.lock(name, fair=False, timeout=0.2):
        pass


async def several(client: dibs.aio.Client, name: str) -> None:
    async with dibs.aio.multi(client.lock(name), client.semaphore(name + "-b", 2), timeout=PATIENCE):
        await asyncio.sleep(0)


async def stripe(client: dibs.aio.Client, name: str) -> None:
    async with client.striped(name, 2, timeout=PATIENCE).at("key"):
        await asyncio.sleep(0)


@asynccontextmanager
async def nobody(other: dibs.aio.Client, name: str) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def somebody_holds(other: dibs.aio.Client, name: str) -> AsyncIterator[None]:
    async with other.lock(name):
        yield


@asynccontextmanager
async def somebody_lets_go(other: dibs.aio.Client, name: str) -> AsyncIterator[None]:
    """Holds until somebody waits; so a grant and the cancellation may meet."""
    hold = await other.lock(name).acquire()
    assert hold is not None

    async def let_go() -> None:
        end = time.monotonic() + PATIENCE
        while not (await other.inspect(name)).waiters and time.monotonic() < end:
            await asyncio.sleep(0)
        await hold.release()

    task = asyncio.create_task(let_go())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        await hold.release()


CASES: dict[str, tuple[Callable[..., Coroutine[Any, Any, None]], Callable[..., Any]]] = {
    "with": (with_lock, nobody),
    "rlock, twice": (rlock, nobody),
    "multi": (several, nobody),
    "stripe": (stripe, nobody),
    "after waiting": (with_lock, somebody_lets_go),
    "outside": (outside, somebody_holds),
    "multi, after waiting": (several, somebody_lets_go),
}


async def is_free(other: dibs.aio.Client, name: str) -> bool:
    """Nothing of the cancelled client is in its queues."""
    infos = [await other.inspect(one) for one in (name, f"{name}-b", f"{name}#0", f"{name}#1")]
    return not any(one.remaining < OTHERS / 2 for info in infos for one in (*info.holders, *info.waiters))


async def others_can_have_it(other: dibs.aio.Client, name: str) -> bool:
    """A join that was under way when its task was cancelled may still come, and then goes: a look can be too early."""
    try:
        hold = await other.lock(name).acquire(timeout=0)
    except dibs.Mismatch:  # as stripes
        return False
    if hold is not None:
        await hold.release()
    return hold is not None


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.002)


async def watchdog_lives(client: dibs.aio.Client) -> None:
    """It renews."""
    async with client.lock("keep", lease=30) as hold:
        before = hold.remaining
        while hold.remaining <= before:
            hold.check()
            before = hold.remaining
            await asyncio.sleep(0.01)


async def cancel_everywhere(url: str, lease: float, what: str, *, hard: bool) -> int:
    """Returns the number of suspensions at which it was cancelled."""
    operation, around = CASES[what]
    other = dibs.aio.connect(url, lease=OTHERS)
    client = dibs.aio.connect(url, lease=lease)
    for n in count(1):
        assert n < MOST
        if hard:
            await client.close()
            client = dibs.aio.connect(url, lease=lease)
        name = f"{what}-{n}"
        async with around(other, name):
            run = Cancelling(operation(client, name), n, twice=hard)
            ended = await _outcome(run)
            await until(lambda name=name: is_free(other, name), f"left behind at suspension {n}: {ended}")
        await until(lambda name=name: others_can_have_it(other, name), f"left behind, late, at suspension {n}: {ended}")
        if not run.cancelled:
            assert ended is None or isinstance(ended, dibs.AcquireTimeout)
            break
    await asyncio.wait_for(watchdog_lives(client), PATIENCE)
    await client.close()
    await other.close()
    return n - 1


async def _outcome(run: Awaitable[None]) -> BaseException | None:
    """In a task of its own, as a user would cancel it."""

    async def main() -> None:
        await run

    (done,), _ = await asyncio.wait([asyncio.create_task(main())])
    if done.cancelled():
        return asyncio.CancelledError()
    error = done.exception()
    if error is not None and not isinstance(error, dibs.AcquireTimeout):
        raise error
    return error


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize(
    ("store", "hard"),
    [
        ("memory", False),
        pytest.param("sqlite", False, marks=pytest.mark.gate),
        pytest.param("memory", True, marks=pytest.mark.gate),
        pytest.param("sqlite", True, marks=pytest.mark.gate),
    ],
)
def test_a_cancelled_task_leaves_nothing_behind(store: str, what: str, hard: bool, tmp_path: Path) -> None:
    """`hard`: a new client each time, and cancelled twice. The published suite cancels acquire, release and multi on
    every store."""
    cancelled = asyncio.run(cancel_everywhere(STORES[store](tmp_path), LEASES[store], what, hard=hard))
    print(f"\n{what} on {store}: cancelled at {cancelled} suspensions")
    assert cancelled
