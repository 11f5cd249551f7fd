"""The watchdog: it renews claims, declares losses, and gives back claims that their callers could not.

It has three lanes, each a thread of its own, so that none can delay another:

- `watch` does no I/O. It knows when each grant is due next, declares losses and passes renewals to the next lane.
- `renew` renews in batches, on a connection of its own that is opened with the first grant. Grants with similar leases
  share a batch, because the batch waits for its reply no longer than its shortest lease allows.
- `give_backs` (give_backs.py) removes claims from the store, some hundreds in one round trip.

Every claim that the store may have is in `renewing` from before its join is sent until a thread takes it out to end it.
If that thread cannot remove the claim at once, the give-backs have it until its leave is answered. Taking a grant out
is one dict pop: the thread that pops it ends it, and no other lock guards the end of a grant. User threads only change
containers, by operations that are atomic in CPython, and ring.

`watch` sleeps until `wakes_at`, at most a second. During a turn `wakes_at` is FOREVER, so that every thread that
schedules a grant rings: no change is missed between the end of a turn and the sleep that follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import count, islice
from math import frexp
from typing import Any

from dibs.core.deadline import FOREVER, attempt
from dibs.core.give_backs import BATCH, GiveBacks
from dibs.core.grantor import Grantor
from dibs.core.grants import ASKING, HELD, LOST, NO_CLAIM, OVER, WAITS, Grant
from dibs.core.log import fields, log
from dibs.core.loss import BROKEN, DISPLACED, EXPIRED, INSTANT, REPLACED, Loss, Trouble
from dibs.core.queue import LOOK, YOURS, ClientIdentity, Replaced
from dibs.core.reporter import Reporter
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.errors import Closed, StoreError, StoreUnavailable
from dibs.info import duration

TICK = 1.0
_SOON = 0.5
_OBSOLETE = 1000
"""The agenda may have this many obsolete entries before it is rebuilt."""
_ROUND_TRIPS = 6
"""A lease must last this many round trips, to be renewed in time after one failure."""


class Watchdog:
    def __init__(
        self,
        runtime: Runtime,
        me: ClientIdentity,
        open_grantor: Callable[[], Grantor],
        reporter: Reporter,
        mutex: AbstractContextManager[Any],
        *,
        claims_expire: bool = True,
    ) -> None:
        self.renewing: dict[bytes, Grant] = {}
        self.wakes_at = FOREVER
        self._late = 0.0
        """The seconds by which `watch` last awoke too late."""
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._reporter = reporter
        self._mutex = mutex
        self._open_grantor = open_grantor
        self.grantor: Grantor | None = None
        """For renewals."""
        self.is_connected = False
        self.unsorted: dict[bytes, Grant] = {}
        """Grants that are new, or due earlier than the agenda says."""
        self._agenda: list[tuple[float, int, Grant]] = []
        """A heap. An entry whose instant is not its grant's `watch_at` is obsolete."""
        self._numbers = count()
        self._due: deque[Grant] = deque()
        """From `watch` to `renew`."""
        self._groups: dict[tuple[int, bool], dict[bytes, Grant]] = {}
        """Grants to renew now, by the magnitude of their leases. Holders and waiters have separate batches: a store may
        have to read the queue of each waiter before it answers."""
        self.is_used = False
        self._warned = False
        self._watcher = runtime.worker(self.watch)
        self._renewer = runtime.worker(self.renew)
        self.give_backs = GiveBacks(runtime, open_grantor, self.heard, claims_expire=claims_expire)
        self.give_back, self.lighten_later = self.give_backs.post, self.give_backs.lighten_later

    # Called by user threads: nothing here waits.

    def adopt(self, grant: Grant) -> None:
        """Before the join is sent."""
        self.is_used = True
        self.unsorted[grant.claim.id] = self.renewing[grant.claim.id] = grant

    def schedule(self, grant: Grant) -> None:
        """Make sure that `watch` is awake when the grant is due."""
        due = grant.due()
        if due < grant.watch_at:
            self.unsorted[grant.claim.id] = grant
            if due < self.wakes_at:
                self._watcher.ring()
        if not self.is_connected and grant.state is HELD:
            self._renewer.ring()

    def take(self, grant: Grant) -> bool:
        """Take a grant out of renewal. True: the caller must end it."""
        claim = grant.claim
        if self.renewing.pop(claim.id, None) is None:
            return False
        self.unsorted.pop(claim.id, None)
        grant.state = OVER
        self._me.inbox.forget(claim.id)
        return True

    def abandon(self, grant: Grant) -> None:
        """End a grant after an exception, if no other thread has."""
        if self.take(grant):
            self.give_back(grant.claim, grant.answered)

    def expire(self, grant: Grant, now: float) -> None:
        """Declare a grant lost at its deadline."""
        self.lose(grant, self._deadline_loss(grant, now))

    def _deadline_loss(self, grant: Grant, now: float) -> Loss:
        """Why the lease of a held grant ran out."""
        if not grant.request.renew:
            return EXPIRED
        late = self._late if self.wakes_at == FOREVER else now - self.wakes_at
        lease = duration(grant.request.lease)
        trouble, stood_still = grant.trouble, late >= grant.request.lease / 4
        if trouble is not None and (trouble.seen_at < grant.until or not stood_still):
            since = datetime.now(UTC) - timedelta(seconds=now - trouble.since)
            return Loss("unreachable", f"the store was unreachable since {since:{INSTANT}}: {trouble.error.what}")
        if grant.in_flight is grant.claim and not stood_still:
            return Loss("unreachable", f"the store did not answer in time to keep the lease of {lease}")
        still = duration(max(late, now - grant.renew_at))  # a lower bound: it may have begun earlier
        return Loss(
            "standstill",
            f"this process stood still for at least {still} (stopped, suspended, or without CPU time), "
            f"too long for a lease of {lease}",
        )

    def lose(self, grant: Grant, loss: Loss, *, gone: bool = False) -> None:
        """Declare a grant lost, because it is no longer certain. Give it back, unless the store said that it is gone
        and no copy of its join can still arrive."""
        claim = grant.claim
        grant.loss = grant.loss or loss  # before `take`: then another thread may read it
        if not self.take(grant):
            return
        grant.state = LOST
        grant.tell_watchers()
        holds = list(grant.holds)
        for hold in holds:
            hold.tell_lost()
        if not (gone and grant.answered):
            self.give_back(claim, grant.answered)
        for hold in holds:
            hold.report_loss()

    def look_at(self, claim_id: bytes) -> None:
        """The store reported a change of a claim: renew it at once, or as soon as it is granted. The mark stays until
        that renewal is sent, because a reply that arrives before may be older. Claims with `renew=False` are left
        alone."""
        grant = self.renewing.get(claim_id)
        if grant is not None and grant.request.renew:
            grant.news = True
            self.schedule(grant)

    def heard(self, error: StoreError | None) -> None:
        """Called with every error of the store, and with None when it answered a request of the watchdog. A replaced
        store has lost all our claims."""
        if error is None:
            self._reporter.answered()
        elif isinstance(error, StoreUnavailable):
            self._reporter.unreachable(error)
        if not isinstance(error, Replaced):
            return
        for grant in list(self.renewing.values()):
            if grant.state is HELD:
                self.lose(grant, REPLACED, gone=True)
            else:
                self._me.inbox.deliver(grant.claim.id, LOOK.value)

    def round_trip(self) -> float:
        return 0.0 if self.grantor is None else self.grantor.round_trip()

    def stop(self) -> None:
        self._watcher.stop()
        self._renewer.stop()
        self.give_backs.stop()
        if self.grantor is not None:
            self.grantor.close()

    # The first lane: due grants and losses.

    async def watch(self) -> float | None:
        now = self._now()
        self._late = max(now - self.wakes_at, 0.0)  # set before `wakes_at`, which decides whether it is read
        self.wakes_at = FOREVER
        is_used, self.is_used = self.is_used, False
        while self.unsorted:
            claim_id, grant = self.unsorted.popitem()
            if self.renewing.get(claim_id) is grant:
                self._put_down(grant, now)
        self._look_through(now)
        if len(self._agenda) > 2 * len(self.renewing) + _OBSOLETE:
            self._agenda = [entry for entry in self._agenda if entry[0] == entry[2].watch_at and self._has(entry[2])]
            heapify(self._agenda)
        if not (self._agenda or is_used):
            return None
        upcoming = self._agenda[0][0] if self._agenda else FOREVER
        pause = max(min(upcoming - self._now(), TICK), 0.0)
        self.wakes_at = now + pause
        return pause

    def _has(self, grant: Grant) -> bool:
        return self.renewing.get(grant.claim.id) is grant

    def _put_down(self, grant: Grant, now: float) -> None:
        due = now + TICK if grant.state is ASKING else grant.due()
        grant.watch_at = due
        if due < FOREVER:
            heappush(self._agenda, (due, next(self._numbers), grant))

    def _look_through(self, now: float) -> None:
        """End grants that are over and pass on those to renew; a grant that is due soon joins the batch."""
        seen: list[Grant] = []
        horizon = now
        while self._agenda and self._agenda[0][0] <= horizon:
            due, _, grant = heappop(self._agenda)
            if due != grant.watch_at:
                continue
            grant.watch_at = FOREVER  # first: a thread that changes the grant from here on schedules it again
            if self._has(grant):
                if self._look_at(grant, now, horizon):
                    horizon = now + _SOON
                seen.append(grant)
        for grant in seen:
            if self._has(grant):
                self._put_down(grant, now)
        if horizon > now:
            self._renewer.ring()

    def _look_at(self, grant: Grant, now: float, horizon: float) -> bool:
        """True: it was passed on to be renewed."""
        if grant.state is HELD and (now >= grant.until or now >= grant.ends_at):
            self._end_expired(grant, now)
            if grant.state is not HELD:  # it has ended: a renewal would only delay its successor
                return False
        claim = grant.claim
        is_due = grant.state is not ASKING and (
            grant.news or (grant.renew_at <= horizon and grant.in_flight is not claim)
        )
        if (is_due or grant.state is ASKING) and not grant.wanted():
            grant.dropped = True  # its caller no longer exists, or is about to release it
            self._reporter.given_back(grant)
            self.abandon(grant)
            return False
        if is_due:
            grant.news, grant.in_flight = False, claim
            self._due.append(grant)
        return is_due

    def _end_expired(self, grant: Grant, now: float) -> None:
        if now >= grant.until:
            self.expire(grant, now)
            return
        with self._mutex:
            over = [hold for hold in grant.holds if now >= hold.ends_at]
            grant.holds = [hold for hold in grant.holds if now < hold.ends_at]
            grant.ends_at = min((hold.ends_at for hold in grant.holds), default=FOREVER)
        if over and not grant.holds:
            grant.holds = over
            self.lose(grant, over[0].ended_by_itself())
            return
        for hold in over:
            hold.tell_lost()
        if over:
            self.lighten_later(grant)
        for hold in over:
            hold.report_loss()

    # The second lane: renewals.

    async def renew(self) -> float | None:
        grantor = self._open_for_renewals()
        pause = None if self.is_connected else await self._connect(grantor)
        while self._due or self._groups:
            for kind in sorted(self._grouped()):
                group = self._groups[kind]
                batch = [group.pop(claim_id) for claim_id in list(islice(group, BATCH))]
                if not group:
                    del self._groups[kind]
                try:
                    await self._renew(grantor, batch)
                except Closed:
                    return None
        return pause

    async def _connect(self, grantor: Grantor) -> float | None:
        """Connect early: when the first renewal is due, the server may accept no more connections."""
        try:
            await grantor.connect(self._now() + TICK)
        except (StoreError, Closed) as error:
            log("watchdog").debug("no connection for renewals yet: %s", error, extra=fields("not_connected"))
            return TICK if self.renewing else None
        self.is_connected = True
        return None

    def _grouped(self) -> dict[tuple[int, bool], dict[bytes, Grant]]:
        while self._due:
            grant = self._due.popleft()
            kind = (frexp(_lease_of(grant))[1], grant.state is WAITS)
            self._groups.setdefault(kind, {})[grant.claim.id] = grant
        return self._groups

    async def _renew(self, grantor: Grantor, batch: list[Grant]) -> None:
        """Send one batch. It waits at most a sixth of the shortest lease, or two round trips if they take longer."""
        sent_at = self._now()
        asked = [  # the claim is read first: its caller may ask anew with another one at any time
            (grant, claim, grant.state is HELD)
            for grant in batch
            if (claim := grant.claim) is not NO_CLAIM and self._is_renewed(grant) and may_renew(grant, sent_at)
        ]
        if not asked:
            return
        batch = [grant for grant, _, _ in asked]
        for grant, claim, _ in asked:
            grant.in_flight = claim
        shortest = min(_lease_of(grant) for grant in batch)
        round_trip = grantor.round_trip()
        if shortest < _ROUND_TRIPS * round_trip and not self._warned:
            self._warned = True
            log("watchdog").warning(
                "a lease of %g s is too short: a reply of the store takes up to %.2f s; use at least %.1f s",
                shortest, round_trip, _ROUND_TRIPS * round_trip, extra=fields("lease_too_short", lease=shortest),
            )  # fmt: skip
        until = sent_at + attempt(shortest / 6, round_trip)
        try:
            standings = await grantor.renew([claim for _, claim, _ in asked], until)
        except StoreError as error:
            self._renew_again(batch, error, shortest, sent_at)
            return
        except BaseException:
            self._schedule_again(batch, shortest)
            raise
        for trouble, those in self._note_all(asked, standings, sent_at).items():
            self._renew_again(those, trouble, shortest, sent_at)

    def _note_all(
        self,
        asked: list[tuple[Grant, Claim, bool]],
        standings: Sequence[Standing | StoreUnavailable | None],
        sent_at: float,
    ) -> dict[StoreUnavailable, list[Grant]]:
        """Apply the replies; return the grants that were not renewed, by error."""
        failed: dict[StoreUnavailable, list[Grant]] = {}
        if not all(isinstance(standing, StoreUnavailable) for standing in standings):
            self.heard(None)
        for (grant, claim, was_held), standing in zip(asked, standings, strict=True):
            if grant.in_flight is claim:
                grant.in_flight = None
            if isinstance(standing, StoreUnavailable):
                failed.setdefault(standing, []).append(grant)
            elif claim is grant.claim and self._has(grant):
                if was_held and standing is not None and not standing.holds:  # the store lost acknowledged writes
                    self._lose_by_answer(grant, DISPLACED)
                else:
                    self._note(grant, standing, sent_at)
        return failed

    def _renew_again(self, batch: list[Grant], error: StoreError, shortest: float, sent_at: float) -> None:
        self.heard(error)
        if held := [grant for grant in batch if grant.state is HELD]:
            self._reporter.renewals_failed(held, sent_at, error)
        for grant in batch:
            before = grant.trouble or Trouble(sent_at, self._now(), error)
            grant.trouble = before._replace(error=error)
        self._schedule_again(batch, shortest)

    def _schedule_again(self, batch: list[Grant], shortest: float) -> None:
        again = self._now() + min(shortest / 12, TICK)
        for grant in batch:
            grant.in_flight = None
            if self._is_renewed(grant):
                grant.renew_at = again
            self.schedule(grant)

    def _is_renewed(self, grant: Grant) -> bool:
        """Check again before sending: since it was due, the grant may have ended, may join again with a new claim, or
        may have been granted with `renew=False`."""
        return self._has(grant) and (grant.state is WAITS or (grant.state is HELD and grant.request.renew))

    def _note(self, grant: Grant, standing: Standing | None, sent_at: float) -> None:
        """Apply the reply to a renewal of a grant that is still ours."""
        state = grant.state
        if standing is None:
            if state is HELD:
                self._lose_by_answer(grant, BROKEN, gone=True)
            else:
                grant.renew_at = FOREVER
                self._me.inbox.deliver(grant.claim.id, LOOK.value)
            return
        if state is HELD:
            if not may_renew(grant, now := self._now()):
                self._end_expired(grant, now)
                return
            if not grant.request.renew:  # the renewal was sent while the claim waited
                return
            self._reporter.renewed(grant, sent_at, now)
        grant.answer(standing, sent_at)
        grant.trouble = None
        if state is WAITS and standing.holds:
            self._me.inbox.deliver(grant.claim.id, YOURS.value)
        self.schedule(grant)

    def _lose_by_answer(self, grant: Grant, loss: Loss, *, gone: bool = False) -> None:
        """The store says that it is no longer held. Past its own deadline it had expired before."""
        now = self._now()
        self.lose(grant, loss if now < grant.until else self._deadline_loss(grant, now), gone=gone)

    def _open_for_renewals(self) -> Grantor:
        if self.grantor is None:
            self.grantor = self._open_grantor()
        return self.grantor


def may_renew(grant: Grant, now: float) -> bool:
    """Past its own deadline a held grant is lost, even if the store would still renew it. A grant whose holds have all
    ended by themselves is about to be given back: a renewal would only delay its successor."""
    if grant.state is HELD and now >= grant.ends_at and all(now >= hold.ends_at for hold in list(grant.holds)):
        return False
    return grant.state is not HELD or now < grant.until


def _lease_of(grant: Grant) -> float:
    return grant.request.waiting if grant.state is WAITS else grant.request.lease
