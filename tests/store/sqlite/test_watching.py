"""Watching a value or a queue in the file: who is told, what stands in `watchers` meanwhile, and that nothing stays."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.sqlite import queue
from dibs.backends.sqlite.database import Database
from dibs.core.cells import LATCH, CellKey
from dibs.runtime.threads import step
from store.sqlite.places import PATIENCE, begin, beside, names_in, rows, until, url_of
from store.sqlite.test_replaced import WAYS

Connect = Callable[..., dibs.Client]


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that is heard of within a test's patience came as a message."""
    monkeypatch.setattr(queue, "POLL_INTERVAL", 1000.0)


def watchers(path: Path) -> int:
    return int(rows(path, "SELECT count(*) FROM watchers")[0][0])


def watched(path: Path, count: int) -> None:
    until(lambda: watchers(path) == count, what=f"{count} who watch")


@pytest.mark.usefixtures("no_poll")
def test_all_who_wait_are_told(path: Path, connect: Connect) -> None:
    """More than a socket keeps, and more than one datagram holds."""
    counter, count = connect(), 600
    counter.latch("a").arm(1)

    async def main() -> None:
        async with dibs.aio.connect(url_of(path), retry=60) as client:
            waiting = [asyncio.ensure_future(client.latch("a").wait()) for _ in range(count)]
            await asyncio.to_thread(watched, path, count)
            await asyncio.to_thread(counter.latch("a").count_down)
            assert await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE) == [True] * count

    asyncio.run(main())
    assert watchers(path) == 0, "whoever was told watches no longer"


@pytest.mark.usefixtures("no_poll")
def test_who_follows_is_told_of_the_next_in_the_queue_and_of_a_broken_one(path: Path, connect: Connect) -> None:
    follower, one, other = connect(retry=60), connect(), connect()
    first = one.election("a").lead().acquire(timeout=60)
    assert first is not None
    changes = follower.election("a").watch()
    leader = next(changes)
    assert leader is not None
    assert leader.token == first.token
    waiting = begin(lambda: other.election("a").lead().acquire(timeout=PATIENCE))
    until(lambda: follower.inspect("a").waiters, what="the next in the queue")
    following = begin(lambda: next(changes))
    watched(path, 1)
    follower.break_("a", token=first.token)
    second = waiting.result(PATIENCE)
    assert following.result(PATIENCE).token == second.token
    following = begin(lambda: next(changes))
    watched(path, 1)
    second.release()
    assert following.result(PATIENCE) is None


@pytest.mark.usefixtures("no_poll")
def test_a_change_that_came_before_the_watching_is_seen_at_once(path: Path, connect: Connect) -> None:
    """Between a look and the watching that follows it; nothing is left standing for it."""
    client: Any = connect()
    client.latch("a").arm(1)
    hold = client.election("b").lead().acquire(timeout=60)
    core, now = client._core, client._core.now
    end = now() + 30
    key = core.runtime.fresh_id()
    core.me.inbox.expect(key)
    step(core._cells.watch(CellKey(LATCH, "dibs:a"), 0, key, end))
    step(core.opened.await_change("dibs:b", 0, key, end))
    step(core.opened.await_change("dibs:b", hold.token - 1, key, end))
    assert now() < end
    assert watchers(path) == 0


