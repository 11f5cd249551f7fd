"""A version column in your own table: write a row only if it has not changed. `dibs.aio.sql` is the async API.

>>> import sqlite3, dibs.sql
>>> connection = sqlite3.connect(":memory:")
>>> _ = connection.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, paid INTEGER, version INTEGER)")
>>> _ = connection.execute("INSERT INTO invoice VALUES (42, 0, 1)")
>>> dibs.sql.update_versioned(connection, "invoice", {"id": 42}, {"paid": 1}, 1)
2
>>> dibs.sql.update_versioned(connection, "invoice", {"id": 42}, {"paid": 0}, 1)
Traceback (most recent call last):
dibs.errors.Conflict: "invoice id=42" on sqlite: it has version 2, not 1: somebody else changed it. Next: read the row \
again, in a new transaction

The connection is yours and so is its transaction: nothing here begins, commits or rolls back. It is one of psycopg,
PyMySQL, sqlite3 or SQLAlchemy (a Session too), or Django's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dibs.backends import caller_connection
from dibs.backends.sql import versioned
from dibs.runtime.threads import ThreadRuntime, step

__all__ = ["retry_versioned", "update_versioned"]

T = TypeVar("T")


def update_versioned(
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

    Example:
        >>> import sqlite3, dibs.sql
        >>> connection = sqlite3.connect(":memory:")
        >>> _ = connection.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, left INTEGER, version INTEGER)")
        >>> _ = connection.execute("INSERT INTO stock VALUES (7, 10, 1)")
        >>> dibs.sql.update_versioned(connection, "stock", {"id": 7}, {"left": 9}, 1)
        2
    """
    change = versioned.Change(table, key, changes, version, column)
    own = caller_connection(connection, "connection", awaits=False)
    return step(versioned.update(own, change))


def retry_versioned(attempt: Callable[[], T], *, tries: int = versioned.TRIES) -> T:
    """Call a function, and call it again, after a pause that grows, while it raises `Conflict`.

    Args:
        attempt: Does the whole work, from reading the row to the commit: within one transaction, a second read may
            show the old row for ever. In the async API a coroutine function.
        tries: How often it is called at most. The default is 40.

    Returns:
        What it returned.

    Raises:
        Conflict: The last try raised it.

    Example:
        >>> stock = [3]
        >>> def sell() -> int:
        ...     stock[0] -= 1
        ...     if stock[0] > 1:
        ...         raise dibs.Conflict("somebody else sold one")
        ...     return stock[0]
        >>> import dibs
        >>> retry_versioned(sell)
        1
    """

    async def once() -> T:
        return attempt()

    return step(versioned.again(once, tries, ThreadRuntime()))
