"""Seam 1: what kinds and holds know of a store, and one claim as this process knows it.

A `Grantor` waits in line (waiting.py), holds by a connection, or asks a quorum; kinds cannot tell. A `Grant` is in one
state at a time:

    ASKING -> WAITS -> HELD -> OVER (given back) or LOST (no longer certain)

and ASKING or WAITS may end as OVER. Whether a held grant is still valid is never a flag: it is computed from the clock
at each question. Only the watchdog's table decides who ends a grant: whoever takes it out of there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from dibs.core.deadline import FOREVER, WAITING_LEASE, valid_until
from dibs.core.line import Leave
from dibs.core.loss import GIVEN_BACK, Loss, Trouble
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Event
from dibs.errors import LockLost, StoreError, StoreUnavailable
from dibs.info import Finding, LockInfo

if TYPE_CHECKING:
    from dibs.core.holds import Hold


class Request:
    """What is wanted, the same for every attempt at it."""

    __slots__ = ("capacity", "ends_after", "fair", "kind", "lease", "name", "renew", "waiting")

    def __init__(
        self, name: str, kind: str, capacity: int, lease: float, renew: bool, fair: bool, ends_after: float = FOREVER
    ) -> None:
        self.name = name
        self.kind = kind
        self.capacity = capacity
        self.lease = lease
        self.renew = renew
        self.fair = fair
        self.waiting = min(WAITING_LEASE, lease)
        """What the claim is kept at while it waits, whatever `renew` says."""
        self.ends_after = ends_after
        """How long after it was granted it ends by itself, though it is renewed."""


class State(Enum):
    ASKING = auto()
    WAITS = auto()
    HELD = auto()
    LOST = auto()
    OVER = auto()


ASKING, WAITS, HELD, LOST, OVER = State
"""As module constants: looking a member up on its class costs more than all else that is done with it."""


class Grant:
    """One claim as this process knows it. n holds may share it; it weighs what the heaviest of them weighs."""

    __slots__ = (
        "answered", "claim", "decided", "doubtful", "dropped", "ends_at", "held_back", "holds", "in_flight", "key",
        "lasts_until", "loss", "news", "renew_at", "request", "revoke_seen", "state", "trouble", "until", "watch_at",
        "watchers",
    )  # fmt: skip

    def __init__(self, request: Request, key: tuple[str, object] | None = None) -> None:
        self.request = request
        self.key = key
        """Name and owner that may share it; None: nobody else may."""
        self.claim: Claim | None = None
        self.state = ASKING
        self.until = 0.0
        """The holder's own deadline."""
        self.renew_at = FOREVER
        self.in_flight: Claim | None = None
        """The claim whose renewal is under way. A grant that asks anew has another one, which is due by itself."""
        self.watch_at = FOREVER
        """When the watchdog looks at it next."""
        self.news = False
        """Something happened to it in the store since the watchdog last looked."""
        self.answered = False
        """Every join of its claim was: none can still be on its way to the store."""
        self.doubtful = False
        self.dropped = False
        """Nobody wanted it any more when the watchdog looked: it is given back, and was not lost."""
        self.holds: list[Hold] = []
        self.ends_at = FOREVER
        """When the first of its holds ends by itself, at its `max_hold` or at `lasts_until`."""
        self.lasts_until = FOREVER
        """When every hold of it ends by itself, whatever is renewed."""
        self.decided: Event | None = None
        """Set once asking is over, for others of the same owner."""
        self.watchers: list[Event] = []
        """Set when its release is requested, and when it ends."""
        self.revoke_seen = False
        self.held_back: StoreUnavailable | None = None
        """While it waits: as in its latest `Standing`."""
        self.trouble: Trouble | None = None
        """While held: renewals fail."""
        self.loss: Loss | None = None
        """Why it was lost."""

    def ask_as(self, claim: Claim) -> None:
        """A new id asks: what was known of an earlier one counts for nothing."""
        self.claim, self.answered, self.until, self.renew_at = claim, False, 0.0, FOREVER
        self.doubtful = self.dropped = False
        self.state = ASKING

    def doubt(self) -> None:
        """A join was not answered: though a repetition may be, the first copy can still arrive."""
        self.doubtful = True

    def answer(self, standing: Standing, sent_at: float) -> None:
        """The latest answer's maximum counts, and nothing counts for more."""
        self.answered = not self.doubtful
        self.held_back = standing.held_back
        until = valid_until(sent_at, standing.left)
        self.until = max(self.until, until)
        self.renew_at = sent_at + (
            standing.left / 3 if standing.holds else min(standing.next, self.request.waiting / 3)
        )
        if standing.revoked and not self.revoke_seen:
            self.revoke_seen = True
            self.tell_watchers()

    def granted(self, now: float) -> None:
        """From now on it is held; what a message granted runs on the waiting lease and is renewed early."""
        if not self.request.renew:
            self.renew_at = FOREVER
        elif self.renew_at > (early := now + (self.until - now) / 2):
            self.renew_at = early
        self.lasts_until = now + self.request.ends_after
        self.state = HELD

    def due(self) -> float:
        """When the watchdog must look at it; one that is still being asked for is not due by itself."""
        if self.state is ASKING:
            return FOREVER
        if self.news:
            return 0.0
        renew_at = FOREVER if self.in_flight is self.claim else self.renew_at
        return min(renew_at, self.until, self.ends_at) if self.state is HELD else renew_at

    def valid(self, now: float) -> bool:
        return self.state is HELD and now < self.until

    def wanted(self) -> bool:
        """False: every hold of it was released, or forgotten by a caller that no longer exists."""
        for hold in self.holds:  # noqa: SIM110  (a generator costs more than the answer)
            if hold.wanted():
                return True
        return False

    def heaviest(self) -> int:
        return max((hold.weight for hold in self.holds if not hold.over), default=0)

    def taken_away(self, loss: Loss) -> LockLost:
        """It was lost before its release reached the store; the reason that was found first stays."""
        self.loss = self.loss or loss
        return LockLost(self.loss.text, reason=self.loss.reason)

    def why_lost(self) -> Loss:
        return self.loss or GIVEN_BACK

    def tell_watchers(self) -> None:
        for event in list(self.watchers):
            event.set()

    @property
    def token(self) -> int:
        return 0 if self.claim is None or self.claim.ticket is None else self.claim.ticket


