"""One claim as this process knows it (`Grant`), one acquire of it (`Hold`), and the way to the store (`Grantor`).

A grant is in one state at a time:

    ASKING -> WAITS -> HELD -> OVER (released) or LOST (no longer certain)

ASKING and WAITS may also end as OVER. Validity is never a flag: every question compares the clock with the deadline.
The watchdog's table alone decides which thread ends a grant: the one that takes it out of the table.

A hold exists before anything is sent, so that an exception always finds something to give back. Until the caller has
the hold, a weak reference ties it to the caller's frame (`lifeline`). If the frame dies without cleanup, as by an
interrupt within an interrupt, the reference is dead and the watchdog gives the claim back.

Both classes keep their defaults on the class: a free acquire sets only the attributes that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Protocol

from dibs.core.deadline import FOREVER, WAITING_LEASE, valid_until
from dibs.core.loss import EXPIRED, GIVEN_BACK, Loss, Trouble, too_old
from dibs.core.queue import FENCED_MUTEX
from dibs.core.rule import Claim, Standing
from dibs.core.runtime import Event, Runtime
from dibs.errors import LockLost, LossReason, StoreUnavailable, Unsupported


class Request:
    """The parameters of a claim that are the same for every acquire of a lock."""

    __slots__ = ("capacity", "ends_after", "fair", "form", "kind", "lease", "look_after", "name", "renew", "waiting")

    def __init__(
        self, name: str, kind: str, capacity: int, lease: float, renew: bool, fair: bool, ends_after: float = FOREVER,
        form: str | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.kind = kind
        self.capacity = capacity
        self.lease = lease
        self.renew = renew
        self.fair = fair
        self.waiting = min(WAITING_LEASE, lease)
        """The lease while it waits; a waiter is always renewed."""
        self.ends_after = ends_after
        """Seconds after which a hold ends by itself, although the claim is renewed."""
        self.form = form
        """How a FOREIGN store keeps it, as `Claim.kind`; None in any other store."""
        self.look_after = self.waiting / 3 if form is None else FOREVER
        """Seconds after which a waiter asks the store again at the latest, because the store forgets silent waiters."""


class State(Enum):
    ASKING = auto()
    WAITS = auto()
    HELD = auto()
    LOST = auto()
    OVER = auto()


ASKING, WAITS, HELD, LOST, OVER = State
"""Module constants, because looking up a member on its class is slow."""


NO_CLAIM = Claim(b"", "", "", 0, 0, 0.0, 0.0, 0.0, b"", "")
"""The claim of a grant that has not asked yet, or that will ask again with a new id. Nothing is known by its id."""


class Grant:
    """One claim as this process knows it. Several holds may share it."""

    key: tuple[str, object] | None = None
    """The name and owner whose holds share it; None: it is not shared."""
    claim = NO_CLAIM
    first: Standing | StoreUnavailable | None = None
    """The outcome of the free path, from which the general path goes on."""
    sent_at = 0.0
    """When the free path sent its join."""
    state = ASKING
    until = 0.0
    """The holder's own deadline."""
    renew_at = FOREVER
    in_flight: Claim | None = None
    """The claim whose renewal is under way. A grant that asks anew has another claim, which is due by itself."""
    watch_at = FOREVER
    """When the watchdog checks it next."""
    news = False
    """The store reported a change of it since the watchdog last checked."""
    answered = False
    """Every join of its claim was answered: none can still reach the store."""
    doubtful = False
    dropped = False
    """The watchdog found no hold that wants it: it was given back, not lost."""
    leaving = False
    """A release took it out of the watchdog's table, and its claim has not left yet. For cleanup after an interrupt."""
    ends_at = FOREVER
    """When the first of its holds ends by itself, at its `max_hold` or at `lasts_until`."""
    lasts_until = FOREVER
    """When every hold of it ends by itself, although it is renewed."""
    decided: Event | None = None
    """Set once the acquire has ended, for other threads of the same owner."""
    revoke_seen = False
    held_back: StoreUnavailable | None = None
    """The value of the latest `Standing`, while it waits."""
    trouble: Trouble | None = None
    """While it is held: renewals fail."""
    loss: Loss | None = None
    """Why it was lost."""

    def __init__(self, request: Request, *holds: Hold) -> None:
        self.request = request
        self.holds = list(holds)
        self.watchers: list[Event] = []
        """Set when a release is requested, and when the grant ends."""

    def ask_as(self, claim: Claim) -> None:
        """Start again with a new claim id, and reset the state of the earlier one."""
        self.claim, self.answered, self.until, self.renew_at = claim, False, 0.0, FOREVER
        self.doubtful = self.dropped = False
        self.first = None
        self.state = ASKING

    def doubt(self) -> None:
        """Note an unanswered join: its first copy can still arrive, even if a repetition is answered."""
        self.doubtful = True

    def answer(self, standing: Standing, sent_at: float) -> None:
        """Apply a reply. The deadline is the latest of all replies; it is never lowered."""
        self.answered = not self.doubtful
        self.held_back = standing.held_back
        until = valid_until(sent_at, standing.left)
        self.until = max(self.until, until)
        self.renew_at = sent_at + (standing.left / 3 if standing.holds else min(standing.next, self.request.look_after))
        if standing.revoked and not self.revoke_seen:
            self.revoke_seen = True
            self.tell_watchers()
            for hold in list(self.holds):
                hold.context.reporter.revoked(hold, self.request)

    def granted(self, now: float) -> None:
        """Mark it held. A grant by message has only the waiting lease left and is renewed early."""
        if not self.request.renew:
            self.renew_at = FOREVER
        elif self.renew_at > (early := now + (self.until - now) / 2):
            self.renew_at = early
        self.lasts_until = now + self.request.ends_after
        self.state = HELD

    def due(self) -> float:
        """When the watchdog must check it; FOREVER while its join is in flight."""
        if self.state is ASKING:
            return FOREVER
        if self.news:
            return 0.0
        renew_at = FOREVER if self.in_flight is self.claim else self.renew_at
        return min(renew_at, self.until, self.ends_at) if self.state is HELD else renew_at

    def valid(self, now: float) -> bool:
        return self.state is HELD and now < self.until

    def wanted(self) -> bool:
        """False: every hold of it was released, or its caller no longer exists."""
        for hold in self.holds:  # noqa: SIM110  (a generator is slower)
            if hold.wanted():
                return True
        return False

    def heaviest(self) -> int:
        return max((hold.weight for hold in self.holds if not hold.over), default=0)

    def weight(self) -> int:
        """The weight that its claim should have in the store."""
        if self.request.form is None:
            return self.heaviest()
        return sum(hold.weight for hold in self.holds if not hold.over)

    def taken_away(self, loss: Loss) -> LockLost:
        """The error of a release that came too late. The first reason stays."""
        self.loss = self.loss or loss
        return LockLost(self.loss.text, reason=self.loss.reason)

    def why_lost(self) -> Loss:
        return self.loss or GIVEN_BACK

    def tell_watchers(self) -> None:
        for event in list(self.watchers):
            event.set()

    @property
    def token(self) -> int:
        """0: the store gives no token for this kind of lock."""
        return self.claim.ticket or 0 if self.request.form in (None, FENCED_MUTEX) else 0


