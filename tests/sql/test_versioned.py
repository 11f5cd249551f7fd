"""A version column in a table of the user's own, through every connection that is taken, on real servers."""

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
from sql.desks import Desk, desks, every_connection, every_kind, numbers, own_drivers, run
from sql.openers import Opened

HOSTILE = ['a"b', "a`b", "a;b -- c", "a%b", "%s", "a:b", ":v", "a?b", "$1", "a'b", "a\\b", "sélect", "select", "%(x)s"]


@own_drivers
def test_a_row_is_changed_if_it_is_still_what_was_read(desk: Desk) -> None:
    async def play() -> None:
        async with desk.opened() as ours:
            assert await desk.update(ours, desk.table, {"id": 42}, {"state": "paid"}, 1) == 2
            await ours.commit()
            assert await desk.row(ours) == (42, "paid", 2)
            with pytest.raises(dibs.Conflict, match="it has version 2, not 1") as caught:
                await desk.update(ours, desk.table, {"id": 42}, {"state": "void"}, 1)
            assert caught.value.name == f"{desk.table} id=42"
            assert caught.value.store == desk.server
            with pytest.raises(dibs.Conflict, match="there is no such row"):
                await desk.update(ours, desk.table, {"id": 43}, {"state": "void"}, 1)
            current = {"sqlite": "'main'", "postgresql": "current_schema()", "mysql": "database()"}[desk.server]
            ((schema,),) = await desk.run(ours, f"SELECT {current}")
            assert await desk.update(ours, (schema, desk.table), {"id": 42, "state": "paid"}, {}, 2) == 3
            await ours.commit()
            assert await desk.row(ours) == (42, "paid", 3)
            await desk.run(ours, f"INSERT INTO {desk.quoted(desk.table)} VALUES (42, 'other', 3)")
            with pytest.raises(dibs.StoreError, match=r"the key names 2 rows, not one.*roll back"):
                await desk.update(ours, desk.table, {"id": 42}, {"state": "void"}, 3)
            assert await desk.row(ours) == (42, "paid", 3)

    run(desk, play)


@every_connection
def test_the_second_writer_in_an_open_transaction_gets_a_conflict(desk: Desk) -> None:
    second_writer(desk, "REPEATABLE READ")


@own_drivers
def test_the_second_writer_that_sees_the_new_row_gets_a_conflict(desk: Desk) -> None:
    second_writer(desk, "READ COMMITTED")


def second_writer(desk: Desk, isolation: str) -> None:
    """Where the snapshot is kept, PostgreSQL and SQLite refuse the write themselves; MySQL would show the old row."""
    if desk.kind == "django" or (desk.server == "sqlite" and isolation == "READ COMMITTED"):
        begin = ""
    elif desk.server == "sqlite":
        begin = "BEGIN"
    else:
        begin = f"SET {'SESSION ' if desk.server == 'mysql' else ''}TRANSACTION ISOLATION LEVEL {isolation}"

    async def play() -> None:
        async with desk.opened() as ours, desk.connected() as theirs:
            if begin:
                await desk.run(ours, begin)
            await desk.run(ours, f"SELECT version FROM {desk.quoted(desk.table)}")
            await desk.update(theirs, desk.table, {"id": 42}, {"state": "void"}, 1)
            await theirs.commit()
            with pytest.raises(dibs.Conflict, match=r"version 2, not 1|after this transaction began to read"):
                await desk.update(ours, desk.table, {"id": 42}, {"state": "paid"}, 1)
            assert await desk.row(ours) == (42, "void", 2)

    run(desk, play)


