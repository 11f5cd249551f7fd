"""Who holds what here: one `Hold` per acquire, owners, re-entry.

A hold is made before anything is asked, so that an exception anywhere finds something to give back. Until the face
has handed it to its user it hangs by a weak reference to the `Attempt` in the caller's frame (`asker`): a frame that
vanished without cleaning up (an interrupt within an interrupt) leaves a dead reference, and the watchdog gives back.

Re-entry is settled here and never joins again: holds of one owner on one name share a grant. A reader that re-entered
behind a waiting writer would otherwise wait for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from dibs.core.deadline import FOREVER, RELEASE_PATIENCE
from dibs.core.grant import ASKING, HELD, LOST, OVER, WAITS, Grant, Request
from dibs.core.log import log
from dibs.core.loss import EXPIRED, GIVEN_BACK, Loss, too_old
from dibs.errors import Deadlock, LockLost, LossReason, Mismatch, Unsupported

if TYPE_CHECKING:
    from dibs.core.client import Client

_FOLLOWER_NAP = 1.0
_FEW = 1000
"""With more claims than this, nobody looks whether a waiter waits for its own owner."""


class Hold:
    """One acquire as this process knows it."""

    __slots__ = (
        "also", "asker", "began", "client", "ends_at", "grant", "label", "loss", "name", "notify", "over", "owner",
        "taker", "weight", "when_lost",
    )  # fmt: skip

    def __init__(self, client: Client, name: str, weight: int, taker: object, owner: object, label: str) -> None:
        self.client = client
        self.name = name
        self.weight = weight
        self.owner = owner
        self.label = label
        self.taker = taker
        self.grant: Grant | None = None
        self.asker: Callable[[], object | None] | None = None
        self.began = 0.0
        self.ends_at = FOREVER
        self.notify: Sequence[Callable[[], object]] = ()
        """The user's, called elsewhere."""
        self.when_lost: Callable[[], None] | None = None
        """Ours, called at once."""
        self.also: Hold | None = None
        """A hold that this one cannot be without: the guard of its stripes."""
        self.over = False
        self.loss: Loss | None = None
        """Why it was lost, once somebody saw that it was."""

    @property
    def lost_seen(self) -> bool:
        return self.loss is not None

    def wanted(self) -> bool:
        return not self.over and (self.asker is None or self.asker() is not None)

    def still(self) -> Hold | None:
        """Itself while somebody needs it: what a hold that it depends on is asked for by."""
        return self if self.wanted() and not self.is_lost() else None

    def is_lost(self) -> bool:
        """By the clock, now. Once seen it stays so: whoever sees it first takes the grant out of renewal."""
        if self.loss is not None or self.over or self.grant is None:
            return self.loss is not None
        grant, now = self.grant, self.client.now()
        if grant.state is HELD:
            if now < grant.until and now < self.ends_at and self.also is None:  # nearly always
                return False
            if now >= grant.until:
                self.client.watchdog.expire(grant, now)
        if self.loss is None:  # `expire` may have told this hold
            self.loss = self._find_loss(grant, now)
        return self.loss is not None

    def _find_loss(self, grant: Grant, now: float) -> Loss | None:
        if now >= self.ends_at <= grant.until:
            return self.ended_by_itself()
        if grant.state is LOST or grant.state is OVER:
            return grant.why_lost()
        return self.also.loss if self.also is not None and self.also.is_lost() else None

    def ended_by_itself(self) -> Loss:
        """At its `max_hold`, or, where claims live by a session, at the end of a lease that is not renewed."""
        assert self.grant is not None
        return EXPIRED if self.grant.lasts_until <= self.ends_at else too_old(self.ends_at - self.began)

    def lost_reason(self) -> LossReason | None:
        return self.loss.reason if self.is_lost() and self.loss is not None else None

    def remaining(self) -> float:
        if self.over or self.grant is None or self.is_lost():
            return 0.0
        left = min(self.grant.until, self.ends_at) - self.client.now()
        return max(left if self.also is None else min(left, self.also.remaining()), 0.0)

    def tell_lost(self) -> None:
        """By whoever ended the grant; those who want to know are called once."""
        if not self.over:
            if self.loss is None and self.grant is not None:
                self.loss = self._find_loss(self.grant, self.client.now())
            if self.when_lost is not None:
                self.when_lost()
            if self.grant is not None and self.grant.state is LOST:
                self.client.book.unshare(self.grant)
            callbacks, self.notify = self.notify, ()
            for callback in callbacks:
                self.client.runtime.call_back(callback)

    def lost_error(self) -> LockLost:
        reason, text = self.loss or GIVEN_BACK
        return self.client.error(
            LockLost, self.name, f"lost (token {self.token}): {text}", reason=reason,
            step="stop the work that it protected; let the resource refuse tokens below the highest it has seen",
        )  # fmt: skip

    def check(self) -> None:
        if self.is_lost():
            raise self.lost_error()
        if self.over:
            raise self.client.error(LockLost, self.name, "this hold was released", step="acquire again")

    def describe(self) -> str:
        state = "lost" if self.is_lost() else "over" if self.over else f"{self.remaining():.1f} s left"
        return f'"{self.name}" on {self.client.shown}: {self.mode}, token {self.token}, {state}'

    @property
    def token(self) -> int:
        return 0 if self.grant is None else self.grant.token

    @property
    def mode(self) -> str:
        """Exclusive where nobody else can hold beside it."""
        exclusive = self.grant is not None and self.weight >= self.grant.request.capacity
        return "exclusive" if exclusive else "shared"

    async def wait_lost(self, until: float) -> bool:
        return await wait_for_any([self], Hold.is_lost, until)

    def revoke_requested(self) -> bool:
        return self.grant is not None and self.grant.revoke_seen

    async def wait_revoked(self, until: float) -> bool:
        return await wait_for_any([self], Hold.revoke_requested, until)


