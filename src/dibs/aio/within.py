"""Locks inside a transaction of your own, in the asyncio face; one line over the core for each method."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

from dibs.core.kinds.lock import UNSET
from dibs.core.kinds.within import EnclosedHold, EnclosedLock
from dibs.core.kinds.within import Within as CoreWithin
from dibs.faces import Kind, Raised, Seconds, Timeout, Trace, Unpicklable


class Within(Unpicklable):
    """What `client.within(connection)` gives: makes locks that the transaction of this connection holds until it ends.

    For PostgreSQL, MySQL and MariaDB; the connection is one of psycopg (AsyncConnection), asyncmy, or SQLAlchemy
    (AsyncConnection and AsyncSession).
    """

    __slots__ = ("_core",)

    def __init__(self, core: CoreWithin) -> None:
        self._core = core

    def lock(
        self,
        name: str,
        *,
        timeout: Seconds | None = None,
        owner: str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> WithinLock:
        return WithinLock(EnclosedLock(self._core, name, timeout, owner, info))

    def __repr__(self) -> str:
        return f"<dibs.aio.Within {self._core.client.shown}>"


class WithinLock(Unpicklable):
    """An exclusive lock that a transaction of yours takes. It ends with that transaction: leaving an `async with` frees
    nothing.

    >>> import dibs.aio
    >>> async def pay(client: dibs.aio.Client, connection, number: int) -> None:
    ...     async with connection.transaction(), client.within(connection).lock(f"invoice:{number}", timeout=5):
    ...         await connection.execute("UPDATE invoice SET paid = true WHERE id = %s", [number])
    """

    __slots__ = ("_core",)

    def __init__(self, core: EnclosedLock) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    async def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> WithinHold | None:
        hold = await self._core.acquire(timeout, blocking)
        return None if hold is None else WithinHold(hold)

    async def __aenter__(self) -> WithinHold:
        return WithinHold(await self._core.enter())

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        """The transaction gives it back when it ends."""

    def __repr__(self) -> str:
        return f"<dibs.aio.WithinLock {self._core.describe()}>"


class WithinHold(Unpicklable):
    """What a transaction of yours holds until it ends."""

    __slots__ = ("_core",)

    def __init__(self, core: EnclosedHold) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def token(self) -> int:
        return self._core.token

    @property
    def mode(self) -> str:
        return self._core.mode

    @property
    def owner(self) -> str:
        return self._core.owner

    @property
    def acquired_at(self) -> datetime:
        return self._core.acquired_at

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        """The transaction gives it back when it ends."""

    def __repr__(self) -> str:
        return f"<dibs.aio.WithinHold {self._core.name!r}, token {self._core.token}>"
