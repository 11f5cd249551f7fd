"""A version column in a table of the caller, through every kind of connection, on real servers."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio.sql
import dibs.sql
from dibs.runtime.threads import step
from sql.drivers import Driver, every_connection, every_kind, numbers, own_drivers, through
from sql.openers import Opened

HOSTILE = ['a"b', "a`b", "a;b -- c", "a%b", "%s", "a:b", ":v", "a?b", "$1", "a'b", "a\\b", "sélect", "select", "%(x)s"]


@own_drivers
async def test_a_row_is_changed_if_it_is_still_what_was_read(driver: Driver) -> None:
    async with driver.opened() as ours:
        assert await driver.update(ours, driver.table, {"id": 42}, {"state": "paid"}, 1) == 2
        await ours.commit()
        assert await driver.row(ours) == (42, "paid", 2)
        with pytest.raises(dibs.Conflict, match="it has version 2, not 1") as caught:
            await driver.update(ours, driver.table, {"id": 42}, {"state": "void"}, 1)
        assert caught.value.name == f"{driver.table} id=42"
        assert caught.value.store == driver.server
        with pytest.raises(dibs.Conflict, match="there is no such row"):
            await driver.update(ours, driver.table, {"id": 43}, {"state": "void"}, 1)
        current = {"sqlite": "'main'", "postgresql": "current_schema()", "mysql": "database()"}[driver.server]
        ((schema,),) = await driver.run(ours, f"SELECT {current}")
        assert await driver.update(ours, (schema, driver.table), {"id": 42, "state": "paid"}, {}, 2) == 3
        await ours.commit()
        assert await driver.row(ours) == (42, "paid", 3)
        await driver.run(ours, f"INSERT INTO {driver.quoted(driver.table)} VALUES (42, 'other', 3)")
        with pytest.raises(dibs.StoreError, match=r"the key names 2 rows, not one.*roll back"):
            await driver.update(ours, driver.table, {"id": 42}, {"state": "void"}, 3)
        assert await driver.row(ours) == (42, "paid", 3)


@every_connection
async def test_the_second_writer_in_an_open_transaction_gets_a_conflict(driver: Driver) -> None:
    await second_writer(driver, "REPEATABLE READ")


@pytest.mark.gate
@own_drivers
async def test_the_second_writer_that_sees_the_new_row_gets_a_conflict(driver: Driver) -> None:
    await second_writer(driver, "READ COMMITTED")


async def second_writer(driver: Driver, isolation: str) -> None:
    """Where the snapshot is kept, PostgreSQL and SQLite refuse the write themselves; MySQL would show the old row."""
    if driver.kind == "django" or (driver.server == "sqlite" and isolation == "READ COMMITTED"):
        begin = ""
    elif driver.server == "sqlite":
        begin = "BEGIN"
    else:
        begin = f"SET {'SESSION ' if driver.server == 'mysql' else ''}TRANSACTION ISOLATION LEVEL {isolation}"
    async with driver.opened() as ours, driver.connected() as theirs:
        if begin:
            await driver.run(ours, begin)
        await driver.run(ours, f"SELECT version FROM {driver.quoted(driver.table)}")
        await driver.update(theirs, driver.table, {"id": 42}, {"state": "void"}, 1)
        await theirs.commit()
        with pytest.raises(dibs.Conflict, match=r"version 2, not 1|after this transaction began to read"):
            await driver.update(ours, driver.table, {"id": 42}, {"state": "paid"}, 1)
        assert await driver.row(ours) == (42, "void", 2)


@every_kind
async def test_names_are_quoted_and_values_are_bound(driver: Driver) -> None:
    """The transaction stays the caller's, and so do the errors of its driver."""
    driver.table = f"{''.join(HOSTILE)[:50]} {next(numbers)}"
    value = "'); DROP TABLE x; -- %s \" ` \\ :v $1 ? é"
    async with driver.opened("a%s id", 'a" state', ":v version ?", *HOSTILE) as ours:
        changes = dict.fromkeys(['a" state', *HOSTILE], value)
        asked = driver.table, {"a%s id": 42}, changes, 1
        assert await driver.update(ours, *asked, column=":v version ?") == 2
        nulls = [None] * len(HOSTILE)
        assert await driver.row(ours) == (42, "open", 1, *nulls), "rolled back by the caller"
        assert await driver.update(ours, *asked, column=":v version ?") == 2
        await ours.commit()
        assert await driver.row(ours) == (42, value, 2, *[value] * len(HOSTILE))
        with pytest.raises(dibs.Conflict, match="it has version 2, not 1"):
            await driver.update(ours, *asked, column=":v version ?")
        await ours.rollback()
        with pytest.raises(Exception, match=r"(?i)nothing_here") as caught:
            await driver.update(ours, "nothing_here", {"id": 42}, {"state": "paid"}, 1)
        assert not isinstance(caught.value, dibs.DibsError)
        await ours.rollback()
        if driver.awaits:
            with pytest.raises(TypeError, match=r"is for the async API, dibs.aio$"):
                dibs.sql.update_versioned(ours.connection, *asked)
        else:
            with pytest.raises(TypeError, match=r"is for the sync API, dibs$"):
                await dibs.aio.sql.update_versioned(ours.connection, *asked)


