"""`dibs.sql`, awaited: for connections of psycopg (AsyncConnection), asyncmy, and SQLAlchemy (AsyncConnection and
AsyncSession).

    async with engine.begin() as connection:
        await dibs.aio.sql.update_versioned(connection, "invoice", {"id": 42}, {"paid": True}, version)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from dibs.backends import caller_connection
from dibs.backends.sql import versioned
from dibs.runtime.aio import AioRuntime

__all__ = ["retry_versioned", "update_versioned"]

T = TypeVar("T")


async def update_versioned(
    connection: Any,
    table: str | tuple[str, str],
    key: Mapping[str, Any],
    changes: Mapping[str, Any],
    version: int,
    *,
    column: str = "version",
) -> int:
    """Change a row, if its version column still has this version. Nothing here begins, commits or rolls back.

    Args:
        connection: An open connection of your own. In the sync API of psycopg, PyMySQL, sqlite3, SQLAlchemy (or a
            Session), or Django; in the async API of psycopg, asyncmy or SQLAlchemy.
        table: The name of the table, or its schema and its name.
        key: The columns that identify the row, with their values.
        changes: The columns to write, with their values.
        version: The version that you read.
        column: The name of the version column, `"version"` by default.

    Returns:
        The new version, which is one more.

    Raises:
        Conflict: The row has another version, or is gone. Nothing was changed.
    """
    change = versioned.Change(table, key, changes, version, column)
    own = caller_connection(connection, "connection", awaits=True)
    return await versioned.update(own, change)


async def retry_versioned(attempt: Callable[[], Awaitable[T]], *, tries: int = versioned.TRIES) -> T:
    """Call a function, and call it again, after a pause that grows, while it raises `Conflict`.

    Args:
        attempt: Does the whole work, from reading the row to the commit: within one transaction, a second read may
            show the old row for ever. In the async API a coroutine function.
        tries: How often it is called at most. The default is 40.

    Returns:
        What it returned.

    Raises:
        Conflict: The last try raised it.
    """
    return await versioned.again(attempt, tries, AioRuntime())