class Grantor(Protocol):
    """For callers; each call ends at `until`, at the latest, with StoreUnavailable."""

    async def acquire(self, grant: Grant, weight: int, about: str, deadline: float) -> bool:
        """Wait until the grant is held. False: busy until the deadline."""

    async def release(self, grant: Grant, until: float) -> None: ...

    async def amend(self, grant: Grant, weight: int, until: float) -> None: ...

    async def line(self, name: str, until: float) -> LockInfo: ...

    async def lines(self, prefix: str, after: str, until: float) -> list[LockInfo]: ...

    async def revoke(self, name: str, token: int, until: float) -> bool: ...

    async def evict(self, name: str, token: int, until: float) -> bool: ...

    async def await_change(self, name: str, seen: int, key: bytes, until: float) -> None: ...

    async def identity(self, until: float) -> str: ...

    async def doctor(self, until: float) -> list[Finding]: ...

    def close(self) -> None: ...


class WatchdogPort(Protocol):
    """For a lane of the watchdog, on a connection of its own, blocking."""

    async def connect(self, until: float) -> None:
        """Have a connection ready."""

    async def renew(self, grants: list[Grant], until: float) -> Sequence[Standing | StoreUnavailable | None]: ...

    async def give_back(self, leaving: Sequence[Leave], until: float) -> Sequence[StoreError | None]:
        """Each claim with whether its joins were answered; an error: that one is to be given back again."""

    async def lighten(self, grant: Grant, weight: int, until: float) -> None: ...

    def round_trip(self) -> float:
        """Seconds that an answer may take."""

    def close(self) -> None: ...
