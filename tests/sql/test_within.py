"""Locks inside the caller's own transaction, through every kind of connection. Features of one server are tested in
tests/store/postgresql/test_within.py and tests/store/mysql/test_within.py."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from django.utils.connection import ConnectionProxy

import dibs
import dibs.aio
from lab.servers.supervisor import until
from lab.witness import fresh_name
from sql.databases import own_database
from sql.drivers import Driver, complete, every_served_connection, every_served_kind, own_served_drivers
from sql.openers import OPENERS, Opened, django, django_handler
from sql.test_fence import let_it_commit_itself

HOSTILE = ['it\'s "here"; --', "%s {0} $1 :name", "\\'; DROP TABLE dibs_keys; --", "é\u202e\U0001f600", "x" * 512]
TESTS = Path(__file__).parents[1]


class Side:
    """A client of the driver's API, with locks inside transactions of its connections."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.client: Any = (dibs.aio if driver.awaits else dibs).connect(driver.url)

    def lock(self, opened: Opened, name: str, **options: Any) -> Any:
        return self.client.within(opened.connection).lock(name, **options)

    async def acquire(self, opened: Opened, name: str, **options: Any) -> Any:
        found = self.lock(opened, name).acquire(**options)
        return await found if self.driver.awaits else found

    async def enter(self, opened: Opened, name: str, **options: Any) -> Any:
        lock = self.lock(opened, name, **options)
        if self.driver.awaits:
            async with lock as hold:
                return hold
        with lock as hold:
            return hold

    async def close(self) -> None:
        closing = self.client.close()
        if closing is not None:
            await closing


@asynccontextmanager
async def scene(driver: Driver) -> AsyncIterator[tuple[Side, Opened, Opened]]:
    """With two connections of one kind."""
    side = Side(driver)
    try:
        async with driver.connected() as one, driver.connected() as other:
            yield side, one, other
    finally:
        await side.close()


async def held_until_the_end(driver: Driver) -> None:
    name = fresh_name()
    async with scene(driver) as (side, one, other):
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


@every_served_kind
async def test_it_is_held_until_the_transaction_ends(driver: Driver) -> None:
    await held_until_the_end(driver)


_BY_DJANGO = """
import sys, pymysql
pymysql.install_as_MySQLdb()
from sql.test_within import by_django
by_django(sys.argv[1])
"""


def by_django(url: str) -> None:
    OPENERS["mysql"]["django"] = django("mysql")
    driver = Driver("mysql", "django", url)
    complete(driver, held_until_the_end(driver))


@pytest.mark.gate
def test_through_djangos_connection_to_mysql() -> None:
    """In a process of its own: Django's MySQL driver is written in C, and pymysql stands in for it here."""
    program = [sys.executable, "-c", _BY_DJANGO, own_database("mysql")]
    ended = subprocess.run(program, cwd=TESTS, check=False, timeout=120, capture_output=True, text=True)
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
async def test_a_timeout_leaves_the_transaction_as_it_was(driver: Driver) -> None:
    name = fresh_name()
    async with scene(driver) as (side, one, other):
        work = driver.quoted(driver.table)
        await driver.run(other, f"CREATE TABLE {work} (id INTEGER)")
        await other.commit()
        try:
            assert await side.acquire(one, name)
            await driver.run(other, f"INSERT INTO {work} VALUES (7)")
            for timeout in (0, 0.2):
                with pytest.raises(dibs.AcquireTimeout, match="not free"):
                    await side.enter(other, name, timeout=timeout)
                assert await side.acquire(other, name, timeout=timeout) is None
            await other.commit()
            await one.rollback()
            assert [tuple(row) for row in await driver.run(other, f"SELECT id FROM {work}")] == [(7,)]
        finally:
            await other.rollback()
            await driver.run(other, f"DROP TABLE {work}")
            await other.commit()


@own_served_drivers
async def test_a_waiter_gets_it_when_the_other_commits(driver: Driver) -> None:
    name, freed, tokens = fresh_name(), threading.Event(), list[int]()

    async def waits() -> None:
        async with scene(driver) as (side, one, _):
            tokens.append((await side.acquire(one, name, timeout=60)).token)
            assert freed.is_set(), "it came in while the other was inside"

    async with scene(driver) as (side, one, _):
        first = await side.acquire(one, name)
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(lambda: complete(driver, waits()))
            until(driver.blocked, what="a waiter")
            freed.set()
            await one.commit()
            pending.result(60)
        assert tokens[0] > first.token


@own_served_drivers
async def test_without_a_transaction_it_is_refused(driver: Driver) -> None:
    async with scene(driver) as (side, one, _):
        await let_it_commit_itself(driver, one)
        with pytest.raises(dibs.StoreError, match=r"not in a transaction.*begin one first"):
            await side.acquire(one, fresh_name())


@own_served_drivers
async def test_each_acquire_reports_its_outcome(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    name, seen = fresh_name(), list[dibs.Event]()
    interruption = asyncio.CancelledError if driver.awaits else KeyboardInterrupt

    async def interrupted() -> None:
        raise interruption

    async with scene(driver) as (side, one, other):
        stop = dibs.observe(seen.append)
        try:
            hold = await side.acquire(one, name)
            for timeout in (0, 0.1):
                assert await side.acquire(other, name, timeout=timeout) is None
            await other.rollback()
            await let_it_commit_itself(driver, other)
            with pytest.raises(dibs.StoreError):
                await side.acquire(other, name)
            monkeypatch.setattr(side.client._core, "encloses", interrupted)
            with pytest.raises(interruption):
                await side.acquire(one, name)
        finally:
            stop()
        assert [event.what for event in seen] == ["acquired", "busy", "timed_out", "failed", "cancelled"]
        assert {(event.name, event.mode, event.backend) for event in seen} == {(name, "transaction", driver.server)}
        assert (seen[0].token, type(seen[3].error)) == (hold.token, dibs.StoreError)


@own_served_drivers
async def test_bad_arguments_are_refused_before_any_io(driver: Driver) -> None:
    async with scene(driver) as (side, one, _):
        with pytest.raises(dibs.BadName):
            side.lock(one, "")
        with pytest.raises(ValueError, match="timeout"):
            side.lock(one, "a", timeout=-1)
        with pytest.raises(TypeError):
            side.lock(one, "a", owner=5)
        with pytest.raises(TypeError, match="connection"):
            side.client.within("postgresql://")
