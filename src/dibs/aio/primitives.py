"""The shared primitives of the async API: latch, cell and fence."""

from __future__ import annotations

from collections.abc import Callable

from dibs._shared import Connection, Seconds, admits
from dibs.bases import Named
from dibs.core.kinds import primitives
from dibs.core.kinds.any_latch import AnyLatch


class Latch(Named):
    """A count that others wait for: see `Client.latch`. A latch that is not armed is open.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example") as client:
        ...         latch = client.latch("shards-loaded")
        ...         await latch.arm(1)
        ...         print(await latch.count(), await latch.wait(timeout=0))
        ...         await latch.count_down()
        ...         print(await latch.wait())
        >>> asyncio.run(main())
        1 False
        True
    """

    __slots__ = ("_core",)
    _core: AnyLatch

    async def arm(self, count: int) -> None:
        """Close the latch, until it is counted down `count` times.

        Args:
            count: From 1 to 1,000,000.

        Raises:
            Conflict: The latch is not open.
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        await self._core.arm(count)

    async def count_down(self, n: int = 1) -> None:
        """Lower the count by n, to 0 at the least. At 0 the latch opens; then this does nothing.

        Args:
            n: From 1 to 1,000,000.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        await self._core.count_down(n)

    async def count(self) -> int:
        """The number of count-downs until it opens; 0 while it is open.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.count()

    async def wait(self, timeout: Seconds | None = None, armed: bool = False) -> bool:
        """Wait until the latch opens. A latch that opened and was armed again meanwhile has opened.

        Args:
            timeout: Seconds to wait. None, the default, waits for ever; 0 looks once.
            armed: True: if the latch is open, wait until it is armed first.

        Returns:
            True if it opened, False if the time is over.

        Raises:
            StoreUnavailable: The store did not answer in time.
            Closed: The client was closed.
        """
        return await self._core.wait(timeout, armed)


class Cell(Named):
    """A value with a version, for compare-and-set: see `Client.cell`. An unset cell is None at version 0."""

    __slots__ = ("_core",)
    _core: primitives.Cell

    async def get(self) -> tuple[bytes | None, int]:
        """The value and its version; `(None, 0)` while it is unset.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.get()

    async def set(self, value: bytes, version: int) -> int:
        """Write the value, if the cell still has this version.

        Args:
            value: At most 65,536 bytes.
            version: The version that `get` gave; 0 for an unset cell.

        Returns:
            The new version.

        Raises:
            Conflict: The cell has another version. Nothing was written.
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.set(value, version)

    async def update(self, fn: Callable[[bytes | None], bytes]) -> tuple[bytes, int]:
        """Write the value that a function makes of the present one. If others write meanwhile, it is called again.

        Args:
            fn: A plain function without side effects. It gets None while the cell is unset.

        Returns:
            The new value and its version.

        Raises:
            Conflict: Others wrote first, 40 times in a row.
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.update(fn)


class Fence(Named):
    """The checking half of fencing, for the resource: see `Client.fence`. It refuses tokens of earlier holders."""

    __slots__ = ("_core",)
    _core: primitives.Fence

    async def admit(self, token: int, shared: bool = False, *, within: Connection | None = None) -> None:
        """Admit a token, unless a higher exclusive one was admitted before. Records never expire.

        Call it in the same atomic step as the change that it protects.

        Args:
            token: The `Hold.token` of the caller.
            shared: True for the token of a read lock. It is compared, and not recorded.
            within: An open connection of your own to a SQL database: check and record in its transaction, not in the
                client's store.

        Raises:
            StaleToken: A higher token was admitted before. Do not make the change.
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        await self._core.admit(token, shared, admits(within, awaits=True))
