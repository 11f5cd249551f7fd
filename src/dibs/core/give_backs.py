"""The watchdog's third lane: it removes, in batches, claims that their callers could not remove.

A claim stays here until its leave is answered, or until it has expired everywhere. User threads only append and ring.
The backlog is bounded: beyond `MOST` claims, new acquires wait for room. So overload slows down new acquires, never
the holders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from dibs.core.deadline import FOREVER, attempt
from dibs.core.grantor import Grantor
from dibs.core.grants import HELD, Grant
from dibs.core.log import fields, log
from dibs.core.queue import Replaced
from dibs.core.rule import Claim
from dibs.core.runtime import Event, Runtime
from dibs.errors import Closed, StoreError, StoreUnavailable

BATCH = 500
"""Claims in one request of the watchdog, a renewal or a leave: a larger step would block other writers for too long."""
MOST = 2_000
"""The limit of the backlog. Abandoned claims still stand in the queues and delay the waiters behind them."""
_ATTEMPT = 0.5
_AFTER_SILENCE = 0.2
_AFTER_REFUSAL = 5.0
"""A store that refuses a request rarely accepts it soon after."""
_LONGEST_WAIT = 1.0


class _Leaving(NamedTuple):
    """A claim to remove from the store."""

    claim: Claim
    answered: bool
    give_up_at: float
    refused: bool = False


class GiveBacks:
    def __init__(
        self,
        runtime: Runtime,
        open_grantor: Callable[[], Grantor],
        heard: Callable[[StoreError | None], None],
        *,
        claims_expire: bool,
    ) -> None:
        """`claims_expire`: claims end by lease, so that retries for a claim end with its lease."""
        self._now = runtime.now
        self._open_grantor = open_grantor
        self._heard = heard
        self._claims_expire = claims_expire
        self._grantor: Grantor | None = None
        self._spare: Grantor | None = None
        """A connected grantor, for a client that closes."""
        self.is_closing = False
        """There are no more acquires."""
        self._posted: deque[_Leaving] = deque()
        self._unanswered: list[tuple[float, int, _Leaving]] = []
        """A heap, ordered by the instant of the next attempt."""
        self._silent = 0
        """The number of entries of `_unanswered` without a reply; the store refused the others."""
        self._numbers = count()
        self._too_heavy: deque[Grant] = deque()
        self._idle_events: deque[Event] = deque()
        self._room_events: deque[Event] = deque()
        self.is_full = False
        """New acquires wait for `room` first. A flag, because every acquire reads it."""
        self._is_told = False
        self._one_by_one = 0
        """The number of claims to remove in batches of one."""
        self._worker = runtime.worker(self.turn)

    def post(self, claim: Claim, answered: bool) -> None:
        over = max(claim.by, self._now() + claim.lease) if self._claims_expire else FOREVER
        self._posted.append(_Leaving(claim, answered, over))
        self.is_full = self.backlog() >= MOST
        self._worker.ring()

    def lighten_later(self, grant: Grant) -> None:
        """Lower the weight of the claim in the store to that of its remaining holds, in the background."""
        self._too_heavy.append(grant)
        self._worker.ring()

    def backlog(self) -> int:
        return len(self._posted) + len(self._unanswered)

    async def room(self, runtime: Runtime, until: float) -> None:
        """Wait while the backlog is full."""
        while (backlog := self.backlog()) >= MOST:
            if self._now() >= until:
                raise StoreUnavailable(
                    f"{backlog} abandoned claims could not be removed yet",
                    step="use a longer timeout, or fewer tasks",
                )
            event = runtime.event()
            self._room_events.append(event)
            self._worker.ring()
            await event.wait(min(until, self._now() + _LONGEST_WAIT))

    def when_idle(self, runtime: Runtime, spare: Grantor | None = None) -> Event:
        """For a client that closes: an event that is set once the store has accepted or refused every leave. Uses the
        connected `spare`, because there may be no time to connect."""
        event = runtime.event()
        self._spare = spare
        self._idle_events.append(event)
        self._worker.ring()
        return event

    def stop(self) -> None:
        self._worker.stop()
        if self._grantor is not None:
            self._grantor.close()

    async def turn(self) -> float | None:
        for _ in range(len(self._too_heavy)):
            await self._lighten(self._too_heavy.popleft())
        while batch := self._next_batch():
            grantor = self._open()
            try:
                until = self._now() + attempt(_ATTEMPT, grantor.round_trip())
                answers = await grantor.give_back([(item.claim, item.answered) for item in batch], until)
            except StoreError as error:
                answers = [error] * len(batch)
            except Closed:
                return None
            except BaseException:
                self._one_by_one = len(batch)  # the cause may be one of them
                self._retry(*batch, refused=False)
                raise
            self._note(batch, answers)
            if all(isinstance(error, StoreUnavailable) for error in answers):
                break  # retry later: this lane has other work
        if not self._posted and not self._silent:
            while self._idle_events:
                self._idle_events.popleft().set()
        if self._posted or self._too_heavy:
            return _AFTER_SILENCE
        return max(self._unanswered[0][0] - self._now(), 0.0) if self._unanswered else None

    def _next_batch(self) -> list[_Leaving]:
        """New claims first: in a store of several servers, only some of them may be down."""
        batch: list[_Leaving] = []
        size = 1 if self._one_by_one else BATCH
        self._one_by_one = max(self._one_by_one - 1, 0)
        while self._posted and len(batch) < size:
            batch.append(self._posted.popleft())
        now = self._now()
        while self._unanswered and self._unanswered[0][0] <= now and len(batch) < size:
            item = heappop(self._unanswered)[2]
            self._silent -= not item.refused
            if now < item.give_up_at:
                batch.append(item)
        return batch

    def _note(self, batch: list[_Leaving], answers: Sequence[StoreError | None]) -> None:
        if None in answers:
            self._heard(None)
        for item, error in zip(batch, answers, strict=True):
            if error is not None:
                self._heard(error)
                if not isinstance(error, Replaced):
                    self._retry(item, refused=not isinstance(error, StoreUnavailable))
        self._check_backlog()

    def _retry(self, *items: _Leaving, refused: bool) -> None:
        at = self._now() + (_AFTER_REFUSAL if refused else _AFTER_SILENCE)
        for item in items:
            self._silent += not refused
            heappush(self._unanswered, (at, next(self._numbers), item._replace(refused=refused)))

    def _check_backlog(self) -> None:
        backlog = self.backlog()
        self.is_full = backlog >= MOST
        if not self.is_full:
            while self._room_events:
                self._room_events.popleft().set()
        if self.is_full and not self._is_told and not self.is_closing:
            extra = fields("backlog_full", claims=backlog)
            log("watchdog").warning(
                "claims to remove: %d; new acquires wait until there are fewer", backlog, extra=extra
            )
            self._is_told = True
        elif self._is_told and backlog < MOST / 2:
            extra = fields("backlog_smaller", claims=backlog)
            log("watchdog").info("claims to remove: %d; new acquires no longer wait", backlog, extra=extra)
            self._is_told = False

    async def _lighten(self, grant: Grant) -> None:
        weight = grant.weight()
        if grant.state is not HELD or weight == grant.claim.weight:
            return
        grantor = self._open()
        try:
            await grantor.lighten(grant, weight, self._now() + attempt(_ATTEMPT, grantor.round_trip()))
        except BaseException as error:
            self._too_heavy.append(grant)
            if not isinstance(error, StoreError):
                raise
            self._heard(error)
            extra = fields("weight_not_lowered")
            log("watchdog").warning("lowering the weight of a claim failed, dibs tries again: %s", error, extra=extra)

    def _open(self) -> Grantor:
        if self._grantor is None:
            if self._spare is not None:
                return self._spare
            self._grantor = self._open_grantor()
        return self._grantor
