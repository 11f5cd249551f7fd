"""Holds and locks of the asyncio face.

`acquire` is a plain function that returns an awaitable: the task that called it is the one that takes, also where
`wait_for` runs the awaitable in another task.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Self, overload

from dibs import faces
from dibs.core.holds import Hold as CoreHold
from dibs.core.kinds import lock as kinds
from dibs.core.kinds.election import Election as CoreElection
from dibs.core.kinds.lock import UNSET
from dibs.core.kinds.multi import Multi as CoreMulti
from dibs.core.kinds.multi import MultiHold as CoreMultiHold
from dibs.core.kinds.striped import Striped as CoreStriped
from dibs.core.kinds.taken import Takes
from dibs.errors import LockLost, LossReason
from dibs.faces import H, Kind, Raised, Seconds, Taking, Timeout, Trace, Unpicklable, instant
from dibs.info import Participant


def multi(*locks: Lock | RLock | Semaphore | Multi, timeout: Seconds | None = None) -> Multi:
    """Several locks as one: all or none, in one global order."""
    return Multi(CoreMulti(faces.members(locks, Lock, Multi), timeout, Hold))


@overload
async def _take(attempt: Taking, hold: H, ask: Callable[[], Awaitable[bool]]) -> H | None: ...


@overload
async def _take(attempt: Taking, hold: H, ask: Callable[[], Awaitable[None]]) -> H: ...


async def _take(attempt: Taking, hold: H, ask: Callable[[], Awaitable[bool | None]]) -> H | None:
    """What `ask` brings. Whatever ends it early abandons the attempt; once handed over, nothing can come between."""
    try:
        attempt.told(hold)
        if await ask() is False:
            return None
        attempt.hand_over()
        return hold
    except BaseException:
        attempt.abandon()
        raise


class HoldEvent:
    """Something that happens to a hold; it looks at the clock itself."""

    __slots__ = ("_is_set", "_now", "_wait")

    def __init__(self, is_set: Callable[[], bool], wait: Callable[[float], Any], now: Callable[[], float]) -> None:
        self._is_set = is_set
        self._wait = wait
        self._now = now

    def is_set(self) -> bool:
        return self._is_set()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        return bool(await self._wait(instant(timeout, self._now)))


class _AnyHold(Unpicklable):
    """What gives back one hold or several."""

    __slots__ = ("_core", "_lock")

    def __init__(self, core: Any, lock: Takes[Any]) -> None:
        self._core = core
        self._lock = lock

    async def release(self) -> None:
        await self._lock.give_back(self._core)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        await self._lock.end(self._core, raised)


class _AnyLock(Unpicklable):
    """What gives back the hold that was taken through it."""

    __slots__ = ("_core",)
    _core: Takes[Any]

    def release(self) -> Awaitable[None]:
        return self._core.give_back(self._core.latest())

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        await self._core.exit(self._core.taken.opened_here(), raised)


class Hold(_AnyHold):
    """One acquire: what you hold until you release it, or lose it."""

    __slots__ = ()
    _core: CoreHold
    _lock: kinds.Lock

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
        return self._core.label

    @property
    def acquired_at(self) -> datetime:
        return self._lock.client.acquired_at(self._core)

    @property
    def remaining(self) -> float:
        return self._core.remaining()

    @property
    def lost(self) -> HoldEvent:
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.client.now)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        return self._core.lost_reason()

    @property
    def revoke_requested(self) -> HoldEvent:
        return HoldEvent(self._core.revoke_requested, self._core.wait_revoked, self._core.client.now)

    def check(self) -> None:
        self._core.check()

    async def downgrade(self) -> None:
        await self._lock.downgrade(self._core)

    def __repr__(self) -> str:
        return f"<dibs.aio.Hold {self._core.describe()}>"


class _Canceller:
    """Cancels the task that entered a block when its hold is lost, and tells that cancellation from others."""

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
        """At the end of the block: did our cancellation, and no other, end it?"""
        return self._fired and self._task.uncancel() <= self._before and isinstance(raised, asyncio.CancelledError)


class Lock(_AnyLock):
    """An exclusive lock, not re-entrant; also one side of a read-write lock, and a stripe."""

    __slots__ = ("__weakref__", "_cancellers")
    _core: kinds.Lock

    def __init__(self, core: kinds.Lock) -> None:
        self._core = core
        self._cancellers: dict[CoreHold, _Canceller] = {}

    @property
    def name(self) -> str:
        return self._core.name

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> Awaitable[Hold | None]:
        attempt = self._core.attempt(timeout, blocking)
        return _take(attempt, Hold(attempt.hold, self._core), attempt.run)

    async def locked(self) -> bool:
        return await self._core.locked()

    def owned(self) -> bool:
        return self._core.owned()

    async def revoke(self) -> None:
        await self._core.revoke()

    async def __aenter__(self) -> Hold:
        attempt = self._core.attempt()
        if self._core.options.cancel_on_lost:
            self._cancellers[attempt.hold] = attempt.cancels = _Canceller(attempt.hold)
        try:
            return await _take(attempt, Hold(attempt.hold, self._core), attempt.enter)
        except BaseException:
            self._cancellers.pop(attempt.hold, None)
            raise

    async def __aexit__(self, kind: Kind, raised: Raised, trace: Trace) -> None:
        hold = self._core.taken.opened_here()
        canceller = self._cancellers.pop(hold, None)
        if canceller is not None and canceller.was_it(raised):
            try:
                await self._core.exit(hold, None)
            except LockLost as lost:
                raise lost from raised
        await self._core.exit(hold, raised)

    def __repr__(self) -> str:
        return f"<dibs.aio.{type(self).__name__} {self._core.describe()}>"


class RLock(Lock):
    """As `Lock`, and its owner may take it again."""

    __slots__ = ()


class Semaphore(Lock):
    """n permits; several may be taken at once."""

    __slots__ = ()

    def acquire(self, n: int = 1, *, timeout: Timeout = UNSET, blocking: bool = True) -> Awaitable[Hold | None]:
        attempt = self._core.attempt(timeout, blocking, n)
        return _take(attempt, Hold(attempt.hold, self._core), attempt.run)


class RWLock(Unpicklable):
    """Readers share, a writer excludes; `.read` and `.write` are locks, re-entrant."""

    __slots__ = ("_read", "_write")

    def __init__(self, read: kinds.Lock, write: kinds.Lock) -> None:
        self._read = Lock(read)
        self._write = Lock(write)

    @property
    def name(self) -> str:
        return self._read.name

    @property
    def read(self) -> Lock:
        return self._read

    @property
    def write(self) -> Lock:
        return self._write


class Striped(Unpicklable):
    """A fixed number of locks for any number of keys."""

    __slots__ = ("_core", "_made")

    def __init__(self, core: CoreStriped) -> None:
        self._core = core
        self._made: dict[int, Lock] = {}

    @property
    def name(self) -> str:
        return self._core.name

    def at(self, key: str | bytes | int) -> Lock:
        return self._stripe(self._core.index(key))

    def all(self) -> Multi:
        return multi(*(self._stripe(index) for index in range(self._core.stripes)), timeout=self._core.timeout)

    def _stripe(self, index: int) -> Lock:
        lock = self._made.get(index)
        return lock if lock is not None else self._made.setdefault(index, Lock(self._core.stripe(index)))


class MultiHold(_AnyHold):
    """Several holds as one: lost when any is; it has no token."""

    __slots__ = ()
    _core: CoreMultiHold

    @property
    def holds(self) -> tuple[Hold, ...]:
        return self._core.as_given()

    @property
    def token(self) -> None:
        return None

    @property
    def remaining(self) -> float:
        return self._core.remaining()

    @property
    def lost(self) -> HoldEvent:
        return HoldEvent(self._core.is_lost, self._core.wait_lost, self._core.parts[0].client.now)

    @property
    def lost_reason(self) -> LossReason | None:
        """Why it was lost; None while it is not."""
        return self._core.lost_reason()

    def check(self) -> None:
        self._core.check()


class Multi(_AnyLock):
    """Several locks as one; see `multi`."""

    __slots__ = ()
    _core: CoreMulti

    def __init__(self, core: CoreMulti) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    def acquire(self, *, timeout: Timeout = UNSET, blocking: bool = True) -> Awaitable[MultiHold | None]:
        attempt = self._core.attempt(timeout, blocking)
        return _take(attempt, MultiHold(attempt.hold, self._core), attempt.run)

    async def locked(self) -> bool:
        return await self._core.locked()

    def owned(self) -> bool:
        return self._core.owned()

    async def __aenter__(self) -> MultiHold:
        attempt = self._core.attempt()
        return await _take(attempt, MultiHold(attempt.hold, self._core), attempt.enter)


class Election(Unpicklable):
    """Who holds it leads; anybody can see who that is, and follow."""

    __slots__ = ("_core",)

    def __init__(self, core: CoreElection) -> None:
        self._core = core
        self.lead()

    @property
    def name(self) -> str:
        return self._core.name

    def lead(self) -> Lock:
        return Lock(self._core.lead())

    async def leader(self) -> Participant | None:
        return await self._core.leader()

    async def watch(self) -> AsyncIterator[Participant | None]:
        """Who leads now, then each change, or the newest where several came at once; it goes on for ever."""
        leader, seen = await self._core.change(None)
        while True:
            yield leader
            leader, seen = await self._core.change(seen)

    def __repr__(self) -> str:
        return f"<dibs.aio.Election {self._core.describe()}>"