async def wait_for_any(holds: Sequence[Hold], condition: Callable[[Hold], bool], until: float) -> bool:
    """True as soon as the condition holds for one of them; False when the time is over or one of them has ended."""
    client = holds[0].client
    grants = [hold.grant for hold in holds if hold.grant is not None]
    while True:
        event = client.runtime.event()
        for grant in grants:
            grant.watchers.append(event)
        try:
            if any(condition(hold) for hold in holds):
                return True
            if client.now() >= until or any(hold.over or hold.is_lost() for hold in holds):
                return False
            await event.wait(min([until, *(grant.until for grant in grants), *(hold.ends_at for hold in holds)]))
        finally:
            for grant in grants:
                grant.watchers.remove(event)


def warn_if_nested(grant: Grant) -> None:
    """A waiter that has waited for a while, perhaps for itself."""
    hold = next(iter(grant.holds), None)
    if hold is None or grant.key is not None or grant.request.kind != "mutex":
        return
    client = hold.client
    if len(client.watchdog.renewing) <= _FEW and client.book.held_by(grant.request.name, hold.owner):
        log().warning(
            "%s: waits for a hold of the same owner; client.rlock may be taken again", client.place(hold.name)
        )


def _may_be_entered(grant: Grant, now: float) -> bool:
    """One whose every hold is past its `max_hold` is over, though the watchdog may not have got to it yet."""
    for hold in grant.holds:
        if now < hold.ends_at and hold.wanted():
            return grant.valid(now)
    return False


class _Frame:
    """Lives as long as the call that made it."""

    __slots__ = ("__weakref__",)


