"""The one waiting loop, over seam 2.

Every request ends done, not done or unknown. An unknown join is asked again with the same id until `by`; after that
the old id is given back and a new one asks, at the end of the line. A waiter does not look by itself: the watchdog
renews all claims of the client in one batch, which is their look, and hands over what it learns; a signal from the
store comes sooner. A signal extends nothing: the hold is returned at once if at least half a waiting lease is left,
else after a renewal that confirms it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dibs.core.deadline import FIRST_PAUSE, FOREVER, LEAST_PATIENCE, LEAVE_PATIENCE, LONGEST_PAUSE, attempt, rest
from dibs.core.grant import WAITS, Grant
from dibs.core.holds import warn_if_nested
from dibs.core.line import LINE, NOWHERE, OUTSIDE, YOURS, Leave, Line, Me, Place, Replaced
from dibs.core.loss import BROKEN, GIVEN_BACK, REPLACED
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Runtime
from dibs.core.watchdog import Watchdog
from dibs.errors import LockLost, StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

_BARGE_PAUSE = 0.005
"""Woken outsiders spread out over this long before they try."""
_GLANCE = 15.0
"""How often a waiter that heard nothing makes sure that the watchdog lives."""


class Home(Protocol):
    """The client, as far as waiting depends on it."""

    closed: bool

    def check_open(self) -> None: ...


class LineGrantor:
    """Seam 1 over seam 2; see core/grant.py."""

    def __init__(self, line: Line, runtime: Runtime, me: Me, watchdog: Watchdog, retry: float, home: Home) -> None:
        self._line = line
        self._runtime = runtime
        self._now = runtime.now
        self._me = me
        self._watchdog = watchdog
        self._give_backs = watchdog.give_backs
        self._retry = retry
        self._home = home

    async def acquire(  # noqa: C901, PLR0912, PLR0915  (the one waiting loop, in one piece)
        self, grant: Grant, weight: int, about: str, deadline: float
    ) -> bool:
        if self._give_backs.is_full:
            await self._give_backs.room(self._runtime, self._patience(deadline, self._now()))
        sent_at = self._now()
        place = NOWHERE if deadline <= sent_at else LINE if grant.request.fair else OUTSIDE
        give_up, pause = self._patience(deadline, sent_at), FIRST_PAUSE
        try:
            while True:
                claim = grant.claim
                if claim is None or sent_at > claim.by:
                    claim = self._fresh_claim(grant, weight, about, sent_at)
                elif claim.asked:
                    self._home.check_open()
                    grant.answered = False  # until this one is: an interrupt may leave it on its way
                try:
                    standing = await self._line.join(claim, place, give_up)
                    if standing is not None and standing.holds:
                        grant.answer(standing, sent_at)
                        if not self._enough_left(grant):  # the store was slow: it counts once a renewal confirms it
                            standing = await self._confirm(grant, self._now() + self._least())
                except StoreUnavailable as error:
                    self._watchdog.heard(error)
                    grant.doubt()
                    left = give_up - self._now()
                    if place is NOWHERE or pause >= left:
                        raise
                    await self._runtime.sleep(rest(pause, self._runtime.jitter(pause), left))
                    sent_at, pause = self._now(), min(pause * 2, LONGEST_PAUSE)
                    self._home.check_open()
                    continue
                if self._home.closed:
                    self._home.check_open()
                if standing is not None and standing.holds:
                    grant.granted(self._now())
                    self._watchdog.schedule(grant)
                    return True
                if await self._after_no(grant, place, standing, sent_at, deadline):
                    return True
                if place is NOWHERE and standing is not None:
                    self._watchdog.take(grant)
                    return False
                if (sent_at := self._now()) >= deadline:
                    await self._withdraw(grant)
                    if standing is None:
                        raise StoreUnavailable("the store answered too late to count")
                    if held_back := standing.held_back if place is OUTSIDE else grant.held_back:
                        raise held_back
                    return False
                give_up, pause = self._patience(deadline, sent_at), FIRST_PAUSE
        except StoreError:
            if grant.claim is not None and not grant.claim.asked:
                self._watchdog.take(grant)  # it never reached the store: there is nothing to give back
            self._watchdog.abandon(grant)
            raise
        except BaseException:
            self._watchdog.abandon(grant)
            raise

    def _patience(self, deadline: float, now: float) -> float:
        """Until when a silent store is asked again: even a try grants it a moment to answer."""
        if deadline == FOREVER:
            return now + self._retry
        return max(now + self._least(), deadline)

    def _least(self) -> float:
        """Seconds that the store is given to answer, however little time the caller has."""
        return attempt(LEAST_PATIENCE, self._line.round_trip())

    async def _after_no(
        self, grant: Grant, place: Place, standing: Standing | None, sent_at: float, deadline: float
    ) -> bool:
        """Not at once. True: held after all; False: not in time, or another id must ask."""
        if standing is None:
            self._retire(grant)
            return False
        grant.answered = not grant.doubtful
        if place is OUTSIDE:
            await self._wait_outside(grant, deadline)
        elif place is LINE:
            grant.answer(standing, sent_at)
            if await self._wait_in_line(grant, deadline):
                return True
            if self._now() < deadline:
                self._retire(grant)
        return False

    async def release(self, grant: Grant, until: float) -> None:
        """The hold is invalid and no longer renewed first; only then does the claim leave."""
        claim = grant.claim
        assert claim is not None
        try:
            ours = self._watchdog.take(grant)
            if not ours and not grant.dropped:
                raise grant.taken_away(GIVEN_BACK)
            if not await self._line.leave(claim, grant.answered, until) and ours:
                raise grant.taken_away(BROKEN)
        except LockLost:
            raise
        except Replaced as error:
            self._watchdog.heard(error)
            raise grant.taken_away(REPLACED) from None
        except BaseException as error:
            self._watchdog.give_back(claim, grant.answered)
            if isinstance(error, StoreError):
                self._watchdog.heard(error)
            raise

    async def amend(self, grant: Grant, weight: int, until: float) -> None:
        try:
            await self.lighten(grant, weight, until)
        except BaseException:
            self._watchdog.settle(grant)
            raise

    async def lighten(self, grant: Grant, weight: int, until: float) -> None:
        claim = self._claim(grant)
        await self._line.amend(claim, weight, until)
        claim.weight = min(claim.weight, weight)

    async def connect(self, until: float) -> None:
        await self._line.connect(until)

    def round_trip(self) -> float:
        return self._line.round_trip()

    async def renew(self, grants: list[Grant], until: float) -> Sequence[Standing | StoreUnavailable | None]:
        return await self._line.renew([self._claim(grant) for grant in grants], until)

    async def give_back(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        return await self._line.leave_all(leaving, until)

    async def line(self, name: str, until: float) -> LockInfo:
        return await self._line.line(name, until)

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]:
        return await self._line.lines(prefix, after, until)

    async def revoke(self, name: str, token: int, until: float) -> bool:
        return await self._line.revoke(name, token, until)

    async def evict(self, name: str, token: int, until: float) -> bool:
        return await self._line.evict(name, token, until)

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None:
        await self._line.await_change(name, seen, key, until)

    async def identity(self, until: float) -> str:
        return await self._line.identity(until)

    async def doctor(self, until: float) -> list[Finding]:
        return await self._line.doctor(until)

    def close(self) -> None:
        self._line.close()

    async def _wait_in_line(self, grant: Grant, deadline: float) -> bool:
        """True: held. False: the time is over, or the claim was evicted and a new one must ask."""
        claim = self._claim(grant)
        grant.state = WAITS
        self._watchdog.schedule(grant)
        is_told = False
        while (now := self._now()) < deadline:
            signal = await self._line.watch(claim, min(deadline, now + _GLANCE))
            self._home.check_open()
            if signal is None:
                self._watchdog.schedule(grant)
                if not is_told:
                    is_told = True
                    warn_if_nested(grant)
                continue
            if not (signal is YOURS and self._may_count_on(grant)):
                try:
                    standing = await self._confirm(grant, max(self._now() + self._least(), grant.until))
                except StoreUnavailable as error:
                    self._watchdog.heard(error)
                    if self._now() >= deadline:
                        raise
                    return False  # its place is not certain any more: another id asks, as patiently as the first
                if standing is None:
                    return False
                if not standing.holds:
                    continue
            grant.granted(self._now())
            self._watchdog.schedule(grant)
            return True
        return False

    def _may_count_on(self, grant: Grant) -> bool:
        """A message grants only while our own claim surely stands; `renew=False` counts its lease from a renewal.
        After an unanswered join it may be about an earlier stand of the same id, which somebody broke."""
        return grant.request.renew and not grant.doubtful and self._enough_left(grant)

    def _enough_left(self, grant: Grant) -> bool:
        return grant.until - self._now() >= grant.request.waiting / 2

    async def _confirm(self, grant: Grant, until: float) -> Standing | None:
        """A look whose answer is not over when it arrives; one that is says nothing about now."""
        while True:
            standing = await self._look(grant, until)
            if standing is None or not standing.holds or self._now() < grant.until:
                return standing
            until = self._now() + self._least()

    async def _look(self, grant: Grant, until: float) -> Standing | None:
        """A renewal of one's own, which is a look. None: the claim is gone."""
        sent_at = self._now()
        (standing,) = await self._line.renew([self._claim(grant)], until)
        if isinstance(standing, StoreUnavailable):
            raise standing
        if standing is not None:
            grant.answer(standing, sent_at)
            self._watchdog.schedule(grant)
        return standing

    async def _wait_outside(self, grant: Grant, deadline: float) -> None:
        look_at = self._now() + grant.request.waiting / 3
        if await self._line.watch(self._claim(grant), min(deadline, look_at)) is not None:
            await self._runtime.sleep(min(self._runtime.jitter(_BARGE_PAUSE), max(deadline - self._now(), 0.0)))

    async def _withdraw(self, grant: Grant) -> None:
        """The time is over: leave now, so that nobody waits behind a claim that nobody wants."""
        claim = grant.claim
        try:
            if self._watchdog.take(grant) and claim is not None:
                until = self._now() + attempt(LEAVE_PATIENCE, self._line.round_trip())
                await self._line.leave(claim, grant.answered, until)
        except StoreUnavailable as error:
            self._watchdog.heard(error)
            self._watchdog.give_back(self._claim(grant), grant.answered)
        except BaseException:
            if claim is not None:
                self._watchdog.give_back(claim, grant.answered)
            raise

    def _fresh_claim(self, grant: Grant, weight: int, about: str, now: float) -> Claim:
        """From before its join is sent the claim is the watchdog's business."""
        if grant.claim is not None:
            self._retire(grant)
        request = grant.request
        claim = Claim(
            self._runtime.fresh_id(), request.name, request.kind, request.capacity, weight,
            request.lease, request.waiting, now + request.waiting, self._me.id, about,
        )  # fmt: skip
        grant.ask_as(claim)
        self._me.inbox.expect(claim.id)
        self._watchdog.adopt(grant)
        if self._home.closed:  # after adopting: close() either sees the claim there, or is seen here
            self._home.check_open()
        return claim

    def _retire(self, grant: Grant) -> None:
        """An id that may still stand, or come to stand, somewhere is given back; another one will ask."""
        if self._watchdog.take(grant):
            claim, grant.claim = self._claim(grant), None
            if claim.asked:
                self._watchdog.give_back(claim, grant.answered)

    @staticmethod
    def _claim(grant: Grant) -> Claim:
        assert grant.claim is not None  # every path here comes after _fresh_claim
        return grant.claim