class Reports(Protocol):
    """The part of the reporter (reporter.py) that a hold needs."""

    def lost(self, hold: Hold, request: Request, loss: Loss) -> None: ...

    def revoked(self, hold: Hold, request: Request) -> None: ...


class HoldContext(Protocol):
    """The part of a client that a hold needs."""

    runtime: Runtime
    now: Callable[[], float]
    shown: str
    """The store's name in texts."""
    closed: bool

    @property
    def reporter(self) -> Reports: ...

    def expire(self, grant: Grant, now: float) -> None:
        """Declare a grant lost at its deadline."""

    def unshare(self, grant: Grant) -> None:
        """Stop sharing a grant that ends."""


class Frame:
    """Lives as long as the call that made it: a hold that its caller does not have yet is tied to one."""

    __slots__ = ("__weakref__",)


class Hold:
    """One acquire as this process knows it."""

    grant: Grant | None = None
    lifeline: Callable[[], object | None] | None = None
    """A weak reference to the frame or `with` block that needs it; None: the user has it."""
    began = 0.0
    ends_at = FOREVER
    notify: Sequence[Callable[[], object]] = ()
    """Callbacks of the user for a loss, called on another thread or in the event loop."""
    when_lost: Callable[[], None] | None = None
    """An internal callback for a loss, called at once."""
    also: Hold | None = None
    """A hold that this one depends on: the guard of its stripes."""
    over = False
    loss: Loss | None = None
    """Why it was lost, once the loss was noticed."""
    asked_at = 0.0
    """When the general path began; the free path has `Grant.sent_at`."""
    contended = False
    """The lock was busy, and the acquire waited."""
    is_guard = False
    """It is the guard of a stripe, which reports in its place."""
    reported = False
    """The observers know that it was acquired, so they are told of its end, too."""

    def __init__(
        self, context: HoldContext, name: str, weight: int, caller: object, owner: object, label: str,
        limit: float | None,
    ) -> None:  # fmt: skip
        self.context = context
        self.name = name
        self.weight = weight
        self.caller = caller
        self.owner = owner
        self.label = label
        """The name of the owner that others see."""
        self.limit = limit
        """The timeout of the acquire in seconds; None: it waits for ever."""
        self.deadline = FOREVER if limit is None else context.now() + limit

    @property
    def lost_seen(self) -> bool:
        return self.loss is not None

    def wanted(self) -> bool:
        return not self.over and (self.lifeline is None or self.lifeline() is not None)

    def still(self) -> Hold | None:
        """The `lifeline` of the guard that this hold depends on. It ends nothing: a mutex may be held here."""
        return self if self.wanted() and not self._is_past() else None

    def _is_past(self) -> bool:
        grant = self.grant
        if self.loss is not None or grant is None:
            return self.loss is not None
        if grant.state is HELD:
            return self.context.now() >= min(grant.until, self.ends_at)
        return grant.state is LOST or grant.state is OVER

    def is_lost(self) -> bool:
        """Compare the clock with the deadline. A loss is final; the thread that notices it first ends the grant."""
        if self.loss is not None or self.over or self.grant is None:
            return self.loss is not None
        grant, now = self.grant, self.context.now()
        if grant.state is HELD:
            if now < grant.until and now < self.ends_at and self.also is None:  # the common case
                return False
            if now >= grant.until:
                self.context.expire(grant, now)
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
        """The loss at `max_hold`, or at the end of an unrenewed lease where claims live by a session."""
        assert self.grant is not None
        return EXPIRED if self.grant.lasts_until <= self.ends_at else too_old(self.ends_at - self.began)

    def lost_reason(self) -> LossReason | None:
        return self.loss.reason if self.is_lost() and self.loss is not None else None

    def remaining(self) -> float:
        if self.over or self.grant is None or self.is_lost():
            return 0.0
        left = min(self.grant.until, self.ends_at) - self.context.now()
        return max(left if self.also is None else min(left, self.also.remaining()), 0.0)

    def tell_lost(self) -> None:
        """Called by the thread that ended the grant; runs each callback once."""
        if not self.over:
            if self.loss is None and self.grant is not None:
                self.loss = self._find_loss(self.grant, self.context.now())
            if self.when_lost is not None:
                self.when_lost()
            if self.grant is not None and self.grant.state is LOST:
                self.context.unshare(self.grant)
            callbacks, self.notify = self.notify, ()
            for callback in callbacks:
                self.context.runtime.call_back(callback)

    def report_loss(self) -> None:
        """Called once its claim is given back: a log handler may be slow."""
        if self.grant is not None and self.loss is not None and not self.over:
            self.context.reporter.lost(self, self.grant.request, self.loss)

    def lost_error(self) -> LockLost:
        reason, text = self.loss or GIVEN_BACK
        refuse = "; let the resource refuse tokens below the highest it has seen" if self.token else ""
        return LockLost(
            f"lost{self.token_note}: {text}", name=self.name, store=self.context.shown, reason=reason,
            step=f"stop the work that it protected{refuse}",
        )  # fmt: skip

    def check(self) -> None:
        if self.is_lost():
            raise self.lost_error()
        if self.over:
            raise LockLost("this hold was released", name=self.name, store=self.context.shown, step="acquire again")

    def describe(self) -> str:
        state = "lost" if self.is_lost() else "over" if self.over else f"{self.remaining():.1f} s left"
        token = f", token {self.token}" if self.token else ""
        return f'"{self.name}" on {self.context.shown}: {self.mode}{token}, {state}'

    @property
    def token(self) -> int:
        return 0 if self.grant is None else self.grant.token

    @property
    def token_note(self) -> str:
        """The token for texts, in brackets; empty if there is none."""
        return f" (token {self.token})" if self.token else ""

    def no_token(self) -> Unsupported:
        """The error of a caller that asks for the token of a lock without one."""
        return Unsupported(
            "this kind of lock has no fencing token in this layout", name=self.name, store=self.context.shown,
            step="make it with fenced=True, which Java knows as RFencedLock",
        )  # fmt: skip

    @property
    def mode(self) -> str:
        """Exclusive if it takes the whole capacity."""
        exclusive = self.grant is not None and self.weight >= self.grant.request.capacity
        return "exclusive" if exclusive else "shared"

    def acquired_at(self) -> datetime:
        return datetime.now(UTC) - timedelta(seconds=self.context.now() - self.began)

    async def wait_lost(self, until: float) -> bool:
        return await wait_for_any([self], Hold.is_lost, until)

    def revoke_requested(self) -> bool:
        return self.grant is not None and self.grant.revoke_seen

    async def wait_revoked(self, until: float) -> bool:
        return await wait_for_any([self], Hold.revoke_requested, until)


async def wait_for_any(holds: Sequence[Hold], condition: Callable[[Hold], bool], until: float) -> bool:
    """True as soon as the condition is true for one hold; False on a timeout, or once one of them has ended."""
    context = holds[0].context
    grants = [hold.grant for hold in holds if hold.grant is not None]
    while True:
        event = context.runtime.event()
        for grant in grants:
            grant.watchers.append(event)
        try:
            if any(condition(hold) for hold in holds):
                return True
            if context.now() >= until or any(hold.over or hold.is_lost() for hold in holds):
                return False
            await event.wait(min([until, *(grant.until for grant in grants), *(hold.ends_at for hold in holds)]))
        finally:
            for grant in grants:
                grant.watchers.remove(event)
