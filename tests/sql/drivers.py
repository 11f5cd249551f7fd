"""One kind of connection to one server, and a fresh table there.

@every_kind         # every kind that `dibs.sql` takes: how it is recognised, and how statements run on it
@every_connection   # without sessions, which run on such a connection: errors and transactions
@own_drivers        # one driver for each server and API: features of the server

Each decorator makes one test for each kind, and runs an async test to its end. Kinds that are not in FIRST go to the
gate.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dibs.aio.sql
import dibs.sql
from dibs.backends import caller_connection
from dibs.runtime.threads import step
from sql.openers import OPENERS, Opened, by_psycopg, by_pymysql

Kinds = list[tuple[str, str]]
KINDS: Kinds = [(server, kind) for server, kinds in OPENERS.items() for kind in kinds]
OWN: Kinds = [
    ("sqlite", "sqlite3"),
    ("postgresql", "psycopg"), ("postgresql", "async-psycopg"),
    ("mysql", "pymysql"), ("mysql", "async-asyncmy"),
]  # fmt: skip
FIRST = {"sqlite3", "psycopg", "async-asyncmy"}
numbers = itertools.count()


def through(kinds: Kinds) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    params = [
        pytest.param(kind, id="-".join(kind), marks=[] if kind[1] in FIRST else pytest.mark.gate) for kind in kinds
    ]

    def decorated(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(driver: Driver, **given: Any) -> None:
            complete(driver, test(driver, **given))

        made = run if inspect.iscoroutinefunction(test) else test
        return pytest.mark.parametrize("driver", params, indirect=True)(made)

    return decorated


def complete(driver: Driver, task: Coroutine[Any, Any, None]) -> None:
    if driver.awaits:
        asyncio.run(task)
    else:  # without a loop: Django refuses to block one
        step(task)


def of_servers(kinds: Kinds) -> Kinds:
    return [(server, kind) for server, kind in kinds if server != "sqlite"]


SESSIONS = ("session", "scoped-session", "async-session")
CONNECTIONS: Kinds = [(server, kind) for server, kind in KINDS if kind not in SESSIONS]
every_kind, every_served_kind = through(KINDS), through(of_servers(KINDS))
every_connection, every_served_connection = through(CONNECTIONS), through(of_servers(CONNECTIONS))
own_drivers, own_served_drivers = through(OWN), through(of_servers(OWN))


class Driver:
    def __init__(self, server: str, kind: str, url: str) -> None:
        self.server, self.kind, self.url = server, kind, url
        self.table = f"invoice_{next(numbers)}"

    async def open(self) -> Opened:
        return await OPENERS[self.server][self.kind](self.url)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Opened]:
        """Rolls back at the end."""
        opened = await self.open()
        try:
            yield opened
        finally:
            await opened.rollback()
            await opened.close()

    @asynccontextmanager
    async def opened(self, *columns: str) -> AsyncIterator[Opened]:
        """Its table has one row: 42, 'open', version 1, and null in the other columns."""
        names = columns or ("id", "state", "version")
        async with self.connected() as opened:
            table, id, state, version, *more = (self.quoted(name) for name in (self.table, *names))
            made = [f"{id} INTEGER", f"{state} VARCHAR(200)", f"{version} INTEGER", *(f"{one} TEXT" for one in more)]
            await self.run(opened, f"CREATE TABLE {table} ({', '.join(made)})")
            await self.run(opened, f"INSERT INTO {table} ({id}, {state}, {version}) VALUES (42, 'open', 1)")
            await opened.commit()
            try:
                yield opened
            finally:
                await opened.rollback()
                await self.run(opened, f"DROP TABLE IF EXISTS {table}")
                await opened.commit()

    def quoted(self, name: str) -> str:
        sign = "`" if self.server == "mysql" else '"'
        return sign + name.replace(sign, sign * 2) + sign

    async def run(self, opened: Opened, text: str) -> list[Any]:
        """A statement without values: a driver that formats with `%` does so even then."""
        own = caller_connection(opened.connection, "connection", awaits=self.awaits)
        _, rows = await own.run(text.replace("%", "%%") if own.mark(1) == "%s" else text, ())
        return rows

    def blocked(self) -> bool:
        """Whether a session of this database waits for a lock."""
        is_mysql = self.server == "mysql"
        waiting = (
            "information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id"
            " WHERE trx_state = 'LOCK WAIT' AND db = database()"
            if is_mysql
            else "pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        opened = step((by_pymysql if is_mysql else by_psycopg)(self.url))
        try:
            cursor = opened.connection.cursor()
            cursor.execute(f"SELECT count(*) FROM {waiting}")
            (count,) = cursor.fetchone().values()
            return bool(count)
        finally:
            opened.connection.close()

    @property
    def awaits(self) -> bool:
        return self.kind.startswith("async-")

    async def update(self, opened: Opened, *args: Any, **options: Any) -> int:
        if self.awaits:
            return await dibs.aio.sql.update_versioned(opened.connection, *args, **options)
        return dibs.sql.update_versioned(opened.connection, *args, **options)

    async def row(self, opened: Opened) -> Any:
        """The row as it is committed."""
        await opened.rollback()
        rows = await self.run(opened, f"SELECT * FROM {self.quoted(self.table)}")
        await opened.rollback()
        (row,) = rows
        return tuple(row)
