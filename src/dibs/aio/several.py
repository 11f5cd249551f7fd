"""Several locks as one, in the async API: `multi`, and stripes."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from dibs import _shared
from dibs._shared import Seconds, Timeout
from dibs.aio.locks import AnyHold, AnyLock, Hold, HoldEvent, Lock, RLock, Semaphore, acquire
from dibs.bases import Named, NoToken, Owned
from dibs.core.kinds.multi import Multi as CoreMulti
from dibs.core.kinds.multi import MultiHold as CoreMultiHold
from dibs.core.kinds.options import UNSET
from dibs.core.kinds.striped import Striped as CoreStriped


class MultiHold(AnyHold, NoToken):
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


def multi(*locks: Lock | RLock | Semaphore | Multi, timeout: Seconds | None = None) -> Multi:
    """Several locks as one: all of them are acquired, or none.

    They may be of any kind and come from several clients. They are acquired in one global order, so two callers
    cannot wait for each other. Equal locks are merged: read and write is write, permits add up.

    Args:
        locks: At least one lock. Another `multi` counts as its locks.
        timeout: Seconds that `async with` and `acquire` wait for all of them together. None, the default, waits for
            ever; 0 tries once.

    Raises:
        TypeError: A lock is of the other API, or is no lock.
        ValueError: There is no lock.
    """
    return Multi(CoreMulti(_shared.members(locks, Lock, Multi), timeout, Hold))


class Multi(AnyLock[MultiHold], Owned):
    """Several locks as one: see `multi`. Its `name` is the names of all, joined by commas."""

    __slots__ = ()
    _core: CoreMulti
    _shows = MultiHold

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> Coroutine[Any, Any, MultiHold | None]:
        """Acquire all of them, or none, and wait while one is busy.

        Args:
            timeout: Seconds to wait for all of them together. Not given: the `timeout` of `multi`. None waits for
                ever, 0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            One hold for all, or None if one of them was busy until the timeout.

        Raises:
            StoreUnavailable: A store did not answer in time.
            Mismatch: A name is in use as another kind of lock, or with another size.
            ValueError: Equal semaphores add up to more permits than there are.
            Closed: A client was closed.

        Note:
            Await it. If the task is cancelled meanwhile, it acquires nothing, and leaves the queue in the background.
        """
        hold = self._core.begin(timeout, blocking)
        return acquire(self._core, hold, MultiHold(hold, self._core))

    async def locked(self) -> bool:
        """Whether anyone holds one of them. Asks the stores.

        Raises:
            StoreUnavailable: A store did not answer within its client's `retry` seconds.
        """
        return await self._core.locked()


class Striped(Named):
    """A fixed number of locks for any number of keys: see `Client.striped`."""

    __slots__ = ("_core", "_made")
    _core: CoreStriped

    def __init__(self, core: CoreStriped) -> None:
        self._core = core
        self._made: dict[int, Lock] = {}

    def at(self, key: str | bytes | int) -> Lock:
        """The lock of the stripe of a key; the same object for every key of that stripe.

        Args:
            key: 42 and `"42"` are the same key. The stripe of a key is the same in every process.
        """
        return self._stripe(self._core.index(key))

    def all(self) -> Multi:
        """Every stripe as one lock, with the `timeout` of the stripes."""
        return multi(*(self._stripe(index) for index in range(self._core.stripes)), timeout=self._core.timeout)

    def _stripe(self, index: int) -> Lock:
        lock = self._made.get(index)
        return lock if lock is not None else self._made.setdefault(index, Lock(self._core.stripe(index)))