@every_kind
def test_names_are_quoted_and_values_are_bound(desk: Desk) -> None:
    """The transaction stays the caller's, and so do the errors of its driver."""
    desk.table = f"{''.join(HOSTILE)[:50]} {next(numbers)}"
    value = "'); DROP TABLE x; -- %s \" ` \\ :v $1 ? é"

    async def play() -> None:
        async with desk.opened("a%s id", 'a" state', ":v version ?", *HOSTILE) as ours:
            changes = dict.fromkeys(['a" state', *HOSTILE], value)
            asked = desk.table, {"a%s id": 42}, changes, 1
            assert await desk.update(ours, *asked, column=":v version ?") == 2
            nulls = [None] * len(HOSTILE)
            assert await desk.row(ours) == (42, "open", 1, *nulls), "rolled back by the caller"
            assert await desk.update(ours, *asked, column=":v version ?") == 2
            await ours.commit()
            assert await desk.row(ours) == (42, value, 2, *[value] * len(HOSTILE))
            with pytest.raises(dibs.Conflict, match="it has version 2, not 1"):
                await desk.update(ours, *asked, column=":v version ?")
            await ours.rollback()
            with pytest.raises(Exception, match=r"(?i)nothing_here") as caught:
                await desk.update(ours, "nothing_here", {"id": 42}, {"state": "paid"}, 1)
            assert not isinstance(caught.value, dibs.DibsError)
            await ours.rollback()
            api = "async API, dibs.aio" if desk.awaits else "sync API, dibs"
            with pytest.raises(TypeError, match=rf"is for the {api}$"):
                await by_the_other_api(desk, ours.connection, *asked)

    run(desk, play)


async def by_the_other_api(desk: Desk, *asked: Any) -> None:
    _ = dibs.sql.update_versioned(*asked) if desk.awaits else await dibs.aio.sql.update_versioned(*asked)


@desks([("sqlite", "sqlite3"), ("postgresql", "psycopg"), ("mysql", "pymysql")])
def test_many_at_once_lose_nothing(desk: Desk) -> None:
    """Each reads, adds one and writes, again whenever somebody else came before."""

    async def add(opened: Opened, table: str) -> None:
        await opened.rollback()
        ((count, version),) = await desk.run(opened, f"SELECT state, version FROM {table}")
        await desk.update(opened, desk.table, {"id": 42}, {"state": str(int(count) + 1)}, version)
        await opened.commit()

    async def worker() -> None:
        async with desk.connected() as opened:
            for _ in range(10):
                dibs.sql.retry_versioned(lambda: step(add(opened, desk.quoted(desk.table))), tries=200)

    async def play() -> None:
        async with desk.opened() as ours:
            await desk.run(ours, f"UPDATE {desk.quoted(desk.table)} SET state = '0'")
            await ours.commit()
            with ThreadPoolExecutor(4) as pool:
                for done in [pool.submit(lambda: step(worker())) for _ in range(4)]:
                    done.result()
            assert await desk.row(ours) == (42, "40", 41)

    run(desk, play)


@pytest.mark.parametrize("ends", [0, 2, 3])
def test_an_attempt_is_made_again_while_it_conflicts(ends: int) -> None:
    calls: list[int] = []

    def attempt() -> int:
        calls.append(1)
        if len(calls) <= ends:
            raise dibs.Conflict("somebody else was here")
        return len(calls)

    async def awaited() -> int:
        return attempt()

    for retry in (
        lambda: dibs.sql.retry_versioned(attempt, tries=3),
        lambda: asyncio.run(dibs.aio.sql.retry_versioned(awaited, tries=3)),
    ):
        calls.clear()
        if ends < 3:
            assert retry() == ends + 1
        else:
            with pytest.raises(dibs.Conflict):
                retry()
            assert len(calls) == 3


def test_another_error_ends_the_attempts() -> None:
    calls: list[int] = []

    def attempt() -> None:
        calls.append(1)
        raise LookupError

    with pytest.raises(LookupError):
        dibs.sql.retry_versioned(attempt)
    assert len(calls) == 1


@pytest.mark.parametrize("tries", [0, -1, True, "3", 1.5, None])
def test_tries_are_checked(tries: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="tries"):
        dibs.sql.retry_versioned(lambda: 1, tries=tries)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
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
    ],
    ids=str,
)
def test_bad_input_is_told_before_anything_is_asked(wrong: dict[str, Any], told: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "own.db")
    try:
        good = {"connection": connection, "table": "t", "key": {"id": 1}, "changes": {"a": 1}, "version": 1}
        with pytest.raises((TypeError, ValueError), match=told):
            dibs.sql.update_versioned(**{**good, **wrong})
    finally:
        connection.close()