@pytest.mark.alone
def test_waiting_costs_a_look_a_second(path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client, steps = connect(), list[str]()
    client.latch("a").arm(1)
    for name in ("attempt", "read"):
        usual = getattr(Database, name)

        def counted(*args: Any, usual: Any = usual, **options: Any) -> Any:
            steps.append("")
            return usual(*args, **options)

        monkeypatch.setattr(Database, name, counted)
    assert client.latch("a").wait(timeout=1.5) is False
    assert len(steps) <= 8, "a look to begin with, the watching, a glance, a look to end with"


# What stays: nothing.


def test_nobody_watches_once_all_are_closed(path: Path, connect: Connect) -> None:
    clients = [connect() for _ in range(3)]
    clients[0].latch("a").arm(1)
    waiting = [begin(client.latch("a").wait) for client in clients for _ in range(3)]
    watched(path, 9)
    for client in clients:
        client.close()
    for one in waiting:
        assert isinstance(one.exception(PATIENCE), dibs.Closed)
    assert (watchers(path), rows(path, "SELECT count(*) FROM clients")) == (0, [(0,)])


def strikes_out(path: Path, client: dibs.Client) -> None:
    """The next who watches strikes out who gave up; closing does so with the last one."""
    following = begin(lambda: client.latch("b").wait(armed=True))
    until(lambda: rows(path, "SELECT name FROM watchers") == [("dibs:b",)], what="only who watches now")
    client.close()
    assert isinstance(following.exception(PATIENCE), dibs.Closed)
    assert watchers(path) == 0


def test_an_interrupted_wait_leaves_nothing(path: Path, connect: Connect) -> None:
    client = connect()
    client.latch("a").arm(1)
    assert client.latch("a").wait(timeout=0.02) is False
    assert watchers(path) <= 1
    strikes_out(path, client)
    client, me = connect(), threading.get_ident()

    def interrupt() -> None:
        watched(path, 1)
        signal.pthread_kill(me, signal.SIGINT)

    interrupting = begin(interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.latch("a").wait(timeout=PATIENCE)
    interrupting.result(PATIENCE)
    assert not client._core._watching
    strikes_out(path, client)


def test_a_cancelled_wait_leaves_nothing(path: Path, connect: Connect) -> None:
    counter = connect()
    counter.latch("a").arm(1)

    async def main() -> None:
        async with dibs.aio.connect(url_of(path)) as client:
            for turns in range(20):
                task = asyncio.ensure_future(client.latch("a").wait())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert not client._core._watching
            await asyncio.wait([task := asyncio.ensure_future(client.latch("a").wait())], timeout=0)
            await asyncio.to_thread(watched, path, 1)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(main())
    assert watchers(path) == 0


@pytest.mark.parametrize("kind", ["latch", "election"])
def test_a_look_that_comes_after_the_end_opens_nothing(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A watcher looks now and then. A look that was about to begin when the client was closed must not come back to
    the file as a client that nobody closes any more."""
    connect().latch("a").arm(1)
    looks, closed = threading.Event(), threading.Event()
    usual, client = Database.read, dibs.connect(url_of(path))

    def late(self: Database, *args: Any) -> Any:
        if self.registration is client._core.store.registration and client._core._watching:
            looks.set()
            assert closed.wait(PATIENCE)
        return usual(self, *args)

    monkeypatch.setattr(queue, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(Database, "read", late)
    waiting = begin(client.latch("a").wait if kind == "latch" else lambda: list(client.election("b").watch()))
    assert looks.wait(PATIENCE)
    client.close()
    closed.set()
    assert isinstance(waiting.exception(PATIENCE), dibs.Closed)
    own = client._core.store.registration.identity.id.hex()
    assert own not in {id.hex() for (id,) in rows(path, "SELECT id FROM clients")}
    assert not [name for name in names_in(beside(path)) if name.startswith(own)]


# The file goes away.


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((way, "latch") for way in WAYS[:-1]),
        pytest.param(WAYS[-1], "latch", marks=pytest.mark.gate),
        (WAYS[0], "election"),
    ],
)
def test_watching_ends_when_the_file_is_removed_or_replaced(
    path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, way: Callable[[Path], None], kind: str
) -> None:
    monkeypatch.setattr(queue, "POLL_INTERVAL", 0.1)  # a look finds some of them
    connect().latch("a").arm(1)
    client = connect()
    waiting = begin(client.latch("a").wait if kind == "latch" else lambda: list(client.election("a").watch()))
    watched(path, 1)
    way(path)
    error: Any = waiting.exception(PATIENCE)
    assert isinstance(error, dibs.StoreUnavailable), error
    assert error.name == "a"
    assert "removed or replaced" in str(error)
