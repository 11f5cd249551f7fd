"""Locks inside the caller's own transaction, through every connection that is taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dibs
import dibs.aio
from lab.servers.supervisor import until
from lab.witness import fresh_name
from sql.desks import Desk, run
from sql.openers import OPENERS, Opened

Urls = Callable[[str], str]
SERVED = [("postgresql", kind) for kind in OPENERS["postgresql"]]
HOSTILE = ['it\'s "here"; --', "%s {0} $1 :name", "\\'; DROP TABLE dibs_keys; --", "é\u202e\U0001f600", "x" * 512]


@pytest.fixture(params=SERVED, ids=["-".join(kind) for kind in SERVED])
def desk(request: pytest.FixtureRequest, urls: Urls) -> Desk:
    server, kind = request.param
    return Desk(server, kind, urls(server))


class Side:
    """A client of the desk's face, and locks inside transactions of its connections."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.client: Any = (dibs.aio if desk.awaits else dibs).connect(desk.url)

    def lock(self, opened: Opened, name: str, **options: Any) -> Any:
        return self.client.within(opened.connection).lock(name, **options)

    async def acquire(self, opened: Opened, name: str, **options: Any) -> Any:
        found = self.lock(opened, name).acquire(**options)
        return await found if self.desk.awaits else found

    async def enter(self, opened: Opened, name: str, **options: Any) -> Any:
        lock = self.lock(opened, name, **options)
        if self.desk.awaits:
            async with lock as hold:
                return hold
        with lock as hold:
            return hold

    async def close(self) -> None:
        closing = self.client.close()
        if closing is not None:
            await closing


def play(desk: Desk, story: Callable[[Side, Opened, Opened], Any]) -> None:
    """With two connections of one kind."""

    async def whole() -> None:
        side, one, other = Side(desk), await desk.open(), await desk.open()
        try:
            await story(side, one, other)
        finally:
            for opened in (one, other):
                await opened.rollback()
                await opened.close()
            await side.close()

    run(desk, whole)


def test_it_is_held_until_the_transaction_ends(desk: Desk) -> None:
    name = fresh_name()

    async def story(side: Side, one: Opened, other: Opened) -> None:
        hold = await side.enter(one, name, timeout=5, owner="ana")
        assert (hold.name, hold.mode, hold.owner) == (name, "exclusive", "ana")
        assert await side.acquire(other, name, timeout=0) is None, "leaving the with frees nothing"
        assert await side.acquire(other, name, blocking=False) is None
        await one.commit()
        won = await side.acquire(other, name, timeout=0)
        assert won.token > hold.token
        assert await side.acquire(one, name, timeout=0) is None
        await other.rollback()
        assert (await side.acquire(one, name)).token > won.token

    play(desk, story)


def test_the_same_transaction_may_take_it_again(desk: Desk) -> None:
    name = fresh_name()

    async def story(side: Side, one: Opened, other: Opened) -> None:
        first = await side.acquire(one, name)
        assert (await side.acquire(one, name, timeout=0)).token > first.token

    play(desk, story)


def test_two_names_never_block_each_other(desk: Desk) -> None:
    one_name, other_name = fresh_name(), fresh_name()

    async def story(side: Side, one: Opened, other: Opened) -> None:
        assert await side.acquire(one, one_name)
        assert await side.acquire(other, other_name, timeout=0)

    play(desk, story)


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_time_out_leaves_the_transaction_as_it_was(desk: Desk, timeout: float) -> None:
    name, work = fresh_name(), f"work_{threading.get_ident()}_{fresh_name()}".replace("-", "_").replace(":", "_")

    async def story(side: Side, one: Opened, other: Opened) -> None:
        await desk.run(other, f"CREATE TABLE {desk.quoted(work)} (id INTEGER)")
        await other.commit()
        assert await side.acquire(one, name)
        await desk.run(other, f"INSERT INTO {desk.quoted(work)} VALUES (7)")
        with pytest.raises(dibs.AcquireTimeout, match="not free"):
            await side.enter(other, name, timeout=timeout)
        assert await side.acquire(other, name, timeout=timeout) is None
        await other.commit()
        await one.rollback()
        assert [row[0] for row in await desk.run(other, f"SELECT id FROM {desk.quoted(work)}")] == [7]

    play(desk, story)


def test_who_waits_gets_it_when_the_other_commits(desk: Desk) -> None:
    name = fresh_name()
    asked, held = threading.Event(), threading.Event()

    def waits() -> int:
        token: list[int] = []

        async def story(side: Side, one: Opened, _: Opened) -> None:
            asked.set()
            token.append((await side.acquire(one, name, timeout=30)).token)
            assert held.is_set(), "it came in while the other was inside"

        play(desk, story)
        return token[0]

    async def story(side: Side, one: Opened, _: Opened) -> None:
        first = await side.acquire(one, name)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(waits)
            asked.wait(30)
            with dibs.connect(desk.url) as looking:
                until(lambda: looking.inspect(name).waiters, what="somebody who waits")
            held.set()
            await one.commit()
            assert pending.result(30) > first.token

    play(desk, story)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_a_name(desk: Desk, name: str) -> None:
    async def story(side: Side, one: Opened, other: Opened) -> None:
        assert await side.acquire(one, name)
        assert await side.acquire(other, name, timeout=0) is None

    play(desk, story)


def test_bad_arguments_are_said_before_anything_is_asked(desk: Desk) -> None:
    async def story(side: Side, one: Opened, other: Opened) -> None:
        with pytest.raises(dibs.BadName):
            side.lock(one, "")
        with pytest.raises(ValueError, match="timeout"):
            side.lock(one, "a", timeout=-1)
        with pytest.raises(TypeError):
            side.lock(one, "a", owner=5)
        with pytest.raises(TypeError, match="connection"):
            side.client.within("postgresql://")

    play(desk, story)
