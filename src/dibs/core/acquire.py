"""Acquire and release over a `Queue`: the free path, and the one waiting loop.

`take` and `give` are the free path: one request, one reply, no coroutine. If they cannot finish, `acquire`, `release`
or `given` goes on with the same claim. A repeated join only reports, so no claim joins twice.

Every request is done, not done or unknown. An unknown join is repeated with the same id until `by`. After that the old
id is given back, and a new id joins at the end of the queue. A waiter does not poll: the watchdog renews the claims
of the client in batches and passes the replies on. A signal from the store usually comes sooner. A signal extends no
lease: the hold is returned at once if at least half a waiting lease is left, else after a renewal that confirms it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from dibs.core.deadline import (
    FIRST_PAUSE,
    FOREVER,
    LEAST_PATIENCE,
    LEAVE_PATIENCE,
    LONGEST_PAUSE,
    RELEASE_PATIENCE,
    attempt,
    rest,
    valid_until,
)
from dibs.core.grantor import Given
from dibs.core.grants import HELD, NO_CLAIM, OVER, WAITS, Grant, Hold, Request
from dibs.core.loss import BROKEN, GIVEN_BACK, REPLACED
from dibs.core.queue import (  # fmt: skip
    LOOK,
    NOWHERE,
    QUEUE,
    UNFAIR,
    YOURS,
    ClientIdentity,
    NamesHolders,
    Place,
    Queue,
    Replaced,
    Store,
)
from dibs.core.registry import HoldRegistry
from dibs.core.rule import Claim, Prepared, Standing
from dibs.core.runtime import Runtime
from dibs.errors import LockLost, StoreError, StoreUnavailable

_BARGE_PAUSE = 0.005
"""Unfair waiters spread their tries after a wakeup over this many seconds."""
_POLL_INTERVAL = 15.0
"""How often a waiter without a signal schedules its renewal again, in case the watchdog missed it."""


class QueueGrantor:
    """`Grantor` (grantor.py) over a store with queues."""

    def __init__(
        self, queue: Queue, runtime: Runtime, me: ClientIdentity, registry: HoldRegistry, retry: float
    ) -> None:
        self._queue = queue
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._expected = me.inbox.expected
        self._registry = registry
        self._watchdog = registry.watchdog
        self._give_backs = registry.watchdog.give_backs
        self._retry = retry
        self.connect, self.round_trip, self.close = queue.connect, queue.round_trip, queue.close
        self.renew, self.give_back = queue.renew, queue.leave_all
        self.inspect, self.page, self.revoke, self.evict = queue.inspect, queue.page, queue.revoke, queue.evict
        self.await_change, self.identity, self.doctor = queue.await_change, queue.identity, queue.doctor
        self.ping = queue.identity

    def take(self, hold: Hold, request: Request, description: str, prepared: Prepared | None) -> bool | Awaitable[bool]:
        if self._give_backs.is_full:
            return False
        sent_at, deadline = self._now(), hold.deadline
        claim = Claim(
            self._runtime.fresh_id(), request.name, request.form or request.kind, request.capacity, hold.weight,
            request.lease, request.waiting, sent_at + request.waiting, self._me.id, description, False, None, prepared,
        )  # fmt: skip
        hold.grant = grant = Grant(request, hold)
        grant.claim = claim
        grant.sent_at = sent_at
        watchdog, id = self._watchdog, claim.id
        self._expected[id] = None
        watchdog.is_used = True  # `adopt`, without the call
        watchdog.unsorted[id] = watchdog.renewing[id] = grant
        if self._registry.closed:  # after adopting: close() either sees the claim there, or is seen here
            self._registry.check_open()
        # An unfair waiter only tries here: `join` must subscribe it before it may wait.
        place = QUEUE if request.fair and deadline > sent_at else NOWHERE
        until = sent_at + (self._retry if deadline == FOREVER else max(LEAST_PATIENCE, deadline - sent_at))
        try:
            answer = self._queue.take_now(claim, place, until)
        except StoreUnavailable as error:
            grant.first = error
            return False
        if isinstance(answer, Standing):
            return self._is_counted(grant, answer)
        return False if answer is None else self._answered(grant, answer)

    async def _answered(self, grant: Grant, answer: Awaitable[Standing | None]) -> bool:
        try:
            standing = await answer
        except StoreUnavailable as error:
            grant.first = error
            return False
        return standing is not None and self._is_counted(grant, standing)

    def _is_counted(self, grant: Grant, standing: Standing) -> bool:
        """The short form of `Grant.answer` and `Grant.granted`, for a fresh grant. False: the general path decides."""
        sent_at, now, request, watchdog = grant.sent_at, self._now(), grant.request, self._watchdog
        until = valid_until(sent_at, standing.left)
        if not standing.holds or standing.revoked or until - now < request.waiting / 2:
            if request.fair or standing.holds or grant.holds[0].deadline <= sent_at:
                grant.first = standing
            return False
        grant.answered = True
        grant.until = until
        if request.renew:
            grant.renew_at = sent_at + standing.left / 3
        grant.state = HELD
        grant.holds[0].began = now
        if grant.news or min(grant.renew_at, until) < watchdog.wakes_at or not watchdog.is_connected:
            watchdog.schedule(grant)
        return not self._registry.closed  # after HELD: close() either ends a held grant, or is seen here

    def give(self, hold: Hold) -> Given:
        grant = hold.grant
        if hold.over or grant is None or grant.key is not None or hold.also is not None or not grant.answered:
            return None
        claim, now = grant.claim, self._now()
        if grant.state is not HELD or now >= grant.until or now >= hold.ends_at:
            return None  # it may be lost
        until = min(grant.until, now + RELEASE_PATIENCE)
        try:
            hold.over = grant.leaving = True
            if self._watchdog.renewing.pop(claim.id, None) is None:  # the thread that pops a grant ends it
                if grant.dropped and grant.loss is None:  # the watchdog gives it back: wait for that here, too
                    return self._leave_again(claim, until)
                grant.leaving = False
                hold.over = grant.loss is None  # another thread releases it; otherwise it is lost
                return None
            grant.state = OVER
            grant.holds.clear()
            self._watchdog.unsorted.pop(claim.id, None)
            self._expected.pop(claim.id, None)
            if grant.watchers:
                grant.tell_watchers()
            left = self._queue.leave_now(claim, until)
        except StoreUnavailable:
            return self._leave_again(claim, until)
        except StoreError as error:
            return _refused(error)
        except BaseException:
            self._watchdog.give_back(claim, grant.answered)
            grant.leaving = False
            raise
        if isinstance(left, bool):
            grant.leaving = False
            return left
        return self._queue.leave(claim, True, until) if left is None else self._leave_soon(claim, left, until)

    async def _leave_soon(self, claim: Claim, left: Awaitable[bool | None], until: float) -> bool:
        try:
            removed = await left
        except StoreUnavailable:
            return await self._leave_again(claim, until)
        return await self._queue.leave(claim, True, until) if removed is None else removed

    async def _leave_again(self, claim: Claim, until: float) -> bool:
        """Retry an unknown leave. True in any case: the first copy may have removed the claim."""
        await self._queue.leave(claim, True, until)
        return True

    async def given(self, hold: Hold, answer: bool | Awaitable[bool]) -> None:
        """Finish what `give` has begun."""
        grant = hold.grant
        assert grant is not None
        try:
            await self._left(grant, answer)
        except LockLost:
            hold.loss = grant.why_lost()
            raise hold.lost_error() from None

    async def release(self, grant: Grant, until: float) -> None:
        """The hold is invalid and no longer renewed first; only then does the claim leave."""
        claim = grant.claim
        try:
            grant.leaving = True
            if self._watchdog.take(grant):
                await self._left(grant, self._queue.leave(claim, grant.answered, until))
            elif grant.dropped:  # the watchdog gives it back: wait for that here, too
                await self._left(grant, self._leave_again(claim, until))
            else:
                grant.leaving = False
                if grant.loss is not None:
                    raise grant.taken_away(GIVEN_BACK)
        except BaseException:
            if grant.leaving:  # an interrupt before `_left`, which gives back by itself
                self._watchdog.give_back(claim, grant.answered)
                grant.leaving = False
            raise

    async def _left(self, grant: Grant, answer: bool | Awaitable[bool]) -> None:
        """The answer to a leave. If there is none, the watchdog goes on with it."""
        try:
            if not (answer if isinstance(answer, bool) else await answer):
                raise grant.taken_away(BROKEN)
        except LockLost:
            raise
        except Replaced as error:
            self._watchdog.heard(error)
            raise grant.taken_away(REPLACED) from None
        except BaseException as error:
            self._watchdog.give_back(grant.claim, grant.answered)
            if isinstance(error, StoreError):
                self._watchdog.heard(error)
            raise
        finally:
            grant.leaving = False

    async def acquire(  # noqa: C901, PLR0912, PLR0915  (the one waiting loop, in one piece)
        self, grant: Grant, weight: int, description: str, deadline: float
    ) -> bool:
        if self._give_backs.is_full:
            await self._give_backs.room(self._runtime, self._patience(deadline, self._now()))
        sent_at = self._now()
        began = sent_at if grant.claim is NO_CLAIM else grant.sent_at  # the free path chose the place then
        place = NOWHERE if deadline <= began else QUEUE if grant.request.fair else UNFAIR
        give_up, pause = self._patience(deadline, sent_at), FIRST_PAUSE
        first, grant.first = grant.first, None
        limit = None if deadline == FOREVER else deadline - began
        try:
            while True:
                claim = grant.claim
                if claim is NO_CLAIM or sent_at > claim.by:
                    claim = self._fresh_claim(grant, weight, description, sent_at)
                elif claim.asked:
                    self._registry.check_open()
                    grant.answered = False  # until the reply: an interrupt may leave this join in flight
                try:
                    standing: Standing | None
                    if isinstance(first, StoreUnavailable):
                        raise first
                    if first is not None:
                        sent_at, standing = grant.sent_at, first
                    else:
                        claim.limit = limit
                        standing = await self._queue.join(claim, place, give_up)
                    if standing is not None and standing.holds:
                        grant.answer(standing, sent_at)
                        if not self._enough_left(grant):  # a slow reply counts once a renewal confirms it
                            standing = await self._confirm(grant, self._now() + self._least())
                except StoreUnavailable as error:
                    first = None
                    self._watchdog.heard(error)
                    grant.doubt()
                    left = give_up - self._now()
                    if place is NOWHERE or pause >= left:
                        raise
                    await self._runtime.sleep(rest(pause, self._runtime.jitter(pause), left))
                    sent_at, pause = self._now(), min(pause * 2, LONGEST_PAUSE)
                    self._registry.check_open()
                    continue
                first = None
                if standing is not None and standing.holds:
                    self._hold(grant)
                    return True
                self._registry.check_open()
                if await self._after_no(grant, place, standing, sent_at, deadline):
                    return True
                if place is NOWHERE and standing is not None:
                    self._watchdog.take(grant)
                    return False
                if (sent_at := self._now()) >= deadline:
                    await self._withdraw(grant)
                    if standing is None:
                        raise StoreUnavailable("the store answered too late to count")
                    if held_back := standing.held_back if place is UNFAIR else grant.held_back:
                        raise held_back
                    return False
                give_up, pause = self._patience(deadline, sent_at), FIRST_PAUSE
        except StoreError:
            if not grant.claim.asked:
                self._watchdog.take(grant)  # the claim never reached the store: nothing to give back
            self._watchdog.abandon(grant)
            raise
        except BaseException:
            self._watchdog.abandon(grant)
            raise

    def _hold(self, grant: Grant) -> None:
        grant.granted(self._now())
        self._watchdog.schedule(grant)
        self._registry.check_open()  # after HELD: close() either ends a held grant, or is seen here

    def _patience(self, deadline: float, now: float) -> float:
        """Until when to retry a store that does not answer; even a try (timeout 0) allows it some seconds."""
        if deadline == FOREVER:
            return now + self._retry
        return max(now + self._least(), deadline)

    def _least(self) -> float:
        """Seconds that the store has to answer, however short the timeout of the caller is."""
        return attempt(LEAST_PATIENCE, self._queue.round_trip())

    async def _after_no(
        self, grant: Grant, place: Place, standing: Standing | None, sent_at: float, deadline: float
    ) -> bool:
        """Handle a join that was not granted at once. True: held. False: timed out, or a new id must join."""
        if standing is None:
            self._retire(grant)
            return False
        grant.answered = not grant.doubtful
        if place is not NOWHERE:
            for hold in list(grant.holds):
                self._registry.reporter.waiting(hold, grant.request)
        if place is UNFAIR:
            await self._wait_unfair(grant, standing, deadline)
        elif place is QUEUE:
            grant.answer(standing, sent_at)
            if await self._wait_in_queue(grant, deadline):
                return True
            if self._now() < deadline:
                self._retire(grant)
        return False

    async def evict_holder(self, name: str, holder: str, until: float) -> bool:
        return await cast("NamesHolders", self._queue).evict_holder(name, holder, until)

    async def lighten(self, grant: Grant, weight: int, until: float) -> None:
        claim = grant.claim
        await self._queue.amend(claim, weight, until)
        claim.weight = weight

    async def _wait_in_queue(self, grant: Grant, deadline: float) -> bool:
        """True: held. False: timed out, or the claim was evicted and a new id must join."""
        claim = grant.claim
        grant.state = WAITS
        self._watchdog.schedule(grant)
        is_told = False
        while (now := self._now()) < deadline:
            signal = await self._queue.watch(claim, min(deadline, now + _POLL_INTERVAL))
            self._registry.check_open()
            if signal is None:
                self._watchdog.schedule(grant)
                if not is_told:
                    is_told = True
                    self._registry.tell_of_wait(grant)
                continue
            if not (signal is YOURS and self._may_count_on(grant)):
                try:
                    standing = await self._confirm(grant, max(self._now() + self._least(), grant.until))
                except StoreUnavailable as error:
                    self._watchdog.heard(error)
                    if self._now() >= deadline:
                        raise
                    return False  # its place is no longer certain: a new id joins, with the same patience
                if standing is None:
                    return False
                if not standing.holds:
                    continue
            self._hold(grant)
            return True
        return False

    def _may_count_on(self, grant: Grant) -> bool:
        """Whether a grant by message counts without a renewal. With `renew=False` the lease counts from a renewal.
        After an unanswered join, the message may be about an earlier entry of this id, which somebody broke."""
        return grant.request.renew and not grant.doubtful and self._enough_left(grant)

    def _enough_left(self, grant: Grant) -> bool:
        return grant.until - self._now() >= grant.request.waiting / 2

    async def _confirm(self, grant: Grant, until: float) -> Standing | None:
        """Renew until the reply is valid on arrival; an expired reply says nothing about the present."""
        while True:
            standing = await self._look(grant, until)
            if standing is None or not standing.holds or self._now() < grant.until:
                return standing
            until = self._now() + self._least()

    async def _look(self, grant: Grant, until: float) -> Standing | None:
        """Renew this claim, to learn its state. None: the claim is gone."""
        sent_at = self._now()
        (standing,) = await self._queue.renew([grant.claim], until)
        if isinstance(standing, StoreUnavailable):
            raise standing
        if standing is not None:
            grant.answer(standing, sent_at)
            self._watchdog.schedule(grant)
        return standing

    async def _wait_unfair(self, grant: Grant, standing: Standing, deadline: float) -> None:
        look_at = self._now() + min(standing.next, grant.request.look_after)
        if await self._queue.watch(grant.claim, min(deadline, look_at)) is LOOK:
            await self._runtime.sleep(min(self._runtime.jitter(_BARGE_PAUSE), max(deadline - self._now(), 0.0)))

    async def _withdraw(self, grant: Grant) -> None:
        """On a timeout: leave now, so that no caller waits behind an abandoned claim."""
        claim = grant.claim
        try:
            if self._watchdog.take(grant):
                until = self._now() + attempt(LEAVE_PATIENCE, self._queue.round_trip())
                await self._queue.leave(claim, grant.answered, until)
        except StoreUnavailable as error:
            self._watchdog.heard(error)
            self._watchdog.give_back(grant.claim, grant.answered)
        except BaseException:
            if claim is not NO_CLAIM:
                self._watchdog.give_back(claim, grant.answered)
            raise

    def _fresh_claim(self, grant: Grant, weight: int, description: str, now: float) -> Claim:
        """Make a claim; the watchdog adopts it before its join is sent."""
        self._retire(grant)
        request = grant.request
        claim = Claim(
            self._runtime.fresh_id(), request.name, request.form or request.kind, request.capacity, weight,
            request.lease, request.waiting, now + request.waiting, self._me.id, description,
        )  # fmt: skip
        grant.ask_as(claim)
        self._expected[claim.id] = None
        self._watchdog.adopt(grant)
        if self._registry.closed:  # after adopting: close() either sees the claim there, or is seen here
            self._registry.check_open()
        return claim

    def _retire(self, grant: Grant) -> None:
        """Give the present id back, because its join may still take effect; a new id will join."""
        if self._watchdog.take(grant):
            claim, grant.claim = grant.claim, NO_CLAIM
            if claim.asked:
                self._watchdog.give_back(claim, grant.answered)


async def _refused(error: StoreError) -> bool:
    """A leave that the store refused, for `given` to report."""
    raise error


def queue_grantor(
    store: Store, runtime: Runtime, me: ClientIdentity, registry: HoldRegistry, retry: float
) -> QueueGrantor:
    """The `make_grantor` of `Client` for a store that has queues."""
    return QueueGrantor(store.open(runtime, me), runtime, me, registry, retry)
