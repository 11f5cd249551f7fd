"""`dibs.sql`, awaited: for connections of psycopg (AsyncConnection), asyncmy, and SQLAlchemy (AsyncConnection and
AsyncSession).

    async with engine.begin() as connection:
        await dibs.aio.sql.update_versioned(connection, "invoice", {"id": 42}, {"paid": True}, version)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from dibs.backends import own_connection
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
    """As `dibs.sql.update_versioned`."""
    change = versioned.Change(table, key, changes, version, column)
    own = own_connection(connection, "connection", awaits=True)
    return await versioned.update(own, change)


async def retry_versioned(attempt: Callable[[], Awaitable[T]], *, tries: int = versioned.TRIES) -> T:
    """As `dibs.sql.retry_versioned`; `attempt` is a coroutine function."""
    return await versioned.again(attempt, tries, AioRuntime())
