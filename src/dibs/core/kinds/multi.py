"""Several locks as one, of any kind, from any clients: all or none.

They are taken one after the other in one global order (encoded name, kind, an id kept in the store), which is the same
in every process, so that no two of them can wait for each other in a circle. Members that are the same line are
merged and share a hold. One deadline counts for all; a member that is lost while the rest is awaited ends the attempt,
everything is given back, and another attempt begins while there is time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dibs.core.deadline import FOREVER, patience
from dibs.core.holds import Hold, wait_for_any
from dibs.core.kinds.lock import UNSET, Attempt, Lock, limit_of
from dibs.core.kinds.taken import Taken, Takes
from dibs.errors import AcquireTimeout, DibsError, LockLost, LossReason, Mismatch


class Line(NamedTuple):
    """A place in the global order."""

    name: str
    kind: str
    store: str


class _Member(NamedTuple):
    lock: Lock
    weight: int


class MultiHold:
    """Lost when any of its holds is; it has no token."""

    def __init__(self, taker: object) -> None:
        self.taker = taker
        self.attempts: dict[Line, Attempt] = {}
        self.shown: dict[Line, Any] = {}
        """Each hold as its face shows it."""
        self.order: list[Line] = []
        """For each argument the line that it stands for."""
        self.over = False

    @property
    def parts(self) -> list[Hold]:
        return [attempt.hold for attempt in self.attempts.values()]

    @property
    def lost_seen(self) -> bool:
        return any(hold.lost_seen for hold in self.parts)

    def wanted(self) -> bool:
        return not self.over

    def as_given(self) -> tuple[Any, ...]:
        """One per argument, in their order; merged members share one."""
        return tuple(self.shown[line] for line in self.order)

    def is_lost(self) -> bool:
        return any(hold.is_lost() for hold in self.parts)

    def lost_reason(self) -> LossReason | None:
        """Of the first part that is lost."""
        return next((reason for hold in self.parts if (reason := hold.lost_reason())), None)

    def check(self) -> None:
        for hold in self.parts:
            hold.check()

    def remaining(self) -> float:
        return min((hold.remaining() for hold in self.parts), default=0.0)

    async def wait_lost(self, until: float) -> bool:
        return await wait_for_any(self.parts, Hold.is_lost, until)

    def abandon(self) -> None:
        """From an exception: see `Takes`."""
        self.over = True
        for attempt in list(self.attempts.values()):
            attempt.abandon()

    async def release(self) -> None:
        """In reverse order; every member is given back even if one fails."""
        self.over = True
        failed: DibsError | None = None
        for attempt in reversed(list(self.attempts.values())):
            try:
                await attempt.lock.release(attempt.hold)
            except DibsError as error:
                failed = error
            except BaseException:  # cancelled within one of them: the others are to be given back all the same
                self.abandon()
                raise
        if failed is not None:
            raise failed


class Multi(Takes[MultiHold]):
    """`dibs.multi` and `dibs.aio.multi` are faces of this."""

    def __init__(self, locks: Sequence[Lock], timeout: object, show: Callable[[Hold, Lock], object]) -> None:
        if not locks:
            raise ValueError("multi needs at least one lock")
        self.show = show
        self.locks = tuple(locks)
        self.name = ", ".join(dict.fromkeys(lock.name for lock in locks))
        self.timeout = patience(timeout)
        self.taken = Taken(self.name, locks[0].client)

    def attempt(self, timeout: object = UNSET, blocking: object = True) -> MultiAttempt:
        return MultiAttempt(self, limit_of(self.timeout, timeout, blocking))

    async def release(self, hold: MultiHold) -> None:
        self.taken.released(hold)
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


class MultiAttempt:
    """See `Attempt`: it lives in the caller's frame and nowhere else."""

    def __init__(self, multi: Multi, limit: float | None) -> None:
        client = multi.locks[0].client
        self.multi = multi
        self.limit = limit
        self._now = client.now
        self.deadline = FOREVER if limit is None else client.now() + limit
        self.hold = MultiHold(client.runtime.taker())
        self._stopped_by: Attempt | None = None

    async def run(self, *, entered: bool = False) -> bool:
        members = await self._merged()
        while True:
            if not await self._take_all(members):
                await self._give_back_all()
                return False
            if not self.hold.is_lost():
                self.multi.taken.remember(self.hold, entered=entered)
                return True
            await self._give_back_all()
            if self._now() >= self.deadline:
                return False

    async def enter(self) -> None:
        if not await self.run(entered=True):
            raise await self._busy()

    def told(self, hold: object) -> None:
        """Each member's own `on_lost` is called with its own hold: see `_take_all`."""

    def hand_over(self, block: Callable[[], object | None] | None = None) -> None:
        for attempt in self.hold.attempts.values():
            attempt.hand_over(block)

    def abandon(self) -> None:
        self.multi.drop(self.hold)

    async def _merged(self) -> dict[Line, _Member]:
        """One member per line, in the global order."""
        found: dict[Line, _Member] = {}
        for lock in self.multi.locks:
            line = Line(lock.request.name, lock.request.kind, await lock.client.identity())
            self.hold.order.append(line)
            there = found.get(line)
            found[line] = _Member(lock, lock.weight) if there is None else _merge(there, lock)
        return {line: found[line] for line in in_order(found)}

    async def _take_all(self, members: dict[Line, _Member]) -> bool:
        for line, member in members.items():
            attempt = Attempt(member.lock, member.weight, self.limit)
            attempt.deadline = self.deadline
            self.hold.attempts[line] = attempt
            self.hold.shown[line] = shown = self.multi.show(attempt.hold, attempt.lock)
            attempt.told(shown)
            if not await attempt.run():
                self._stopped_by = attempt
                del self.hold.attempts[line]
                return False
            if self.hold.is_lost():
                break
        return True

    async def _give_back_all(self) -> None:
        with suppress(LockLost):  # that may be why it is given back
            await self.hold.release()
        self.hold.attempts.clear()
        self.hold.over = False

    async def _busy(self) -> AcquireTimeout:
        attempt = self._stopped_by
        if attempt is None:
            lock = self.multi.locks[0]
            return lock.client.error(AcquireTimeout, self.multi.name, "a member was lost while waiting for the others")
        return await attempt.lock.busy(attempt)


def in_order(lines: dict[Line, _Member]) -> list[Line]:
    """The one global order."""
    return sorted(lines, key=lambda line: (line.name.encode(), line.kind, line.store))


def _merge(there: _Member, lock: Lock) -> _Member:
    """Equal members become one: read and write are write, permits add up."""
    request = lock.request
    if request.capacity != there.lock.request.capacity:
        raise lock.client.error(
            Mismatch, lock.name, f"given as {request.kind} of {there.lock.request.capacity} and of {request.capacity}",
            step="use one size for one name",
        )  # fmt: skip
    if request.kind == "semaphore":
        total = there.weight + lock.weight
        if total > request.capacity:
            raise ValueError(f'"{lock.name}": {total} of {request.capacity} permits: that can never be granted')
        return _Member(there.lock, total)
    return _Member(lock, lock.weight) if lock.weight > there.weight else there
