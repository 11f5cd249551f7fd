"""The keeper: renews, declares loss, gives back what others could not.

Every claim that may stand in the store is in `renewing` from before its join is sent until somebody takes it out to
end it, and then, if that could not be done at once, in `_posted` or `_leaving` until its leave is answered. Taking it
out is one dict pop: whoever gets it ends it, and there is no other lock on a grant's end. `turn` is stepped by a
worker's thread over a blocking port of its own; `watch` by another one, so that a deadline is seen while a renewal
hangs. User threads only put things down here (C-made containers, single steps) and ring.

A worker sleeps until `wakes_at`, at most a second. During a turn `wakes_at` is FOREVER, so that whoever schedules
something meanwhile rings: that way no schedule falls between a scan and the sleep that follows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from dibs.core.deadline import FOREVER
from dibs.core.grant import ASKING, HELD, LOST, OVER, WAITS, Grant, KeeperPort
from dibs.core.line import LOOK, YOURS, Me, Replaced
from dibs.core.log import log
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Event, Runtime
from dibs.errors import StoreError, StoreUnavailable

TICK = 1.0
_SOON = 0.5
_BATCH = 1000
"""How many claims are renewed in one step of the store: a longer one would keep other writers out."""
_LEAVE_ATTEMPT = 0.5
_AFTER_A_NO = 5.0
"""What a store refuses for good it will hardly allow a moment later."""


class _Leaving(NamedTuple):
    claim: Claim
    answered: bool
    give_up_at: float
    again_at: float = 0.0


class Keeper:
    """One per client."""

    def __init__(
        self, runtime: Runtime, me: Me, open_port: Callable[[], KeeperPort], mutex: AbstractContextManager[Any]
    ) -> None:
        self.renewing: dict[bytes, Grant] = {}
        self.wakes_at = FOREVER
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._mutex = mutex
        self._open_port = open_port
        self._port: KeeperPort | None = None
        self._posted: deque[_Leaving | Grant] = deque()
        self._leaving: list[_Leaving] = []
        self._idle_events: deque[Event] = deque()
        self._used = False
        self._worker = runtime.worker(self.turn)
        self._watcher = runtime.worker(self.watch)

    # What user threads call: nothing here waits.

    def adopt(self, grant: Grant) -> None:
        """Before the join is sent."""
        assert grant.claim is not None
        self._used = True
        self.renewing[grant.claim.id] = grant

    def schedule(self, grant: Grant) -> None:
        """After an answer: make sure that a thread is awake when the next renewal is due."""
        wakes_at = self.wakes_at
        if grant.renew_at < wakes_at or grant.until < wakes_at or grant.ends_at < wakes_at:
            self._worker.ring()
        if grant.watched:
            self._watcher.ring()

    def take(self, grant: Grant) -> bool:
        """Take a grant out of renewal. True: it is the caller's to end."""
        claim = grant.claim
        if claim is None or self.renewing.pop(claim.id, None) is None:
            return False
        grant.state = OVER
        self._me.inbox.forget(claim.id)
        return True

    def abandon(self, grant: Grant) -> None:
        """End a grant from wherever an exception left it."""
        if self.take(grant) and grant.claim is not None:
            self.give_back(grant.claim, grant.answered)

    def give_back(self, claim: Claim, answered: bool) -> None:
        """The keeper goes on until the leave is answered, or the claim cannot stand anywhere any more."""
        over = max(claim.by, self._now() + claim.lease)
        self._posted.append(_Leaving(claim, answered, over))
        self._worker.ring()

    def settle(self, grant: Grant) -> None:
        """Bring the claim's weight in the store down to its heaviest hold, as soon as that can be done."""
        self._posted.append(grant)
        self._worker.ring()

    def lose(self, grant: Grant, *, gone: bool = False) -> None:
        """It is no longer certain that this is held; unless the store said that it is gone, it is given back."""
        claim = grant.claim
        if not self.take(grant) or claim is None:
            return
        grant.state = LOST
        grant.tell_watchers()
        for hold in list(grant.holds):
            hold.tell_lost()
        if not gone:
            self.give_back(claim, grant.answered)

    def look_at(self, claim_id: bytes) -> None:
        """The store has news of a claim: the next turn renews it, which is a look; if it is not granted yet, the first
        one after that. The mark stays until then, whatever answer comes meanwhile: that one may be older. A claim that
        is not to be renewed is not looked at."""
        grant = self.renewing.get(claim_id)
        if grant is not None and grant.request.renew:
            grant.news = True
            self._worker.ring()

    def heard(self, error: StoreError) -> None:
        """Called with every error of the store: one that is not the store of old has lost all our claims."""
        if isinstance(error, Replaced):
            self._lose_all()

    def _lose_all(self) -> None:
        for grant in list(self.renewing.values()):
            if grant.state is HELD:
                self.lose(grant, gone=True)
            elif grant.claim is not None:
                self._me.inbox.deliver(grant.claim.id, LOOK.value)

    def when_idle(self, runtime: Runtime) -> Event:
        """An event for whoever must know that nothing is left to give back."""
        event = runtime.event()
        self._idle_events.append(event)
        self._worker.ring()
        return event

    def stop(self) -> None:
        self._worker.stop()
        self._watcher.stop()
        if self._port is not None:
            self._port.close()

    # What its own threads do.

    async def turn(self) -> float | None:
        self.wakes_at = FOREVER
        used, self._used = self._used, False
        due, upcoming = self._sort_out(self._now())
        for n in range(0, len(due), _BATCH):
            upcoming = min(upcoming, await self._renew(due[n : n + _BATCH]))
        await self._give_back_posted()
        if not self._posted and all(self._now() < item.again_at for item in self._leaving):
            while self._idle_events:
                self._idle_events.popleft().set()
        if not (self.renewing or self._leaving or used):
            return None
        now = self._now()
        pause = max(min(upcoming - now, TICK / 5 if self._leaving else TICK), 0.0)
        self.wakes_at = now + pause
        return pause

    async def watch(self) -> float | None:
        now, upcoming = self._now(), FOREVER
        for grant in list(self.renewing.values()):
            if grant.watched and grant.state is HELD:
                self._end_what_is_over(grant, now)
                upcoming = min(upcoming, grant.until, grant.ends_at)
        return None if upcoming == FOREVER else max(upcoming - now, 0.0)

    def _sort_out(self, now: float) -> tuple[list[Grant], float]:  # noqa: C901  (one pass, as it is long)
        """Who is to be renewed now, and when the next look is needed. Whoever is due soon goes with the others."""
        due: list[Grant] = []
        soon: list[Grant] = []
        upcoming = FOREVER
        for grant in list(self.renewing.values()):
            state, renew_at = grant.state, grant.renew_at
            if state is HELD:
                if now >= grant.until or now >= grant.ends_at:
                    self._end_what_is_over(grant, now)
                    if grant.state is not HELD:  # it is on its way out: a renewal would only keep others waiting
                        continue
                upcoming = min(upcoming, grant.until)
                upcoming = min(upcoming, grant.ends_at)
            elif state is ASKING:
                if not grant.wanted():
                    self._drop(grant)
                continue
            if renew_at <= now or grant.news:
                grant.news = False
                if not grant.wanted():
                    self._drop(grant)
                elif may_renew(grant, now):
                    due.append(grant)
            elif renew_at <= now + _SOON:
                soon.append(grant)
            elif renew_at < upcoming:
                upcoming = renew_at
        if due:
            return due + [grant for grant in soon if may_renew(grant, now)], upcoming
        return [], min(upcoming, min((grant.renew_at for grant in soon), default=FOREVER))

    def _drop(self, grant: Grant) -> None:
        """Whoever wanted it is gone without a word, or is just about to release it."""
        grant.dropped = True
        self.abandon(grant)

    def _end_what_is_over(self, grant: Grant, now: float) -> None:
        if now >= grant.until:
            self.lose(grant)
            return
        with self._mutex:
            over = [hold for hold in grant.holds if now >= hold.ends_at]
            grant.holds = [hold for hold in grant.holds if now < hold.ends_at]
            grant.ends_at = min((hold.ends_at for hold in grant.holds), default=FOREVER)
        if over and not grant.holds:
            grant.holds = over
            self.lose(grant)
            return
        for hold in over:
            hold.tell_lost()
        if over:
            self.settle(grant)

    async def _renew(self, due: list[Grant]) -> float:
        """Renew in one batch; an attempt takes at most a sixth of the shortest lease. Gives the next look's instant."""
        sent_at = self._now()
        asked = [(grant, grant.claim, grant.state is HELD) for grant in due]
        shortest = min(grant.request.lease for grant in due)
        try:
            standings = await self._open().renew(due, sent_at + shortest / 6)
        except StoreError as error:
            return self._renew_again(due, error, shortest)
        upcoming = FOREVER
        failed: dict[StoreUnavailable, list[Grant]] = {}
        for (grant, claim, was_held), standing in zip(asked, standings, strict=True):
            if isinstance(standing, StoreUnavailable):
                failed.setdefault(standing, []).append(grant)
            elif claim is grant.claim and claim is not None and claim.id in self.renewing:
                if was_held and standing is not None and is_displaced(standing):
                    self.lose(grant)
                else:
                    upcoming = min(upcoming, self._note(grant, standing, sent_at))
        for trouble, those in failed.items():
            upcoming = min(upcoming, self._renew_again(those, trouble, shortest))
        return upcoming

    def _renew_again(self, due: list[Grant], error: StoreError, shortest: float) -> float:
        self.heard(error)
        log().warning("renewal failed (claims: %d): %s", len(due), error)
        again = self._now() + min(shortest / 12, TICK)
        for grant in due:
            grant.renew_at = again
        return again

    def _note(self, grant: Grant, standing: Standing | None, sent_at: float) -> float:
        """What a renewal said of a grant that is still ours to keep; gives the instant of the next look at it."""
        assert grant.claim is not None
        state = grant.state
        if standing is None:
            if state is HELD:
                self.lose(grant, gone=True)
            else:
                grant.renew_at = FOREVER
                self._me.inbox.deliver(grant.claim.id, LOOK.value)
            return FOREVER
        if state is HELD and not may_renew(grant, self._now()):
            self.lose(grant)
            return FOREVER
        grant.answer(standing, sent_at)
        if state is WAITS and standing.holds:
            self._me.inbox.deliver(grant.claim.id, YOURS.value)
        return min(grant.renew_at, grant.until) if state is HELD else grant.renew_at

    async def _give_back_posted(self) -> None:
        for _ in range(len(self._posted)):
            item = self._posted.popleft()
            if isinstance(item, Grant):
                await self._settle(item)
            else:
                self._leaving.append(item)
        enough = self._now() + TICK
        for _ in range(len(self._leaving)):
            item, now = self._leaving.pop(0), self._now()
            if now < item.again_at:
                self._leaving.append(item)
                continue
            try:
                await self._open().give_back(item.claim, item.answered, now + _LEAVE_ATTEMPT)
            except StoreError as error:
                self.heard(error)
                if now < item.give_up_at and not isinstance(error, Replaced):
                    # Behind the others: of a store that is several servers only some may be silent.
                    is_silent = isinstance(error, StoreUnavailable)
                    self._leaving.append(item if is_silent else item._replace(again_at=now + _AFTER_A_NO))
                    if is_silent and self._now() >= enough:
                        return
            except BaseException:
                if now < item.give_up_at:  # behind the others, so that one bad item cannot keep them waiting
                    self._leaving.append(item)
                raise

    async def _settle(self, grant: Grant) -> None:
        weight = grant.heaviest()
        if grant.state is not HELD or grant.claim is None or weight >= grant.claim.weight:
            return
        try:
            await self._open().amend(grant, weight, self._now() + _LEAVE_ATTEMPT)
        except StoreError as error:
            self.heard(error)
            log().warning("a claim could not be made lighter, will be tried again: %s", error)

    def _open(self) -> KeeperPort:
        if self._port is None:
            self._port = self._open_port()
        return self._port


def may_renew(grant: Grant, now: float) -> bool:
    """Past its own deadline a held grant is lost, whatever the store would still say."""
    return grant.state is not HELD or now < grant.until


def is_displaced(standing: Standing) -> bool:
    """Of what was held when it was asked about: somebody stands before it, so that somebody holds. A store that lost
    what it acknowledged can say so."""
    return not standing.holds
