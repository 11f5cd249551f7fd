"""Several locks as one, of any kind, from any clients: all or none.

They are taken one after the other in one global order: encoded name, kind, an id kept in the store. It is the same in
every process, so callers cannot deadlock. Locks of the same queue are merged and share a hold. One deadline counts for
all. If a member is lost while the others are acquired, all are given back, and a new attempt begins if there is time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dibs.core.deadline import FOREVER, patience
from dibs.core.grantor import Given
from dibs.core.grants import Hold, wait_for_any
from dibs.core.kinds.hold_stack import HoldStack, Takes
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import UNSET, limit_of
from dibs.errors import AcquireTimeout, DibsError, LockLost, LossReason, Mismatch


class QueueKey(NamedTuple):
    """The identity of a queue, in the global order."""

    name: str
    kind: str
    store: str


class _Member(NamedTuple):
    lock: Lock
    weight: int


class _Part(NamedTuple):
    lock: Lock
    hold: Hold


class MultiHold:
    """Lost when any of its holds is; it has no token."""

    def __init__(self, caller: object, limit: float | None, deadline: float) -> None:
        self.caller = caller
        self.limit = limit
        self.deadline = deadline
        self.when_lost: Callable[[], None] | None = None
        self._lifeline: Callable[[], object | None] | None = None
        self.taken: dict[QueueKey, _Part] = {}
        self.shown: dict[QueueKey, Any] = {}
        """The API object of each hold."""
        self.order: list[QueueKey] = []
        """The queue of each argument."""
        self.stopped_by: _Part | None = None
        """The member that was busy until the deadline."""
        self.over = False

    @property
    def lifeline(self) -> Callable[[], object | None] | None:
        """The `lifeline` of each part: see `Hold`."""
        return self._lifeline

    @lifeline.setter
    def lifeline(self, lifeline: Callable[[], object | None] | None) -> None:
        self._lifeline = lifeline
        for hold in self.parts:
            hold.lifeline = lifeline

    @property
    def parts(self) -> list[Hold]:
        return [part.hold for part in self.taken.values()]

    @property
    def lost_seen(self) -> bool:
        return any(hold.lost_seen for hold in self.parts)

    def wanted(self) -> bool:
        return not self.over

    def as_given(self) -> tuple[Any, ...]:
        """One hold per argument, in order; merged members share one."""
        return tuple(self.shown[queue] for queue in self.order)

    def is_lost(self) -> bool:
        return any(hold.is_lost() for hold in self.parts)

    def lost_reason(self) -> LossReason | None:
        """The reason of the first part that is lost."""
        return next((reason for hold in self.parts if (reason := hold.lost_reason())), None)

    def check(self) -> None:
        for hold in self.parts:
            hold.check()

    def remaining(self) -> float:
        return min((hold.remaining() for hold in self.parts), default=0.0)

    async def wait_lost(self, until: float) -> bool:
        return await wait_for_any(self.parts, Hold.is_lost, until)

    def abandon(self) -> None:
        """Clean up after an exception: see `Takes.abandon`."""
        self.over = True
        for part in list(self.taken.values()):
            part.lock.drop(part.hold)

    async def release(self) -> None:
        """Release in reverse order; all members, even if one fails."""
        self.over = True
        failed: DibsError | None = None
        for part in reversed(list(self.taken.values())):
            try:
                await part.lock.release(part.hold)
            except DibsError as error:
                failed = error
            except BaseException:  # cancelled: the other members must still be given back
                self.abandon()
                raise
        if failed is not None:
            raise failed


class Multi(Takes[MultiHold]):
    on_lost = None
    """Each member calls its own `on_lost` with its own hold: see `_take_all`."""

    def __init__(self, locks: Sequence[Lock], timeout: object, show: Callable[[Hold, Lock], object]) -> None:
        if not locks:
            raise ValueError("multi needs at least one lock")
        self.show = show
        self.locks = tuple(locks)
        self.name = ", ".join(dict.fromkeys(lock.name for lock in locks))
        self.timeout = patience(timeout)
        self.hold_stack = HoldStack(self.name, locks[0].client)

    def begin(self, timeout: object = UNSET, blocking: object = True) -> MultiHold:
        client, limit = self.locks[0].client, limit_of(self.timeout, timeout, blocking)
        return MultiHold(client.runtime.caller(), limit, FOREVER if limit is None else client.now() + limit)

    async def acquire(self, hold: MultiHold, *, entered: bool = False) -> bool:
        members = await self._merged(hold)
        while True:
            if not await self._take_all(hold, members):
                await self._give_back_all(hold)
                return False
            if not hold.is_lost():
                self.hold_stack.remember(hold, entered)
                return True
            await self._give_back_all(hold)
            if self.locks[0].client.now() >= hold.deadline:
                return False

    async def enter(self, hold: MultiHold) -> None:
        if not await self.acquire(hold, entered=True):
            raise await self._busy(hold)

    def set_callbacks(self, hold: MultiHold, shown: object, cancels: Callable[[], object] | None = None) -> None:
        """Never called: it has no `on_lost`."""

    async def release(self, hold: MultiHold, given: Given = None) -> None:
        self.hold_stack.released(hold)
        await hold.release()

    def abandon(self, hold: MultiHold) -> None:
        hold.abandon()

    def owned(self) -> bool:
        return all(lock.owned() for lock in self.locks)

    async def locked(self) -> bool:
        for lock in self.locks:
            if await lock.locked():
                return True
        return False

    def describe(self) -> str:
        return ", ".join(lock.describe() for lock in self.locks)

    async def _merged(self, hold: MultiHold) -> dict[QueueKey, _Member]:
        """One member per queue, in the global order."""
        found: dict[QueueKey, _Member] = {}
        for lock in self.locks:
            queue = QueueKey(lock.request.name, lock.request.kind, await lock.client.identity())
            hold.order.append(queue)
            first = found.get(queue)
            found[queue] = _Member(lock, lock.weight) if first is None else _merge(first, lock)
        return {queue: found[queue] for queue in in_order(found)}

    async def _take_all(self, hold: MultiHold, members: dict[QueueKey, _Member]) -> bool:
        for queue, member in members.items():
            part = _Part(member.lock, member.lock.begin(hold.limit))
            part.hold.weight, part.hold.deadline, part.hold.lifeline = member.weight, hold.deadline, hold.lifeline
            hold.taken[queue] = part
            hold.shown[queue] = shown = self.show(part.hold, part.lock)
            if part.lock.on_lost is not None:
                part.lock.set_callbacks(part.hold, shown)
            if not await part.lock.acquire(part.hold):
                hold.stopped_by = part
                del hold.taken[queue]
                return False
            if hold.is_lost():
                break
        return True

    async def _give_back_all(self, hold: MultiHold) -> None:
        with suppress(LockLost):  # the loss may be why all are given back
            await hold.release()
        hold.taken.clear()
        hold.over = False

    async def _busy(self, hold: MultiHold) -> AcquireTimeout:
        part = hold.stopped_by
        if part is None:
            lock = self.locks[0]
            return lock.client.error(AcquireTimeout, self.name, "a member was lost while waiting for the others")
        return await part.lock.busy(part.hold)


def in_order(queues: dict[QueueKey, _Member]) -> list[QueueKey]:
    """The one global order."""
    return sorted(queues, key=lambda queue: (queue.name.encode(), queue.kind, queue.store))


def _merge(first: _Member, lock: Lock) -> _Member:
    """Merge members with the same queue: read and write become write, permits add up."""
    request = lock.request
    there = first.lock.request
    if (request.capacity, request.form) != (there.capacity, there.form):
        given = " and as ".join(f"{one.form or one.kind} of {one.capacity}" for one in (there, request))
        step = "use one kind and size for one name"
        raise lock.client.error(Mismatch, lock.name, f"given as {given}", step=step)
    if request.kind == "semaphore":
        total = first.weight + lock.weight
        if total > request.capacity:
            raise ValueError(f'"{lock.name}": {total} of {request.capacity} permits: that can never be granted')
        return _Member(first.lock, total)
    return _Member(lock, lock.weight) if lock.weight > first.weight else first