@pytest.mark.gate
@through([("sqlite", "sqlite3"), ("postgresql", "psycopg"), ("mysql", "pymysql")])
async def test_many_at_once_lose_nothing(driver: Driver) -> None:
    """Each reads, adds one and writes, and retries after a conflict."""

    async def add(opened: Opened, table: str) -> None:
        await opened.rollback()
        ((count, version),) = await driver.run(opened, f"SELECT state, version FROM {table}")
        await driver.update(opened, driver.table, {"id": 42}, {"state": str(int(count) + 1)}, version)
        await opened.commit()

    async def worker() -> None:
        async with driver.connected() as opened:
            for _ in range(10):
                dibs.sql.retry_versioned(lambda: step(add(opened, driver.quoted(driver.table))), tries=200)

    async with driver.opened() as ours:
        await driver.run(ours, f"UPDATE {driver.quoted(driver.table)} SET state = '0'")
        await ours.commit()
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(lambda: step(worker())) for _ in range(4)]:
                done.result()
        assert await driver.row(ours) == (42, "40", 41)


def test_an_attempt_is_repeated_while_it_conflicts() -> None:
    calls: list[int] = []

    def attempt(conflicts: int) -> int:
        calls.append(1)
        if len(calls) <= conflicts:
            raise dibs.Conflict("another writer was first")
        return len(calls)

    async def awaited(conflicts: int) -> int:
        return attempt(conflicts)

    for retry in (
        lambda conflicts: dibs.sql.retry_versioned(lambda: attempt(conflicts), tries=3),
        lambda conflicts: asyncio.run(dibs.aio.sql.retry_versioned(lambda: awaited(conflicts), tries=3)),
    ):
        for conflicts in (0, 2):
            calls.clear()
            assert retry(conflicts) == conflicts + 1
        calls.clear()
        with pytest.raises(dibs.Conflict):
            retry(3)
        assert len(calls) == 3


def test_another_error_ends_the_attempts() -> None:
    calls: list[int] = []

    def attempt() -> None:
        calls.append(1)
        raise LookupError

    with pytest.raises(LookupError):
        dibs.sql.retry_versioned(attempt)
    assert len(calls) == 1


def test_tries_are_checked() -> None:
    for tries in (0, -1, True, "3", 1.5, None):
        with pytest.raises((TypeError, ValueError), match="tries"):
            dibs.sql.retry_versioned(lambda: 1, tries=tries)  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"key": {}}, "at least one column"),
    ({"key": {"id": None}}, "None"),
    ({"key": [("id", 1)]}, "key must be a mapping"),
    ({"changes": "state"}, "changes must be a mapping"),
    ({"changes": {"": 1}}, "changes must not be empty"),
    ({"changes": {"a\0": 1}}, "NUL"),
    ({"changes": {3: 1}}, "must be a str"),
    ({"changes": {"version": 3}}, "leave it out"),
    ({"key": {"version": 3}}, "leave it out"),
    ({"table": ""}, "table must not be empty"),
    ({"table": ("a", "b", "c")}, "a schema and a name|schema and its name"),
    ({"table": 3}, "table must be"),
    ({"version": "1"}, "version must be an int"),
    ({"version": True}, "version must be an int"),
    ({"version": None}, "version must be an int"),
    ({"column": ""}, "column must not be empty"),
    ({"connection": "postgresql://"}, "connection must be an open connection"),
    ({"connection": None}, "connection must be an open connection"),
]


def test_bad_input_is_refused_before_any_request(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "own.db")
    good = {"connection": connection, "table": "t", "key": {"id": 1}, "changes": {"a": 1}, "version": 1}
    try:
        for wrong, words in WRONG:
            with pytest.raises((TypeError, ValueError), match=words):
                dibs.sql.update_versioned(**{**good, **wrong})
    finally:
        connection.close()
