"""A fence inside the caller's own transaction on PostgreSQL and MariaDB; tests/store/sqlite has those of SQLite."""

from __future__ import annotations

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
from sql.drivers import Driver, complete, every_served_kind, own_served_drivers, through
from sql.openers import OPENERS, Opened, by_psycopg, mysql_options

Urls = Callable[[str], str]
ODD_NAMES = ["a'b", 'a"b', "A", "a", "a ", "\u00e4", "a\u0308", "%s", ":v", "$1", "?", "\\", "x" * 512]


@pytest.fixture
def driver(driver: Driver) -> Driver:
    """The table exists: its first use has tests of its own."""
    if driver.server == "mysql":
        made = pymysql.connect(**mysql_options(driver.url))
        made.cursor().execute(MYSQL_TABLE.replace("TABLE", "TABLE IF NOT EXISTS", 1))
        made.close()
    return driver


async def admit(driver: Driver, opened: Opened, name: str, token: int, **options: Any) -> None:
    if driver.awaits:
        async with dibs.aio.connect("memory://") as client:
            await client.fence(name).admit(token, within=opened.connection, **options)
    else:
        with dibs.connect("memory://") as client:
            client.fence(name).admit(token, within=opened.connection, **options)


@every_served_kind
async def test_the_record_is_committed_and_rolled_back_with_the_change(driver: Driver) -> None:
    name = fresh_name()
    async with driver.connected() as opened:
        await admit(driver, opened, name, 5)
        await opened.commit()
        await admit(driver, opened, name, 9)
        await opened.rollback()
        await admit(driver, opened, name, 7)
        await opened.commit()
        with pytest.raises(dibs.StaleToken, match="token 6 is stale: 7 was admitted before") as caught:
            await admit(driver, opened, name, 6)
        assert (caught.value.name, caught.value.store) == (name, "your own transaction")
        await admit(driver, opened, name, 7)
        await admit(driver, opened, name, 7, shared=True)
        await admit(driver, opened, name, 8, shared=True)
        await admit(driver, opened, name, 7)
        with pytest.raises(dibs.StaleToken, match="token 6 is stale"):
            await admit(driver, opened, name, 6, shared=True)
        await admit(driver, opened, name, 2**63 - 1)
        for _ in range(2):  # each odd name is a record of its own
            for token, odd in enumerate(ODD_NAMES, 1):
                await admit(driver, opened, odd, token)


@every_served_kind
async def test_without_a_transaction_nothing_is_admitted(driver: Driver) -> None:
    name = fresh_name()
    async with driver.connected() as opened:
        await let_it_commit_itself(driver, opened)
        with pytest.raises(dibs.StoreError, match=r"not in a transaction.*begin one first") as caught:
            await admit(driver, opened, name, 5)
        assert caught.value.name == name
        assert not isinstance(caught.value, dibs.StoreUnavailable)


async def let_it_commit_itself(driver: Driver, opened: Opened) -> None:
    connection, kind = opened.connection, driver.kind
    options = {"isolation_level": "AUTOCOMMIT"}
    done: Any = None
    if kind == "psycopg":
        connection.autocommit = True
    elif kind in ("async-psycopg", "django"):
        done = connection.set_autocommit(True)
    elif kind in ("pymysql", "async-asyncmy"):
        done = connection.autocommit(True)
    elif kind.endswith("session"):
        done = connection.connection(execution_options=options)
    else:
        done = connection.execution_options(**options)
    if driver.awaits:
        await done


@own_served_drivers
async def test_no_token_is_admitted_between_the_check_and_the_end(driver: Driver) -> None:
    """A second transaction waits for the first, and sees what it left."""
    name, refusals = fresh_name(), list[str]()

    async def second() -> None:
        async with driver.connected() as opened:
            try:
                await admit(driver, opened, name, 6)
            except dibs.StaleToken as error:
                refusals.append(error.what)

    async with driver.connected() as opened:
        await admit(driver, opened, name, 5)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(lambda: complete(driver, second()))
            until(driver.blocked, what="the other waits for our row")
            await admit(driver, opened, name, 7)
            await opened.commit()
            other.result(60)
    assert refusals == ["token 6 is stale: 7 was admitted before"]


@pytest.mark.gate
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


@through([("sqlite", kind) for kind in OPENERS["sqlite"] if kind != "sqlite3"])
async def test_on_sqlite_the_connection_below_is_asked_for(driver: Driver) -> None:
    async with driver.connected() as opened:
        with pytest.raises(dibs.Unsupported, match=r'"stock" on your own transaction: .*sqlite3'):
            await admit(driver, opened, "stock", 5)


@through([("postgresql", "psycopg"), ("mysql", "async-asyncmy")])
async def test_each_api_has_its_connections(driver: Driver) -> None:
    async with driver.connected() as opened:
        refused = pytest.raises(TypeError, match="is for the")
        if driver.awaits:
            with dibs.connect("memory://") as client, refused:
                client.fence("stock").admit(5, within=opened.connection)
        else:
            with refused:
                await dibs.aio.connect("memory://").fence("stock").admit(5, within=opened.connection)
