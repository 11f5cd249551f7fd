"""Elections in the async API."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dibs.aio.locks import Lock
from dibs.bases import Named
from dibs.core.kinds.election import Election as CoreElection
from dibs.info import Participant


class Election(Named):
    """An election: see `Client.election`. Its holder leads; anyone can see who that is.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example", owner="ana") as client:
        ...         election = client.election("scheduler")
        ...         async with election.lead():
        ...             async for leader in election.watch():
        ...                 print(leader.owner)
        ...                 break
        >>> asyncio.run(main())
        ana
    """

    __slots__ = ("_core",)
    _core: CoreElection

    def __init__(self, core: CoreElection) -> None:
        self._core = core
        self.lead()

    def lead(self) -> Lock:
        """A lock whose holder leads: `async with election.lead() as hold:` waits to be elected."""
        return Lock(self._core.lead())

    async def leader(self) -> Participant | None:
        """The present leader, or None. Asks the store.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
            Mismatch: The name is in use as another kind of lock.
        """
        return await self._core.leader()

    async def watch(self) -> AsyncIterator[Participant | None]:
        """Iterate over the leaders: `async for leader in election.watch():`.

        The first is the present leader, or None. Then comes each change, without end.
        Where several changes come at once, only the newest is given.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
            Closed: The client was closed.
        """
        leader, seen = await self._core.change(None)
        while True:
            yield leader
            leader, seen = await self._core.change(seen)
