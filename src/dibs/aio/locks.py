"""Locks of the async API.

The method `acquire` is a plain function that returns a coroutine. So the calling task owns the hold, even if `wait_for`
runs the coroutine in another task. The module functions `acquire` and `release` have these names because Python's
warning about a missing `await` shows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Generic, Self
from weakref import ref

from dibs._shared import ExcType, H, Raised, Seconds, Timeout, Trace, instant
from dibs.bases import AsyncWith, HoldFacts, Named, Owned
from dibs.core.grants import Frame
from dibs.core.grants import Hold as CoreHold
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.hold_stack import Takes
from dibs.core.kinds.options import UNSET
from dibs.errors import LockLost


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


class AnyHold(AsyncWith):
    """The common part of `Hold` and `MultiHold`."""

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

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        given = self._lock.give(self._core)
        if given is not True:
            await self._lock.end(self._core, raised, given)


class Hold(AnyHold, HoldFacts):
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


async def acquire(core: Takes[Any], hold: Any, shown: H) -> H | None:
    """Acquire, and abandon the hold on any exception, until the caller has it."""
    here = Frame()
    try:
        hold.lifeline = ref(here)
        if core.on_lost is not None:
            core.set_callbacks(hold, shown)
        taken = core.take(hold)
        if not isinstance(taken, bool):
            taken = await taken
        if not taken and not await core.acquire(hold):
            return None
        hold.lifeline = None
        return shown
    except BaseException:
        core.drop(hold)
        raise


async def enter(core: Takes[Any], hold: Any, shown: H, cancels: Callable[[], object] | None = None) -> H:
    """Acquire for an `async with` statement: raises if it is busy."""
    here = Frame()
    try:
        hold.lifeline = ref(here)
        if core.on_lost is not None or cancels is not None:
            core.set_callbacks(hold, shown, cancels)
        taken = core.take(hold, entered=True)
        if not isinstance(taken, bool):
            taken = await taken
        if not taken:
            await core.enter(hold)
        hold.lifeline = None
        return shown
    except BaseException:
        core.drop(hold)
        raise


async def release(core: Takes[Any], hold: Any) -> None:
    given = core.give(hold)
    if given is not True:
        await core.release(hold, given)


class AnyLock(AsyncWith, Generic[H]):
    """The common part of `Lock` and `Multi`."""

    __slots__ = ("_core",)
    _core: Takes[Any]
    _shows: ClassVar[type[Any]]
    """The class of its holds."""

    def release(self) -> Coroutine[Any, Any, None]:
        """Release the latest hold that the calling thread or task acquired with this object.

        To release from another thread or task, use `Hold.release`.

        Raises:
            NotHeld: This thread or task acquired none with this object, or has released it.
            LockLost: The hold was lost before.
            StoreUnavailable: The store did not answer. The release is retried in the background.

        Note:
            Await it. If the task is cancelled meanwhile, the release goes on in the background.
        """
        return release(self._core, self._core.hold_stack.latest())

    async def __aenter__(self) -> H:
        hold = self._core.begin()
        shown: H = self._shows(hold, self._core)
        return await enter(self._core, hold, shown)

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        hold = self._core.hold_stack.opened_here()
        self._core.hold_stack.left(hold)
        given = self._core.give(hold)
        if given is not True:
            await self._core.end(hold, raised, given)


class _Canceller:
    """Cancels the task in an `async with` block when the hold is lost, and tells this cancellation from others."""

    __slots__ = ("_before", "_fired", "_hold", "_task")

    def __init__(self, hold: CoreHold) -> None:
        task = asyncio.current_task()
        assert task is not None  # a coroutine is running
        self._hold = hold
        self._task = task
        self._before = task.cancelling()
        self._fired = False

    def __call__(self) -> None:
        if not self._hold.over and not self._fired:
            self._fired = True
            self._task.cancel()

    def was_it(self, raised: BaseException | None) -> bool:
        """Whether our cancellation, and no other, ended the block."""
        return self._fired and self._task.uncancel() <= self._before and isinstance(raised, asyncio.CancelledError)


class Lock(AnyLock[Hold], Owned):
    """A lock on one name, made by a client. `Client.lock` makes an exclusive one that is not re-entrant.

    The sides of a read-write lock, a stripe, a number of permits and the lead of an election are locks too.

    `async with lock:` waits as `acquire` does and releases at the end. It raises `AcquireTimeout` if the lock is busy
    until its timeout, and `LockLost` at the end if the hold was lost meanwhile.

    Note:
        A task that is cancelled in the block releases the lock at its end.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example") as client:
        ...         lock = client.lock("invoice:42")
        ...         async with lock as hold:
        ...             print(await lock.locked(), lock.owned())
        ...         if await lock.acquire(timeout=0):
        ...             await lock.release()
        >>> asyncio.run(main())
        True True
    """

    __slots__ = ("__weakref__", "_cancellers")
    _core: kinds.Lock
    _shows = Hold

    def __init__(self, core: kinds.Lock) -> None:
        self._core = core
        self._cancellers: dict[CoreHold, _Canceller] = {}

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> Coroutine[Any, Any, Hold | None]:
        """Acquire the lock, and wait for it while it is busy.

        Args:
            timeout: Seconds to wait, connecting included. Not given: the `timeout` of the lock. None waits for ever,
                0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            The hold, or None if the lock was busy until the timeout. In that case `async with` raises an error.

        Raises:
            StoreUnavailable: The store did not answer in time.
            Mismatch: The name is in use as another kind of lock, or with another size.
            Deadlock: This owner has the read side of the same read-write lock.
            Closed: The client was closed.

        Note:
            Await it. If the task is cancelled meanwhile, it acquires nothing, and leaves the queue in the background.
        """
        hold = self._core.begin(timeout, blocking)
        return acquire(self._core, hold, Hold(hold, self._core))

    async def locked(self) -> bool:
        """Whether anyone holds the lock. Asks the store.

        For a semaphore: whether anyone holds a permit. It is True even if other permits are free; that of
        `asyncio.Semaphore` is not.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        return await self._core.locked()

    async def revoke(self) -> None:
        """Ask the present holders to release the lock: sets their `Hold.revoke_requested`.

        It is a request. A holder hears of it at once or at its next renewal, a third of its lease away at most.

        Raises:
            StoreUnavailable: The store did not answer within the client's `retry` seconds.
        """
        await self._core.revoke()

    async def __aenter__(self) -> Hold:
        if not self._core.options.cancel_on_lost:
            return await super().__aenter__()
        hold = self._core.begin()
        self._cancellers[hold] = canceller = _Canceller(hold)
        try:
            return await enter(self._core, hold, Hold(hold, self._core), canceller)
        except BaseException:
            self._cancellers.pop(hold, None)
            raise

    async def __aexit__(self, kind: ExcType, raised: Raised, trace: Trace) -> None:
        canceller = self._cancellers.pop(self._core.hold_stack.opened_here(), None) if self._cancellers else None
        if canceller is not None and canceller.was_it(raised):
            try:
                await super().__aexit__(None, None, None)
            except LockLost as lost:
                raise lost from raised
            return
        await super().__aexit__(kind, raised, trace)


