"""A version column in a table of your own: write a row only if it is still what you read. `dibs.aio.sql` is awaited.

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

from dibs.backends import own_connection
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
    """Change the row that `key` names, if its version is still `version`; gives its new one, which is one more.

    `Conflict`: it has another version, or is gone; nothing was changed. `table` is a name, or a schema and a name.
    """
    change = versioned.Change(table, key, changes, version, column)
    own = own_connection(connection, "connection", awaits=False)
    return step(versioned.update(own, change))


def retry_versioned(attempt: Callable[[], T], *, tries: int = versioned.TRIES) -> T:
    """What `attempt` returns; it is called again, after a pause that grows, while it ends with `Conflict`.

    It is to do the whole piece of work, from reading the row to the commit: in one transaction a second read may show
    the same row for ever.

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