class Book:
    """The holds of one client, by owner."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._runtime = client.runtime
        self._now = client.runtime.now
        self._watchdog = client.watchdog
        self._shared: dict[tuple[str, object], Grant] = {}
        self._sharing = client.runtime.mutex()
        """Not the client's: a loss may be noticed by who has that one."""

    def acquire(
        self, hold: Hold, request: Request, share: bool, about: str, deadline: float
    ) -> Coroutine[Any, Any, bool]:
        """`share`: holds of one owner on this name share a grant."""
        if share:
            return self._acquire_shared(hold, request, about, deadline)
        hold.grant = grant = Grant(request)
        grant.holds.append(hold)
        return self._client.opened.acquire(grant, hold.weight, about, deadline)

    async def _acquire_shared(self, hold: Hold, request: Request, about: str, deadline: float) -> bool:
        key = (request.name, hold.owner)
        while True:
            mine = Grant(request, key)
            grant = self._shared.setdefault(key, mine)
            if grant is mine:
                return await self._ask(grant, hold, about, deadline)
            if self._enter(grant, hold, request):
                return True
            if not await self._answer_of(grant, deadline):
                return False

    def release(self, hold: Hold) -> Coroutine[Any, Any, None]:
        """A second time it does nothing; a lost hold says so once."""
        return self._release(hold) if hold.also is None else self._release_both(hold, hold.also)

    async def _release_both(self, hold: Hold, also: Hold) -> None:
        here = _Frame()
        also.asker = ref(here)  # from here on it hangs by this call, not by the other hold, which may end first
        try:
            await self._release(hold)
        finally:
            await self._release(also)

    async def downgrade(self, hold: Hold) -> None:
        hold.check()
        grant = hold.grant
        if grant is None or grant.request.kind != "rw":
            raise self._client.error(
                Unsupported, hold.name, "only a hold of a read-write lock can be downgraded",
                step="use client.rwlock(name).write",
            )  # fmt: skip
        with self._client.mutex:
            hold.weight = 1
        await self._lighten(grant)

    def abandon(self, hold: Hold) -> None:
        """From an exception: nothing is awaited, the watchdog does the rest. What ended already is left alone."""
        hold.over = True
        grant = hold.grant
        if grant is not None:
            if grant.wanted():
                self._watchdog.settle(grant)
            else:
                self.unshare(grant)
                self._watchdog.abandon(grant)
        if hold.also is not None:
            self.abandon(hold.also)

    def held_by(self, name: str, owner: object) -> bool:
        """No I/O: is there a hold of that owner on that name which is certain now?"""
        return any(
            not hold.over and not hold.is_lost()
            for grant in list(self._watchdog.renewing.values())
            if grant.request.name == name and grant.state is HELD
            for hold in list(grant.holds)
            if hold.owner == owner
        )

    async def _ask(self, grant: Grant, hold: Hold, about: str, deadline: float) -> bool:
        self._add(grant, hold)
        grant.decided = self._runtime.event()
        held = False
        try:
            held = await self._client.opened.acquire(grant, hold.weight, about, deadline)
        finally:
            if not held:
                self.unshare(grant)
            grant.decided.set()
        return held

    def _enter(self, grant: Grant, hold: Hold, request: Request) -> bool:
        """Share a grant that this owner has. False: it is still being asked for, or over."""
        there = grant.request
        if (there.kind, there.capacity) != (request.kind, request.capacity):
            raise self._client.error(
                Mismatch, hold.name, f"this client holds it as {there.kind} of {there.capacity}",
                step="use one kind and size for one name",
            )  # fmt: skip
        with self._client.mutex:
            if _may_be_entered(grant, self._now()):
                if hold.weight > grant.heaviest():
                    raise self._client.error(
                        Deadlock, hold.name, "you hold its read side: waiting to write would wait for yourself",
                        step="release the read side first, or take the write side from the start",
                    )  # fmt: skip
                self._add(grant, hold)
                return True
        if not self._undecided(grant):
            self.unshare(grant)
        return False

    async def _answer_of(self, grant: Grant, deadline: float) -> bool:
        """Another thread of this owner is asking: wait for its answer, not behind it in line. False: time is over."""
        while self._undecided(grant):
            self._client.check_open()
            now = self._now()
            if now >= deadline:
                return False
            if grant.decided is None:
                await self._runtime.sleep(0)  # the other thread is one line away from making it
            else:
                await grant.decided.wait(min(deadline, now + _FOLLOWER_NAP))
        return True

    @staticmethod
    def _undecided(grant: Grant) -> bool:
        return grant.state in (ASKING, WAITS) and grant.wanted()

    async def _release(self, hold: Hold) -> None:
        lost = hold.is_lost()
        grant = hold.grant
        if lost:
            hold.tell_lost()  # by the clock it may be lost before the watchdog has noticed, and told anybody
        with self._client.mutex:
            if hold.over or grant is None:
                return
            hold.over = True
            is_shared = grant.key is not None
            last = not is_shared or not grant.wanted()
            if hold in grant.holds:  # it may have been taken out at its max_hold
                grant.holds.remove(hold)
        if last and is_shared:
            self.unshare(grant)
        if grant.watchers:
            grant.tell_watchers()
        if lost:
            if last:
                self._watchdog.abandon(grant)
            raise hold.lost_error()
        if not last:
            await self._lighten(grant)
            return
        until = self._now() + RELEASE_PATIENCE
        try:
            await self._client.opened.release(grant, min(grant.until, until))
        except LockLost:
            hold.loss = grant.why_lost()
            raise hold.lost_error() from None

    async def _lighten(self, grant: Grant) -> None:
        """A grant weighs what its heaviest hold weighs."""
        weight = grant.heaviest()
        if grant.claim is not None and weight < grant.claim.weight:
            await self._client.opened.amend(grant, weight, self._now() + RELEASE_PATIENCE)

    @staticmethod
    def _add(grant: Grant, hold: Hold) -> None:
        hold.grant = grant
        grant.holds.append(hold)

    def unshare(self, grant: Grant) -> None:
        """A grant that ends is no longer there to share."""
        if grant.key is not None:
            with self._sharing:  # the watchdog's thread beside one that asks anew: each takes out only its own
                if self._shared.get(grant.key) is grant:
                    del self._shared[grant.key]
