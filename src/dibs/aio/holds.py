"""Holds of the async API: what `acquire` and `async with` give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from dibs.bases import AsyncWith, HoldFacts, NoToken
from dibs.core.grants import Hold as CoreHold
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.multi import MultiHold as CoreMultiHold
from dibs.core.kinds.taken import Takes
from dibs.faces import Kind, Raised, Seconds, Trace, instant


class HoldEvent:
    """Something that may happen to a hold: its loss (`Hold.lost`), or a request to release it."""

    __slots__ = ("_is_set", "_now", "_wait")

    def __init__(self, is_set: Callable[[], bool], wait: Callable[[float], Any], now: Callable[[], float]) -> None:
        self._is_set = is_set
        self._wait = wait
        self._now = now

    def is_set(self) -> bool:
        """Whether it has happened. Reads the local clock, so a hold past its deadline counts as lost at once."""
        return self._is_set()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until it happens.

        Args:
            timeout: Seconds to wait. None, the default, waits until the hold ends.

        Returns:
            True if it has happened; False if the time is over, or the hold was released.
        """
        return bool(await self._wait(instant(timeout, self._now)))


class _AnyHold(AsyncWith):
    """What gives back one hold or several."""

    __slots__ = ("_core", "_lock")

    def __init__(self, core: Any, lock: Takes[Any]) -> None:
        self._core = core
        self._lock = lock

    async def release(self) -> None:
        """Release this hold. Works from any thread or task; a second time it does nothing.

        Waits for the store at most 5 seconds, or as long as the hold lasts.

        Raises:
            LockLost: The hold was lost before.
            StoreUnavailable: The store did not answer. The release is retried in the background.

        Note:
            If the task is cancelled meanwhile, the release goes on in the background.
        """
        given = self._lock.give(self._core)
        if given is not True:
            await self._lock.release(self._core, given)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        given = self._lock.give(self._core)
        if given is not True:
            await self._lock.end(self._core, raised, given)


class Hold(_AnyHold, HoldFacts):
    """The result of one acquire. It lasts until it is released or lost, or until its client is closed.

    A hold does not end when its variable goes away: release it, or use it in `async with`.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example") as client:
        ...         if hold := await client.lock("invoice:42").acquire(timeout=5):
        ...             print(hold.mode, hold.remaining > 20, hold.lost.is_set())
        ...             await hold.release()
        >>> asyncio.run(main())
        exclusive True False
    """

    __slots__ = ()
    _core: CoreHold
    _lock: kinds.Lock

    @property
    def lost(self) -> HoldEvent:
        """Set when it is no longer certain that this hold is held."""
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.context.now)

    @property
    def revoke_requested(self) -> HoldEvent:
        """Set when somebody asked for the release, with `Lock.revoke`. The hold stays held."""
        return HoldEvent(self._core.revoke_requested, self._core.wait_revoked, self._core.context.now)

    async def downgrade(self) -> None:
        """Turn the write hold of a read-write lock into a read hold, without letting another writer in between.

        Raises:
            LockLost: The hold is lost, or was released.
            Unsupported: It is not a hold of a read-write lock.
            StoreUnavailable: The store did not answer within 5 seconds.
        """
        await self._lock.downgrade(self._core)

    def __repr__(self) -> str:
        return f"<dibs.aio.Hold {self._core.describe()}>"


class MultiHold(_AnyHold, NoToken):
    """Several holds as one, from `multi` or `Striped.all`. It is lost when any of them is."""

    __slots__ = ()
    _core: CoreMultiHold

    @property
    def holds(self) -> tuple[Hold, ...]:
        """One hold for each lock, in the order of the arguments. Equal locks share one."""
        return self._core.as_given()

    @property
    def lost(self) -> HoldEvent:
        """Set when it is no longer certain that all of them are held."""
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.parts[0].context.now)
