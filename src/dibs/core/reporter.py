"""Reports the events of one client to its observers, and the rare ones to the log.

An acquire and a release on the free path only test whether there are observers. An observer cannot disturb the client:
its exceptions are logged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dibs.core.grants import Grant, Hold, Request
from dibs.core.log import LogLimit, fields, lock_fields, log
from dibs.core.loss import Loss
from dibs.core.queue import ELECTION
from dibs.errors import StoreError, StoreUnavailable
from dibs.events import Event, Observer, What, ended_as_planned
from dibs.info import Participant, duration

LONG_WAIT = 15.0
"""A wait of this many seconds is logged at INFO."""
_LATE = 1 / 6
"""A renewal that is answered by this share of the lease after it was due is late."""
_MOST_LOSSES, _MOST_WARNINGS = 100, 3


class _Outage(NamedTuple):
    since: float
    is_logged: bool


class Reporter:
    observers: tuple[Observer, ...]

    def __init__(self, store: str, backend: str, now: Callable[[], float], own: Observer | None) -> None:
        self.observers = () if own is None else (own,)
        self._store = store
        self._backend = backend
        self._now = now
        self._registered: tuple[tuple[object, Observer], ...] = () if own is None else ((own, own),)
        self.silent: dict[str, _Outage] = {}
        """One entry while the store does not answer. Only atomic operations change it."""
        self._losses = LogLimit(now, _MOST_LOSSES)
        self._renewals = LogLimit(now, _MOST_WARNINGS)
        self._failures = LogLimit(now, _MOST_WARNINGS)
        self._outages = LogLimit(now, _MOST_WARNINGS)

    def add(self, observer: Observer, registration: object) -> None:
        """An observer with several registrations is told once, until the last of them is removed."""
        if not any(one is registration for one, _ in self._registered):
            self._registered = (*self._registered, (registration, observer))
            self._set_observers()

    def remove(self, registration: object) -> None:
        self._registered = tuple(one for one in self._registered if one[0] is not registration)
        self._set_observers()

    def _set_observers(self) -> None:
        self.observers = tuple({id(observer): observer for _, observer in self._registered}.values())

    def tell(self, event: Event) -> None:
        for observer in self.observers:
            try:
                observer(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  (it is logged; locks depend on the watchdog's threads)
                more = self._failures.more()
                if more is not None:
                    extra = fields("observer_failed")
                    log("observer").exception("an observer failed on %s%s", event.what, more, extra=extra)

    # Acquire.

    def waiting(self, hold: Hold, request: Request) -> None:
        """The acquire found the lock busy. It may find that out several times."""
        if not hold.contended and not hold.is_guard:
            hold.contended = True
            if self.observers:
                self.tell(self._event("waiting", hold, request, waited=self._waited(hold)))

    def waits_long(self, hold: Hold, request: Request) -> None:
        event = self._event("waiting", hold, request, waited=self._waited(hold))
        if event.waited < LONG_WAIT:  # a shorter timeout ended it
            return
        extra = {**lock_fields(event), "event_name": "waits_long", "waited": event.waited}
        log("lock").info('"%s" on %s: waits for %s', hold.name, self._store, duration(event.waited), extra=extra)

    def acquired(self, hold: Hold, request: Request) -> None:
        waited = self._waited(hold)
        if waited >= LONG_WAIT or request.kind == ELECTION:
            what = "leads" if request.kind == ELECTION else "acquired"
            extra = fields(what, lock=hold.name, store=self._store, token=hold.token, owner=hold.label, waited=waited)
            log("lock").info(
                '"%s" on %s: %s after %s%s',
                hold.name, self._store, what, duration(waited), hold.token_note, extra=extra,
            )  # fmt: skip
        self.answered()
        if self.observers:
            event = self._event("acquired", hold, request, waited=waited, contended=hold.contended)
            try:
                self.tell(event)
            finally:
                hold.reported = True  # only now: the end must not overtake it
            if hold.loss is not None:  # the watchdog noticed it meanwhile
                self._tell_loss(hold)

    def refused(self, hold: Hold, request: Request) -> None:
        """The lock was busy until the deadline."""
        self.answered()
        if self.observers:
            self._without_hold("timed_out" if hold.limit else "busy", hold, request, None)

    def abandoned(self, hold: Hold, request: Request, error: BaseException | None) -> None:
        """An exception ended an acquire, a `with` block or a release."""
        if _is_acquired(hold):
            self.ended(hold, request, "given_back")
        elif isinstance(error, Exception):  # CancelledError and KeyboardInterrupt are none
            self._without_hold("failed", hold, request, error)
        else:
            self._without_hold("cancelled", hold, request, None)

    def _without_hold(self, what: What, hold: Hold, request: Request, error: Exception | None) -> None:
        if _is_first(hold, "outcome", []):
            more = {"waited": self._waited(hold), "contended": hold.contended, "error": error}
            self.tell(self._event(what, hold, request, **more))

    # The end of a hold.

    def ended(self, hold: Hold, request: Request, what: What) -> None:
        if hold.reported and _is_first(hold, "end", []):
            self.tell(self._event(what, hold, request, held=self._held(hold)))

    def given_back(self, grant: Grant) -> None:
        """The watchdog found no caller that wants it any more."""
        if self.observers:
            for hold in list(grant.holds):
                if _is_acquired(hold):
                    self.ended(hold, grant.request, "given_back")
                elif not hold.over and not hold.is_guard:  # its caller ended without a report
                    self._without_hold("cancelled", hold, grant.request, None)

    def lost(self, hold: Hold, request: Request, loss: Loss) -> None:
        if hold.is_guard:
            return
        event = self._event("lost", hold, request, held=self._held(hold), reason=loss.reason, text=loss.text)
        if not _is_first(hold, "end", [event]):
            return
        extra = {**lock_fields(event), "reason": loss.reason, "held": event.held}
        if ended_as_planned(event):
            log("lock").debug('"%s" on %s: ended by its lease%s', hold.name, self._store, hold.token_note, extra=extra)
        elif loss.reason != "closed" and (more := self._losses.more()) is not None:
            log("lock").error(
                '"%s" on %s: lost%s: %s%s', hold.name, self._store, hold.token_note, loss.text, more, extra=extra
            )
        if hold.reported:
            self._tell_loss(hold)

    def _tell_loss(self, hold: Hold) -> None:
        """The thread that acquired and the one that noticed the loss may both come here; one of them tells it."""
        told: list[Event] = vars(hold).get("end", [])
        try:
            event = told.pop()
        except IndexError:
            return
        self.tell(event)

    # The watchdog.

    def renewed(self, grant: Grant, sent_at: float, now: float) -> None:
        """Called before the reply is applied to the grant."""
        is_late = now - grant.renew_at > grant.request.lease * _LATE
        if is_late or self.observers:
            self._renewal("renewal_late" if is_late else "renewed", grant, now, sent_at)

    def renewals_failed(self, grants: list[Grant], sent_at: float, error: StoreError) -> None:
        more = self._renewals.more()
        if more is not None:
            log("watchdog").warning(
                "renewal failed (claims: %d): %s%s", len(grants), error, more,
                extra=fields("renewal_failed", claims=len(grants), store=self._store),
            )  # fmt: skip
        if self.observers:
            now = self._now()
            for grant in grants:
                self._renewal("renewal_late", grant, now, sent_at, error)

    def _renewal(self, what: What, grant: Grant, now: float, sent_at: float, error: StoreError | None = None) -> None:
        left = max(grant.until - now, 0.0)
        for hold in [one for one in grant.holds if not one.is_guard and one.loss is None]:
            event = self._event(what, hold, grant.request, latency=now - sent_at, left=left, error=error)
            if what == "renewal_late" and error is None and (more := self._renewals.more()) is not None:
                log("watchdog").warning(
                    '"%s" on %s: renewed late, with %s of a lease of %s left%s',
                    hold.name, self._store, duration(left), duration(event.lease), more,
                    extra={**lock_fields(event), "left": left, "latency": event.latency},
                )  # fmt: skip
            if hold.reported:
                self.tell(event)

    def revoked(self, hold: Hold, request: Request) -> None:
        if hold.is_guard:
            return
        event = self._event("revoked", hold, request)
        log("lock").info(
            '"%s" on %s: another client asks for its release%s', hold.name, self._store, hold.token_note,
            extra=lock_fields(event),
        )  # fmt: skip
        if hold.reported:
            self.tell(event)

    # The store, and other clients.

    def unreachable(self, error: StoreUnavailable) -> None:
        if self.silent:
            return
        more = self._outages.more()
        outage = _Outage(self._now(), more is not None)
        if self.silent.setdefault("now", outage) is outage:
            if more is not None:
                extra = fields("store_unreachable", store=self._store)
                log("store").warning("%s does not answer: %s%s", self._store, error, more, extra=extra)
            self.tell(Event(what="store_unreachable", store=self._store, backend=self._backend, error=error))

    def answered(self) -> None:
        """The store answered a request of a caller or of the watchdog."""
        if self.silent and (outage := self.silent.pop("now", None)) is not None:
            silent = self._now() - outage.since
            if outage.is_logged:
                extra = fields("store_back", store=self._store, waited=silent)
                log("store").info("%s answers again, after %s", self._store, duration(silent), extra=extra)
            self.tell(Event(what="store_back", store=self._store, backend=self._backend, waited=silent))

    def broken(self, name: str, token: int, named: str) -> None:
        """`named`: the holder in words, such as `token 17`."""
        extra = fields("broken", lock=name, store=self._store, token=token)
        log("lock").info('"%s" on %s: this client removed the holder with %s', name, self._store, named, extra=extra)
        self.tell(Event(what="broken", name=name, store=self._store, backend=self._backend, token=token))

    def leader_changed(self, name: str, leader: Participant | None) -> None:
        who, token = ("", 0) if leader is None else (leader.label, leader.token)
        extra = fields("leader_changed", lock=name, store=self._store, token=token, leader=who)
        log("lock").info('"%s" on %s: the leader is %s', name, self._store, who or "nobody", extra=extra)
        self.tell(
            Event(
                what="leader_changed", name=name, kind=ELECTION, mode="exclusive", store=self._store,
                backend=self._backend, token=token, leader=who,
            )
        )  # fmt: skip

    def enclosed(self, what: What, name: str, owner: str, waited: float, **more: Any) -> None:
        """An acquire inside a transaction of the caller."""
        if self.observers:
            self.tell(
                Event(
                    what=what, name=name, kind="mutex", mode="transaction", owner=owner, store=self._store,
                    backend=self._backend, waited=waited, **more,
                )
            )  # fmt: skip

    def _event(self, what: What, hold: Hold, request: Request, **more: Any) -> Event:
        return Event(
            what=what, name=hold.name, kind=request.kind, owner=hold.label, store=self._store, backend=self._backend,
            mode="exclusive" if hold.weight >= request.capacity else "shared",
            token=hold.token if _is_acquired(hold) else 0,  # before, it is the place in the queue
            hold=id(hold), weight=hold.weight, capacity=request.capacity, lease=request.lease, **more,
        )  # fmt: skip

    def _waited(self, hold: Hold) -> float:
        asked_at = hold.asked_at or (hold.grant.sent_at if hold.grant is not None else 0.0)
        return max((hold.began or self._now()) - asked_at, 0.0) if asked_at else 0.0

    def _held(self, hold: Hold) -> float:
        return max(self._now() - hold.began, 0.0) if hold.began else 0.0


def _is_acquired(hold: Hold) -> bool:
    return hold.when_lost is not None  # its lock remembers it


def _is_first(hold: Hold, key: str, mark: list[Event]) -> bool:
    """Several threads may notice the end of an acquire or a hold; one reports it. `setdefault` is atomic."""
    return vars(hold).setdefault(key, mark) is mark
