"""Locks inside a transaction of your own, in the async API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from dibs._shared import ExcType, Raised, Seconds, Timeout, Trace
from dibs.bases import AsyncWith, Granted, Named, OverCore
from dibs.core.kinds.options import UNSET
from dibs.core.kinds.within import EnclosedHold, EnclosedLock
from dibs.core.kinds.within import Within as CoreWithin


class Within(OverCore):
    """Makes locks that a transaction of yours holds until it ends: see `Client.within`.

    For PostgreSQL, MySQL and MariaDB. Other stores have none.
    """

    __slots__ = ("_core",)
    _core: CoreWithin

    def lock(
        self,
        name: str,
        *,
        timeout: Seconds | None = None,
        owner: str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> WithinLock:
        """Make an exclusive lock. Does no I/O.

        It has no lease: the database keeps others out until the transaction ends. The same transaction may acquire
        the name again.

        Args:
            name: 1 to 512 bytes of UTF-8, not blank, without control characters.
            timeout: Seconds that `async with` and `acquire` wait. None, the default, waits for ever; 0 tries once.
            owner: The label that others see. None, the default: the client's, or else the login name.
            info: A small dict that others see, merged with the client's.

        Raises:
            BadName: The name is not valid.
        """
        return WithinLock(EnclosedLock(self._core, name, timeout, owner, info))


class WithinLock(AsyncWith, Named):
    """An exclusive lock that a transaction of yours takes: see `Client.within`.

    It ends with that transaction: leaving an `async with` block frees nothing.
    """

    __slots__ = ("_core",)
    _core: EnclosedLock

    async def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> WithinHold | None:
        """Acquire the lock for the transaction, and wait for it while it is busy.

        Args:
            timeout: Seconds to wait. Not given: the `timeout` of the lock. None waits for ever, 0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            The hold, or None if the lock was busy until the timeout. In that case `async with` raises an error.

        Raises:
            StoreUnavailable: The database did not answer in time.
            StoreError: The connection is in no transaction.
        """
        hold = await self._core.acquire(timeout, blocking)
        return None if hold is None else WithinHold(hold)

    async def __aenter__(self) -> WithinHold:
        return WithinHold(await self._core.enter())

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        """The transaction gives it back when it ends."""


class WithinHold(AsyncWith, Granted):
    """A lock that a transaction of yours holds until it ends. It needs no release, and is not lost on its own."""

    __slots__ = ("_core",)
    _core: EnclosedHold

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        """The transaction gives it back when it ends."""
