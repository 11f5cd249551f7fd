"""A client that was used in every way leaves nothing behind: no thread, task, descriptor, row or file."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import dibs
import dibs.aio
from lab import leaks
from process.children import until


def use(client: dibs.Client) -> None:
    """A bit of everything: free, busy, waited for, given up, shared, dropped at close."""
    with client.lock("a"):
        assert client.lock("a").acquire(timeout=0.01) is None
    assert client.lock("b", fair=False).acquire(timeout=0) is not None
    assert client.lock("b", fair=False).acquire(timeout=0.01) is None
    with client.rwlock("c").read, client.semaphore("d", 3).acquire(2):
        pass
    waiter = threading.Thread(target=lambda: client.lock("e").acquire().release())
    with client.lock("e"):
        waiter.start()
        until(lambda: client.inspect("e").waiters)
    waiter.join()
    client.lock("f").acquire()


async def use_aio(client: dibs.aio.Client) -> None:
    async with client.lock("a"):
        assert await client.lock("a").acquire(timeout=0.01) is None
        waiter = asyncio.ensure_future(client.lock("a").acquire())
        while not (await client.inspect("a")).waiters:
            await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
    async with client.rwlock("c").read, await client.semaphore("d", 3).acquire(2):
        pass
    await client.lock("f").acquire()


@pytest.mark.parametrize("api", ["sync", "async"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_clean_use(kind: str, api: str, tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    url = f"sqlite:///{path}" if kind == "sqlite" else "memory://"

    async def run() -> None:
        async with leaks.watch(leaks.sqlite(path)), dibs.aio.connect(url) as client:
            await use_aio(client)

    with leaks.watch(leaks.sqlite(path)):
        if api == "async":
            asyncio.run(run())
        else:
            with dibs.connect(url) as client:
                use(client)


def test_the_thread_that_calls_back_ends_with_its_client() -> None:
    told = threading.Event()
    with leaks.watch(), dibs.connect("memory://") as client:
        client.lock("f", on_lost=lambda _: told.set()).acquire()
        client.close()
        assert told.wait(60)
