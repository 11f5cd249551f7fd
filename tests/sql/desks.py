"""A desk: a fresh table on one server, and connections to it of one kind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import dibs.aio.sql
import dibs.sql
from dibs.backends import own_connection
from dibs.runtime.threads import step
from sql.openers import OPENERS, Opened

numbers = itertools.count()


class Desk:
    def __init__(self, server: str, kind: str, url: str) -> None:
        self.server, self.kind, self.url = server, kind, url
        self.table = f"invoice_{next(numbers)}"

    async def open(self) -> Opened:
        return await OPENERS[self.server][self.kind](self.url)

    @asynccontextmanager
    async def opened(self, *columns: str) -> AsyncIterator[Opened]:
        """Its table has one row: 42, 'open', version 1."""
        names = columns or ("id", "state", "version")
        opened = await self.open()
        try:
            table, id, state, version = (self.quoted(name) for name in (self.table, *names))
            made = f"CREATE TABLE {table} ({id} INTEGER, {state} VARCHAR(200), {version} INTEGER)"
            await self.run(opened, made)
            await self.run(opened, f"INSERT INTO {table} VALUES (42, 'open', 1)")
            await opened.commit()
            yield opened
        finally:
            await opened.rollback()
            await opened.close()

    def quoted(self, name: str) -> str:
        """As the server's manual says, for a statement that has no values."""
        sign = "`" if self.server == "mysql" else '"'
        return sign + name.replace(sign, sign * 2) + sign

    async def run(self, opened: Opened, text: str) -> list[Any]:
        """A statement without values: a driver that formats with `%` does so even then."""
        own = own_connection(opened.connection, "connection", awaits=self.awaits)
        _, rows = await own.run(text.replace("%", "%%") if own.mark(1) == "%s" else text, ())
        return rows

    @property
    def awaits(self) -> bool:
        return self.kind.startswith("async-")

    async def update(self, opened: Opened, *args: Any, **options: Any) -> int:
        if self.awaits:
            return await dibs.aio.sql.update_versioned(opened.connection, *args, **options)
        return dibs.sql.update_versioned(opened.connection, *args, **options)

    async def row(self, opened: Opened) -> Any:
        """As it is committed."""
        await opened.rollback()
        rows = await self.run(opened, f"SELECT * FROM {self.quoted(self.table)}")
        await opened.rollback()
        (row,) = rows
        return tuple(row)


def run(desk: Desk, play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Without a loop where nothing waits for one: Django refuses to block one."""
    if desk.awaits:
        asyncio.run(play())
    else:
        step(play())
