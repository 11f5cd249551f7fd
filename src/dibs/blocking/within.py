"""Locks inside a transaction of your own, in the sync API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from dibs._shared import ExcType, Raised, Seconds, Timeout, Trace
from dibs.bases import Granted, Named, OverCore, SyncWith
from dibs.blocking.entry import ask
from dibs.core.kinds.options import UNSET
from dibs.core.kinds.within import EnclosedHold, EnclosedLock
from dibs.core.kinds.within import Within as CoreWithin


class Within(OverCore):
    """Makes locks that a transaction of yours holds until it ends: see `Client.within`.

    For PostgreSQL, MySQL and MariaDB. Other stores have none.

    Example:
        >>> import dibs, sqlite3
        >>> try:
        ...     dibs.connect("memory://example").within(sqlite3.connect(":memory:"))
        ... except dibs.Unsupported as error:
        ...     print(error.store)
        memory://example
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
            timeout: Seconds that `with` and `acquire` wait. None, the default, waits for ever; 0 tries once.
            owner: The label that others see. None, the default: the client's, or else the login name.
            info: A small dict that others see, merged with the client's.

        Raises:
            BadName: The name is not valid.
        """
        return WithinLock(EnclosedLock(self._core, name, timeout, owner, info))


class WithinLock(SyncWith, Named):
    """An exclusive lock that a transaction of yours takes: see `Client.within`.

    It ends with that transaction: leaving a `with` block frees nothing.

    Example:
        >>> import dibs
        >>> def pay(client: dibs.Client, connection, number: int) -> None:
        ...     with connection.transaction(), client.within(connection).lock(f"invoice:{number}", timeout=5):
        ...         connection.execute("UPDATE invoice SET paid = true WHERE id = %s", [number])
    """

    __slots__ = ("_core",)
    _core: EnclosedLock

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> WithinHold | None:
        """Acquire the lock for the transaction, and wait for it while it is busy.

        Args:
            timeout: Seconds to wait. Not given: the `timeout` of the lock. None waits for ever, 0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            The hold, or None if the lock was busy until the timeout. In that case `with` raises an error.

        Raises:
            StoreUnavailable: The database did not answer in time.
            StoreError: The connection is in no transaction.
        """
        hold = ask(self._core.acquire(timeout, blocking))
        return None if hold is None else WithinHold(hold)

    def __enter__(self) -> WithinHold:
        return WithinHold(ask(self._core.enter()))

    def __exit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        """The transaction gives it back when it ends."""


class WithinHold(SyncWith, Granted):
    """A lock that a transaction of yours holds until it ends. It needs no release, and is not lost on its own.

    Example:
        >>> import dibs
        >>> def settle(client: dibs.Client, connection) -> int:
        ...     hold = client.within(connection).lock("invoice:42").acquire(timeout=0)
        ...     return 0 if hold is None else hold.token
    """

    __slots__ = ("_core",)
    _core: EnclosedHold

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        """The transaction gives it back when it ends."""