class RLock(Lock):
    """A lock that its owner may acquire again: see `Client.rlock`. It is free once every hold is released."""

    __slots__ = ()


class Semaphore(Lock):
    """A fixed number of permits: see `Client.semaphore`. `async with semaphore:` takes one, `permits(n)` takes n.

    Example:
        >>> import asyncio, dibs.aio
        >>> async def main() -> None:
        ...     async with dibs.aio.connect("memory://example") as client:
        ...         calls = client.semaphore("api", 5)
        ...         async with calls, calls.permits(2) as hold:
        ...             print(hold.mode)
        >>> asyncio.run(main())
        shared
    """

    __slots__ = ()

    def acquire(
        self, n: int = 1, *, timeout: Timeout = UNSET, blocking: bool = True
    ) -> Coroutine[Any, Any, Hold | None]:
        """Acquire permits, all of them or none, and wait while there are too few.

        The result may be None, which `async with` cannot use: write `async with semaphore.permits(n):` for a block.

        Args:
            n: How many permits, from 1 to the size of the semaphore.
            timeout: Seconds to wait, connecting included. Not given: the `timeout` of the semaphore. None waits for
                ever, 0 tries once.
            blocking: False is `timeout=0`.

        Returns:
            One hold for all n permits, or None if there were too few until the timeout.

        Raises:
            ValueError: The semaphore has fewer than n permits.
            StoreUnavailable: The store did not answer in time.
            Mismatch: The name is in use as another kind of lock, or with another number of permits.
            Closed: The client was closed.

        Note:
            Await it. If the task is cancelled meanwhile, it acquires nothing, and leaves the queue in the background.
        """
        hold = self._core.begin(timeout, blocking, n)
        return acquire(self._core, hold, Hold(hold, self._core))

    def permits(self, n: int) -> Lock:
        """The lock that takes n permits at once, for `async with` and `multi`. It has the options of the semaphore.

        Args:
            n: How many permits, from 1 to the size of the semaphore.

        Raises:
            ValueError: The semaphore has fewer than n permits.
        """
        return Lock(self._core.permits(n))


class RWLock(Named):
    """A read-write lock: see `Client.rwlock`. Readers share it; a writer excludes everyone else."""

    __slots__ = ("_core", "_read", "_write")

    def __init__(self, read: kinds.Lock, write: kinds.Lock) -> None:
        self._core = read
        self._read = Lock(read)
        self._write = Lock(write)

    @property
    def read(self) -> Lock:
        """The lock that readers share. Its owner may acquire it again, also while it has the write side."""
        return self._read

    @property
    def write(self) -> Lock:
        """The lock of a writer. Its owner may acquire it again."""
        return self._write
