"""What calls leave behind that ended early or in vain: nothing, in the client and in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import dibs
import dibs.aio
from dibs.backends.zookeeper.wire.exchange import Exchange
from dibs.backends.zookeeper.wire.session import PendingRequest
from dibs.testing.contract.harness import eventually
from lab.curator import PATIENCE
from lab.servers import shared
from lab.servers.supervisor import Server
from lab.stopwatch import Stopwatch
from process.children import until


@pytest.fixture
def url(server: Server, tmp_path: Path) -> str:
    return shared.fresh(tmp_path)


def root(url: str) -> str:
    return f"/{url.rpartition('/')[2]}"


async def cancelled_at_each_wait(make: Callable[[int], Awaitable[object]]) -> None:
    """A call that is cancelled at its first wait, one at its second, and so on, until one comes to its end."""
    for number in range(50):
        coroutine = make(number).__await__()
        waits = 0
        try:
            while True:
                future = next(coroutine)
                if waits == number:
                    coroutine.throw(asyncio.CancelledError())
                waits += 1
                future._asyncio_future_blocking = False
                await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
        except StopIteration:
            return
    raise AssertionError("it waits more often than that")


def test_a_put_that_ended_in_conflict_is_forgotten(url: str) -> None:
    with dibs.connect(url) as client:
        cell = client.cell("a")
        cell.set(b"1", 0)
        for _ in range(5):
            with pytest.raises(dibs.Conflict):
                cell.set(b"2", 0)
        puts = client._core.store._opened.puts
        assert not puts._unanswered
        assert len(puts.versions) == 1


def test_cancelled_puts_leave_no_note(url: str, kazoo: KazooClient) -> None:
    path = f"{root(url)}/dibs/%written"

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            await client.cell("first").set(b"0", 0)
            await cancelled_at_each_wait(lambda number: client.cell(f"c{number}").set(b"1", 0))
            await eventually(lambda: not kazoo.get_children(path), PATIENCE)

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_cancelled_acquires_leave_no_directory_that_nobody_ever_used(url: str, kazoo: KazooClient, kind: str) -> None:
    """Not every server removes such a container."""

    def make(client: dibs.aio.Client, name: str) -> dibs.aio.Lock:
        return client.lock(name) if kind == "lock" else client.semaphore(name, 2)

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            async with client.lock("connected"):
                """And `dibs` is there."""
            await cancelled_at_each_wait(lambda number: make(client, f"n{number}").acquire())

    asyncio.run(play())
    unused = []
    for name in kazoo.get_children(f"{root(url)}/dibs"):
        for path in (f"{root(url)}/dibs/{name}", f"{root(url)}/dibs/{name}/locks", f"{root(url)}/dibs/{name}/leases"):
            stat = kazoo.exists(path)
            if stat is not None and stat.cversion == 0:
                unused.append(path)
    assert not unused


def test_permits_are_taken_at_once_where_their_directory_was_removed(
    url: str, kazoo: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the taking, as the server does with containers that are empty."""
    path = f"{root(url)}/dibs/a/leases"
    removed: list[str] = []
    deal = Exchange.send

    def remove_first(exchange: Exchange, calls: list[PendingRequest], *more: object, **options: object) -> bool:
        if any(call.request.operation == 14 for call in calls) and not removed:
            until(lambda: kazoo.exists(path) is not None, what="it is there")
            removed.append(path)
            kazoo.delete(path)
        return deal(exchange, calls, *more, **options)

    with dibs.connect(url, lease=30) as client:
        semaphore = client.semaphore("a", 1)
        with semaphore:
            """Its directories are there now."""
        monkeypatch.setattr(Exchange, "send", remove_first)
        with Stopwatch() as watch:
            hold = semaphore.acquire(timeout=PATIENCE)
            took = watch.seconds()
        assert removed
        assert hold is not None
        assert took < 5, "the next renewal looked again"
        hold.release()
