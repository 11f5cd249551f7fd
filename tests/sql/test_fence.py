"""A fence inside the caller's own transaction on PostgreSQL and MariaDB. SQLite has its own tests in
tests/store/sqlite."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

import dibs
import dibs.aio
from dibs.backends.sql.fence import MYSQL_TABLE
from dibs.runtime.threads import step
from lab.servers.supervisor import until
from lab.witness import fresh_name
from sql.desks import Desk, desks, every_served_kind, own_served_drivers, run
from sql.openers import OPENERS, Opened, by_psycopg, mysql_options

Urls = Callable[[str], str]
ODD_NAMES = ["a'b", 'a"b', "A", "a", "a ", "\u00e4", "a\u0308", "%s", ":v", "$1", "?", "\\", "x" * 512]


@pytest.fixture
def ready(desk: Desk) -> Desk:
    """The table exists: its first use has tests of its own."""
    if desk.server == "mysql":
        made = pymysql.connect(**mysql_options(desk.url))
        made.cursor().execute(MYSQL_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
        made.close()
    return desk


async def admit(desk: Desk, opened: Opened, name: str, token: int, **options: Any) -> None:
    if desk.awaits:
        async with dibs.aio.connect("memory://") as client:
            await client.fence(name).admit(token, within=opened.connection, **options)
    else:
        with dibs.connect("memory://") as client:
            client.fence(name).admit(token, within=opened.connection, **options)


@every_served_kind
def test_the_record_is_committed_and_rolled_back_with_the_change(ready: Desk) -> None:
    name = fresh_name()

    async def play() -> None:
        async with ready.connected() as opened:
            await admit(ready, opened, name, 5)
            await opened.commit()
            await admit(ready, opened, name, 9)
            await opened.rollback()
            await admit(ready, opened, name, 7)
            await opened.commit()
            with pytest.raises(dibs.StaleToken, match="token 6 is stale: 7 was admitted before") as caught:
                await admit(ready, opened, name, 6)
            assert (caught.value.name, caught.value.store) == (name, "your own transaction")
            await admit(ready, opened, name, 7)
            await admit(ready, opened, name, 7, shared=True)
            await admit(ready, opened, name, 8, shared=True)
            await admit(ready, opened, name, 7)
            with pytest.raises(dibs.StaleToken, match="token 6 is stale"):
                await admit(ready, opened, name, 6, shared=True)
            await admit(ready, opened, name, 2**63 - 1)
            for _ in range(2):  # each odd name is a record of its own
                for token, odd in enumerate(ODD_NAMES, 1):
                    await admit(ready, opened, odd, token)

    run(ready, play)


@every_served_kind
def test_without_a_transaction_nothing_is_admitted(ready: Desk) -> None:
    name = fresh_name()

    async def play() -> None:
        async with ready.connected() as opened:
            await let_it_commit_itself(ready, opened)
            with pytest.raises(dibs.StoreError, match=r"not in a transaction.*begin one first") as caught:
                await admit(ready, opened, name, 5)
            assert caught.value.name == name
            assert not isinstance(caught.value, dibs.StoreUnavailable)

    run(ready, play)


async def let_it_commit_itself(desk: Desk, opened: Opened) -> None:
    connection = opened.connection
    if desk.kind == "psycopg":
        connection.autocommit = True
    elif desk.kind == "async-psycopg":
        await connection.set_autocommit(True)
    elif desk.kind == "pymysql":
        connection.autocommit(True)
    elif desk.kind == "async-asyncmy":
        await connection.autocommit(True)
    elif desk.kind == "django":
        connection.set_autocommit(True)
    elif desk.kind.startswith("sqlalchemy"):
        connection.execution_options(isolation_level="AUTOCOMMIT")
    elif desk.kind in ("async-sqlalchemy", "async-asyncpg"):
        await connection.execution_options(isolation_level="AUTOCOMMIT")
    elif desk.kind in ("session", "scoped-session"):
        connection.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
    else:
        await connection.connection(execution_options={"isolation_level": "AUTOCOMMIT"})


@own_served_drivers
def test_nobody_is_admitted_between_the_check_and_the_end(ready: Desk) -> None:
    """A second transaction waits for the first, and sees what it left."""
    name, admitted = fresh_name(), threading.Event()

    async def first() -> None:
        async with ready.connected() as opened:
            await admit(ready, opened, name, 5)
            other = threading.Thread(target=lambda: run(ready, second))
            other.start()
            until(ready.blocked, what="the other waits for our row")
            assert not admitted.is_set()
            await admit(ready, opened, name, 7)
            await opened.commit()
            await asyncio.to_thread(other.join, 60) if ready.awaits else other.join(60)

    told: list[str] = []

    async def second() -> None:
        async with ready.connected() as opened:
            try:
                await admit(ready, opened, name, 6)
            except dibs.StaleToken as error:
                told.append(error.what)
            finally:
                admitted.set()

    run(ready, first)
    assert told == ["token 6 is stale: 7 was admitted before"]


def test_the_first_use_on_postgresql_makes_the_table_also_by_many_at_once(urls: Urls) -> None:
    url = urls("postgresql")
    opened = step(by_psycopg(url))
    opened.connection.execute("DROP TABLE IF EXISTS dibs_fence")
    opened.connection.commit()

    async def one(token: int) -> None:
        opened = await by_psycopg(url)
        try:
            with dibs.connect("memory://") as client:
                client.fence(f"first use {token}").admit(token, within=opened.connection)
            await opened.commit()
        finally:
            await opened.close()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(lambda token=token: step(one(token))) for token in range(1, 9)]:
            done.result()
    rows = opened.connection.execute("SELECT token FROM dibs_fence ORDER BY token").fetchall()
    opened.connection.close()
    assert [row["token"] for row in rows] == list(range(1, 9))


def test_the_first_use_on_mysql_says_what_to_make_and_ends_no_transaction(urls: Urls) -> None:
    connection = pymysql.connect(**mysql_options(urls("mysql")))
    try:
        cursor = connection.cursor()
        cursor.execute("DROP TABLE IF EXISTS dibs_fence")
        cursor.execute("CREATE TABLE IF NOT EXISTS change_of_ours (n INTEGER)")
        cursor.execute("INSERT INTO change_of_ours VALUES (1)")
        with (
            dibs.connect("memory://") as client,
            pytest.raises(dibs.StoreError, match="CREATE TABLE dibs_fence") as told,
        ):
            client.fence("stock").admit(5, within=connection)
        assert told.value.name == "stock"
        connection.rollback()
        cursor.execute("SELECT count(*) FROM change_of_ours")
        assert cursor.fetchone() == (0,)
        cursor.execute("DROP TABLE change_of_ours")
        assert told.value.step is not None
        cursor.execute(told.value.step)
        with dibs.connect("memory://") as client:
            client.fence("stock").admit(5, within=connection)
    finally:
        connection.close()


@desks([("sqlite", kind) for kind in OPENERS["sqlite"] if kind != "sqlite3"])
def test_on_sqlite_the_connection_below_is_asked_for(desk: Desk) -> None:
    async def play() -> None:
        async with desk.connected() as opened:
            with pytest.raises(dibs.Unsupported, match=r'"stock" on your own transaction: .*sqlite3'):
                await admit(desk, opened, "stock", 5)

    run(desk, play)


@desks([("postgresql", "async-psycopg"), ("mysql", "pymysql")])
def test_each_api_has_its_connections(desk: Desk) -> None:
    async def play() -> None:
        async with desk.connected() as opened:
            with dibs.connect("memory://") as client:
                other = dibs.aio.connect("memory://").fence("stock") if not desk.awaits else client.fence("stock")
                with pytest.raises(TypeError, match="is for the"):
                    _ = other.admit(5, within=opened.connection) if desk.awaits else step(_awaited(other, opened))

    run(desk, play)


async def _awaited(fence: dibs.aio.Fence, opened: Opened) -> None:
    await fence.admit(5, within=opened.connection)
