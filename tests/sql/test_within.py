"""Locks inside the caller's own transaction, through every connection that is taken. What only one server has is in
tests/store/postgresql/test_within.py and tests/store/mysql/test_within.py."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.utils.connection import ConnectionProxy

import dibs
import dibs.aio
from lab.servers.supervisor import until
from lab.witness import fresh_name
from sql.databases import own_database
from sql.desks import Desk, every_served_connection, every_served_kind, own_served_drivers, run
from sql.openers import OPENERS, Opened, django, django_handler
from sql.test_fence import let_it_commit_itself

HOSTILE = ['it\'s "here"; --', "%s {0} $1 :name", "\\'; DROP TABLE dibs_keys; --", "é\u202e\U0001f600", "x" * 512]
TESTS = Path(__file__).parents[1]


class Side:
    """A client of the desk's API, and locks inside transactions of its connections."""

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
        side = Side(desk)
        try:
            async with desk.connected() as one, desk.connected() as other:
                await story(side, one, other)
        finally:
            await side.close()

    run(desk, whole)


def held_until_the_end(desk: Desk) -> None:
    name = fresh_name()

    async def story(side: Side, one: Opened, other: Opened) -> None:
        hold = await side.enter(one, name, timeout=30, owner="ana")
        assert (hold.name, hold.mode, hold.owner) == (name, "exclusive", "ana")
        assert (await side.acquire(one, name, timeout=0)).token > hold.token, "the same transaction, again"
        assert await side.acquire(other, name, timeout=0) is None, "leaving the with frees nothing"
        assert await side.acquire(other, name, blocking=False) is None
        await one.commit()
        won = await side.acquire(other, name, timeout=0)
        assert won.token > hold.token
        assert await side.acquire(one, name, timeout=0) is None
        for hostile in HOSTILE:
            assert await side.acquire(one, hostile, timeout=0), "two names never block each other"
            assert await side.acquire(other, hostile, timeout=0) is None
        await other.rollback()
        assert (await side.acquire(one, name)).token > won.token

    play(desk, story)


@every_served_kind
def test_it_is_held_until_the_transaction_ends(desk: Desk) -> None:
    held_until_the_end(desk)


_BY_DJANGO = """
import sys, pymysql
pymysql.install_as_MySQLdb()
from sql.test_within import by_django
by_django(sys.argv[1])
"""


def by_django(url: str) -> None:
    OPENERS["mysql"]["django"] = django("mysql")
    held_until_the_end(Desk("mysql", "django", url))


@pytest.mark.timeout(150)
def test_through_djangos_connection_to_mysql() -> None:
    """In a process of its own: Django's MySQL driver is written in C, and pymysql stands in for it here."""
    program = [sys.executable, "-c", _BY_DJANGO, own_database("mysql")]
    ended = subprocess.run(program, cwd=TESTS, check=False, timeout=140, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr


def test_djangos_proxy_leads_to_the_connection_of_each_thread() -> None:
    """As `django.db.connection` does: `within` may be called once, when a module is imported."""
    url = own_database("postgresql")
    handler, tokens = django_handler("postgresql", url), list[int]()

    def take() -> None:
        connection = handler["default"]
        connection.set_autocommit(False)
        try:
            tokens.append(locks.lock("a").acquire(timeout=30).token)
        finally:
            connection.close()

    with dibs.connect(url) as client:
        locks: Any = client.within(ConnectionProxy(handler, "default"))
        take()
        with ThreadPoolExecutor(1) as other:
            other.submit(take).result()
    assert len(tokens) == 2


@every_served_connection
def test_a_timeout_leaves_the_transaction_as_it_was(desk: Desk) -> None:
    name = fresh_name()

    async def story(side: Side, one: Opened, other: Opened) -> None:
        work = desk.quoted(desk.table)
        await desk.run(other, f"CREATE TABLE {work} (id INTEGER)")
        await other.commit()
        try:
            assert await side.acquire(one, name)
            await desk.run(other, f"INSERT INTO {work} VALUES (7)")
            for timeout in (0, 0.2):
                with pytest.raises(dibs.AcquireTimeout, match="not free"):
                    await side.enter(other, name, timeout=timeout)
                assert await side.acquire(other, name, timeout=timeout) is None
            await other.commit()
            await one.rollback()
            assert [tuple(row) for row in await desk.run(other, f"SELECT id FROM {work}")] == [(7,)]
        finally:
            await other.rollback()
            await desk.run(other, f"DROP TABLE {work}")
            await other.commit()

    play(desk, story)


@own_served_drivers
def test_a_waiter_gets_it_when_the_other_commits(desk: Desk) -> None:
    name, freed = fresh_name(), threading.Event()

    def waits() -> int:
        token: list[int] = []

        async def story(side: Side, one: Opened, _: Opened) -> None:
            token.append((await side.acquire(one, name, timeout=60)).token)
            assert freed.is_set(), "it came in while the other was inside"

        play(desk, story)
        return token[0]

    async def story(side: Side, one: Opened, _: Opened) -> None:
        first = await side.acquire(one, name)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(waits)
            until(desk.blocked, what="somebody who waits")
            freed.set()
            await one.commit()
            assert pending.result(60) > first.token

    play(desk, story)


@own_served_drivers
def test_without_a_transaction_it_is_refused(desk: Desk) -> None:
    async def story(side: Side, one: Opened, _: Opened) -> None:
        await let_it_commit_itself(desk, one)
        with pytest.raises(dibs.StoreError, match=r"not in a transaction.*begin one first"):
            await side.acquire(one, fresh_name())

    play(desk, story)


@own_served_drivers
def test_each_acquire_reports_its_outcome(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    name, seen = fresh_name(), list[dibs.Event]()
    interruption = asyncio.CancelledError if desk.awaits else KeyboardInterrupt

    async def interrupted() -> None:
        raise interruption

    async def story(side: Side, one: Opened, other: Opened) -> None:
        stop = dibs.observe(seen.append)
        try:
            hold = await side.acquire(one, name)
            for timeout in (0, 0.1):
                assert await side.acquire(other, name, timeout=timeout) is None
            await other.rollback()
            await let_it_commit_itself(desk, other)
            with pytest.raises(dibs.StoreError):
                await side.acquire(other, name)
            monkeypatch.setattr(side.client._core, "encloses", interrupted)
            with pytest.raises(interruption):
                await side.acquire(one, name)
        finally:
            stop()
        assert [event.what for event in seen] == ["acquired", "busy", "timed_out", "failed", "cancelled"]
        assert {(event.name, event.mode, event.backend) for event in seen} == {(name, "transaction", desk.server)}
        assert (seen[0].token, type(seen[3].error)) == (hold.token, dibs.StoreError)

    play(desk, story)


@own_served_drivers
def test_bad_arguments_are_refused_before_any_io(desk: Desk) -> None:
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
