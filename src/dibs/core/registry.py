"""The holds of one client: owners, re-entry, release.

Re-entry never joins the queue again: holds of one owner on one name share a grant. Otherwise a reader that re-enters
behind a waiting writer would wait for itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from weakref import ref

from dibs.core.deadline import RELEASE_PATIENCE
from dibs.core.grantor import Grantor
from dibs.core.grants import ASKING, HELD, WAITS, Frame, Grant, Hold, Request
from dibs.core.log import fields, log
from dibs.core.reporter import Reporter
from dibs.core.runtime import Runtime
from dibs.core.watchdog import Watchdog
from dibs.errors import Closed, Deadlock, LockLost, Mismatch, StoreUnavailable, Unsupported

_FOLLOWER_NAP = 1.0
_FEW = 1000
"""With more claims than this, `tell_of_wait` would cost too much."""


def _may_be_entered(grant: Grant, now: float) -> bool:
    """False if every hold is past its `max_hold`, even if the watchdog has not ended the grant yet."""
    for hold in grant.holds:
        if now < hold.ends_at and hold.wanted():
            return grant.valid(now)
    return False


class HoldRegistry:
    """The holds of one client; the `HoldContext` of each of them."""

    grantor: Grantor | None = None
    """None until the client is open."""
    watchdog: Watchdog

    def __init__(self, runtime: Runtime, shown: str, reporter: Reporter, mutex: AbstractContextManager[Any]) -> None:
        self.runtime = runtime
        self.now = runtime.now
        self.shown = shown
        self.reporter = reporter
        self.closed = False
        self._mutex = mutex
        """Guards the holds of each grant; never held over an await."""
        self._shared: dict[tuple[str, object], Grant] = {}
        self._sharing = runtime.mutex()
        """Guards `_shared`. Not `_mutex`: a thread that has that one may notice a loss, and unshare."""

    def check_open(self) -> None:
        if self.closed:
            raise Closed("this client was closed", store=self.shown, step="connect again")

    def expire(self, grant: Grant, now: float) -> None:
        self.watchdog.expire(grant, now)

    async def acquire(self, hold: Hold, request: Request, share: bool, description: str) -> bool:
        """`share`: holds of one owner on this name share a grant."""
        if share:
            return await self._acquire_shared(hold, request, description)
        if hold.grant is None:
            hold.grant = Grant(request, hold)
        return await self._opened().acquire(hold.grant, hold.weight, description, hold.deadline)

    async def _acquire_shared(self, hold: Hold, request: Request, description: str) -> bool:
        key = (request.name, hold.owner)
        while True:
            mine = Grant(request)
            mine.key = key
            grant = self._shared.setdefault(key, mine)
            if grant is mine:
                return await self._ask(grant, hold, description)
            if self._enter(grant, hold, request):
                if request.form is not None:
                    await self._count(grant)
                return True
            if self._undecided(grant):
                self.reporter.waiting(hold, request)
            if not await self._answer_of(grant, hold.deadline):
                return False

    async def release(self, hold: Hold) -> bool:
        """False: it is over already, and nothing was done. A lost hold raises once."""
        also = hold.also
        if also is None:
            return await self._release(hold)
        here = Frame()
        also.lifeline = ref(here)  # the guard now depends on this call: its hold may end first
        try:
            return await self._release(hold)
        finally:
            try:
                await self._release(also)
            except LockLost:
                hold.loss = hold.loss or also.loss  # it is lost with its guard
                raise

    async def downgrade(self, hold: Hold) -> None:
        hold.check()
        grant = hold.grant
        if grant is None or grant.request.kind != "rw":
            raise Unsupported(
                "only a hold of a read-write lock can be downgraded", name=hold.name, store=self.shown,
                step="use client.rwlock(name).write",
            )  # fmt: skip
        with self._mutex:
            hold.weight = 1
        await self._lighten(grant)

    def abandon(self, hold: Hold) -> None:
        """Clean up after an exception. Awaits nothing: the watchdog gives back. A hold that has ended stays as is."""
        hold.over = True
        grant = hold.grant
        if grant is not None:
            if grant.wanted():
                self.watchdog.lighten_later(grant)
            else:
                self.unshare(grant)
                self.watchdog.abandon(grant)
                if grant.leaving:
                    self.watchdog.give_back(grant.claim, grant.answered)
        if hold.also is not None:
            self.abandon(hold.also)

    def held_by(self, name: str, owner: object) -> bool:
        """Whether this owner has a valid hold on this name. No I/O."""
        return any(
            not hold.over and not hold.is_lost()
            for grant in list(self.watchdog.renewing.values())
            if grant.request.name == name and grant.state is HELD
            for hold in list(grant.holds)
            if hold.owner == owner
        )

    def tell_of_wait(self, grant: Grant) -> None:
        """Log that a waiter waits long, and warn if it waits for a hold of its own owner."""
        hold = next(iter(grant.holds), None)
        if hold is None:
            return
        self.reporter.waits_long(hold, grant.request)
        if grant.key is not None or grant.request.kind != "mutex":
            return
        if len(self.watchdog.renewing) <= _FEW and self.held_by(grant.request.name, hold.owner):
            place = f'"{hold.name}" on {self.shown}'
            log("lock").warning(
                "%s: waits for a hold of the same owner; client.rlock may be taken again", place,
                extra=fields("waits_for_itself", lock=hold.name, store=self.shown),
            )  # fmt: skip

    def unshare(self, grant: Grant) -> None:
        if grant.key is not None:
            with self._sharing:  # the watchdog and an acquiring thread each remove only their own grant
                if self._shared.get(grant.key) is grant:
                    del self._shared[grant.key]

    def _opened(self) -> Grantor:
        assert self.grantor is not None  # callers have awaited `Client.ready`
        return self.grantor

    async def _ask(self, grant: Grant, hold: Hold, description: str) -> bool:
        self._add(grant, hold)
        grant.decided = self.runtime.event()
        held = False
        try:
            held = await self._opened().acquire(grant, hold.weight, description, hold.deadline)
        finally:
            if not held:
                self.unshare(grant)
            grant.decided.set()
        return held

    def _enter(self, grant: Grant, hold: Hold, request: Request) -> bool:
        """Share a grant of this owner. False: it is not granted yet, or has ended."""
        there = grant.request
        if (there.kind, there.capacity, there.form) != (request.kind, request.capacity, request.form):
            raise Mismatch(
                f"this client holds it as {there.form or there.kind} of {there.capacity}",
                name=hold.name, store=self.shown,
                step="use one kind and size for one name",
            )  # fmt: skip
        with self._mutex:
            if _may_be_entered(grant, self.now()):
                if hold.weight > grant.heaviest():
                    raise Deadlock(
                        "you hold its read side: waiting to write would wait for yourself",
                        name=hold.name, store=self.shown,
                        step="release the read side first, or take the write side from the start",
                    )  # fmt: skip
                self._add(grant, hold)
                return True
        if not self._undecided(grant):
            self.unshare(grant)
        return False

    async def _answer_of(self, grant: Grant, deadline: float) -> bool:
        """Wait for the acquire of another thread of this owner. False: timed out."""
        while self._undecided(grant):
            self.check_open()
            now = self.now()
            if now >= deadline:
                return False
            if grant.decided is None:
                await self.runtime.sleep(0)  # the other thread is about to set it
            else:
                await grant.decided.wait(min(deadline, now + _FOLLOWER_NAP))
        return True

    @staticmethod
    def _undecided(grant: Grant) -> bool:
        return grant.state in (ASKING, WAITS) and grant.wanted()

    async def _release(self, hold: Hold) -> bool:
        lost = hold.is_lost()
        grant = hold.grant
        if lost:
            hold.tell_lost()  # the watchdog may not have noticed the loss yet
        with self._mutex:
            if hold.over or grant is None:
                return False
            hold.over = True
            is_shared = grant.key is not None
            last = not is_shared or not grant.wanted()
            if hold in grant.holds:  # the watchdog removes it at its max_hold
                grant.holds.remove(hold)
        if last and is_shared:
            self.unshare(grant)
        if grant.watchers:
            grant.tell_watchers()
        if lost:
            if last:
                self.watchdog.abandon(grant)
            raise hold.lost_error()
        if not last:
            await self._lighten(grant)
            return True
        try:
            await self._opened().release(grant, min(grant.until, self.now() + RELEASE_PATIENCE))
        except LockLost:
            hold.loss = grant.why_lost()
            raise hold.lost_error() from None
        return True

    async def _lighten(self, grant: Grant) -> None:
        """Lower the weight of the claim to that of its remaining holds."""
        weight = grant.weight()
        if weight != grant.claim.weight:
            try:
                await self._opened().lighten(grant, weight, self.now() + RELEASE_PATIENCE)
            except BaseException:
                self.watchdog.lighten_later(grant)
                raise

    async def _count(self, grant: Grant) -> None:
        """Count a re-entry in a FOREIGN store. The hold is valid without it: a silent store only delays the count."""
        try:
            await self._lighten(grant)
        except StoreUnavailable as error:
            self.watchdog.heard(error)

    @staticmethod
    def _add(grant: Grant, hold: Hold) -> None:
        hold.grant = grant
        grant.holds.append(hold)
