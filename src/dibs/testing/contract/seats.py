"""Tests of the Queue interface: a `Seat` calls the operations of a store one by one, without the waiting loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import dibs
from dibs.core.queue import (
    ATOMIC_TRY,
    EXPIRING_SEMAPHORE,
    FAIR,
    FAIR_MUTEX,
    FENCED_MUTEX,
    FOREIGN,
    LOOK,
    QUEUE,
    TRY,
    UNFAIR,
    YOURS,
    ClientIdentity,
    NamesHolders,
    Place,
    Signal,
)
from dibs.core.rule import Claim, Standing
from dibs.runtime.threads import step
from dibs.testing.contract import clocks
from dibs.testing.contract.clocks import PATIENCE
from dibs.testing.contract.stores import Subject

_LEASE = 30.0
"""Seconds; the lease of a claim and of a session."""
FORMS = {
    "plain": {},
    "fenced": {"mutex": FENCED_MUTEX, "semaphore": EXPIRING_SEMAPHORE},
    "fair": {"mutex": FAIR_MUTEX},
}
"""How a FOREIGN store keeps the kinds of locks. Each test of a queue runs once with each form."""


def until(condition: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Poll `condition` until its result is true; return that result."""
    pace = clocks.current().pace(within)
    while not (seen := condition()):
        assert not pace.is_over(), "it did not come true"
        pace.step_here()
    return seen


def meanwhile(work: Callable[[], object]) -> None:
    """Run work that may wait in a thread of its own, and let time pass until it is done."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: not thread.is_alive())
    if failed:
        raise failed[0]


class Seat:
    """A client of a store that calls the operations of the Queue interface directly."""

    def __init__(self, url: str, form: str = "", shown: dict[str, Claim] | None = None) -> None:
        """`shown`: the claims by the owner that `inspect` shows, where a FOREIGN store has no tickets."""
        self.clock = clocks.current()
        self.runtime = self.clock.runtime()
        self.now = self.runtime.now
        self.me = ClientIdentity(self.runtime.fresh_id(), self.runtime.inbox(), _LEASE, lambda _: None)
        self._client = dibs.connect(url)
        self.store = self._client._core.store
        self.usual = QUEUE if FAIR in self.store.capabilities or form == "fair" else UNFAIR
        self.brief = 0.8 if url.startswith("sqlite:") else 3.0
        """A lease, in seconds, that expires during the test, but not before its next step on a stalled machine. Without
        a server a test that depends on it runs alone."""
        self.form = form
        """One of FORMS; empty in a store that is not FOREIGN. The ticket of a fair lock is no token: it may change."""
        self._kinds = FORMS.get(form, {})
        self._shown = {} if shown is None else shown
        self._is_foreign = FOREIGN in self.store.capabilities
        self.queue = self.store.open(self.runtime, self.me)
        self.other_queue = self.store.open(self.runtime, self.me)

    def claim(
        self,
        name: str = "a",
        *,
        weight: int = 1,
        capacity: int = 1,
        kind: str = "mutex",
        lease: float = _LEASE,
        waiting: float | None = None,
        by: float = 60.0,
    ) -> Claim:
        waiting = lease if waiting is None else waiting
        claim = Claim(
            self.runtime.fresh_id(), name, self._kinds.get(kind, kind), capacity, weight, lease, waiting,
            self.now() + by, self.me.id, "{}",
        )  # fmt: skip
        self.me.inbox.expect(claim.id)
        return claim

    @property
    def soon(self) -> float:
        return self.now() + 60.0

    def join(self, claim: Claim, place: Place | None = None) -> Standing | None:
        standing = step(self.queue.join(claim, place or self.usual, self.soon))
        if self._is_foreign and standing is not None:
            self._learn(claim)
        return standing

    def _learn(self, claim: Claim) -> None:
        """Only this claim is new among those that `inspect` shows."""
        info = step(self.queue.inspect(claim.name, self.soon))
        for participant in (*info.holders, *info.waiters):
            self._shown.setdefault(participant.owner, claim)

    def joined(self, place: Place | None = None, **options: Any) -> tuple[Claim, Standing]:
        claim = self.claim(**options)
        standing = self.join(claim, place)
        assert standing is not None
        return claim, standing

    def renew(self, *claims: Claim) -> list[Standing | None]:
        standings = step(self.queue.renew(claims, self.soon))
        return [_answered(standing) for standing in standings]

    def look(self, claim: Claim) -> Standing | None:
        return self.renew(claim)[0]

    def leave(self, claim: Claim, *, answered: bool = True) -> bool:
        return step(self.queue.leave(claim, answered, self.soon))

    def leave_all(self, *claims: Claim, answered: bool = True) -> None:
        errors = step(self.queue.leave_all([(claim, answered) for claim in claims], self.soon))
        assert list(errors) == [None] * len(claims)

    def amend(self, claim: Claim, weight: int) -> None:
        step(self.queue.amend(claim, weight, self.soon))
        if self._is_foreign:
            self._learn(claim)  # a writer that becomes a reader has another id

    def told(self, claim: Claim) -> Signal | None:
        """The signal that came for this claim since the last call; None: none came."""
        return step(self.queue.watch(claim, self.now() + self.clock.silence))

    def hears(self, claim: Claim) -> Signal | None:
        """The signal for this claim; waits for it, as one is expected."""
        return step(self.queue.watch(claim, self.now() + self.clock.earshot))

    def granted(self, claim: Claim) -> bool:
        """Whether a signal says that the claim holds. A FOREIGN store tells the waiter to try; then it must hold."""
        signal = self.hears(claim)
        return signal is YOURS or (signal is TRY and self._is_foreign and self._holds(claim))

    def freed(self, claim: Claim) -> bool:
        """The same. Stores without ATOMIC_TRY may signal LOOK, too; then it must hold."""
        signal = self.hears(claim)
        if signal is TRY and self._is_foreign:
            return self._holds(claim)
        return signal is YOURS or (signal is LOOK and self._is_to_look() and self._holds(claim))

    def passed_over(self, claim: Claim) -> bool:
        """Whether no signal came. Stores without ATOMIC_TRY may signal LOOK; then the claim must not hold."""
        signal = self.told(claim)
        return signal is None or (signal is LOOK and self._is_to_look() and not self._holds(claim))

    def _is_to_look(self) -> bool:
        return ATOMIC_TRY not in self.store.capabilities

    def _holds(self, claim: Claim) -> bool:
        is_unfair = self._is_foreign and claim.kind != FAIR_MUTEX  # it asks by another join
        standing = self.join(claim, UNFAIR) if is_unfair else self.look(claim)
        return standing is not None and standing.holds

    def holders(self, name: str = "a") -> list[int]:
        return self.tickets(step(self.queue.inspect(name, self.soon)).holders)

    def waiters(self, name: str = "a") -> list[int]:
        return self.tickets(step(self.queue.inspect(name, self.soon)).waiters)

    def tickets(self, participants: Iterable[dibs.Participant]) -> list[int]:
        """The tickets of those whom `inspect` shows. In a FOREIGN store that of each claim; 0 while it waits."""
        if self._is_foreign:
            return [self._shown[one.owner].ticket or 0 for one in participants]
        return [one.token for one in participants]

    def names(self, prefix: str = "", after: str = "") -> list[str]:
        """The names of the queues on a page; queues with only expired claims may be among them."""
        return [info.name for info in step(self.queue.page(prefix, after, self.soon))]

    def evict(self, token: int, name: str = "a") -> bool:
        if not self._is_foreign:
            return step(self.queue.evict(name, token, self.soon))
        owners = [owner for owner, claim in self._shown.items() if claim.ticket == token]
        queue = cast("NamesHolders", self.queue)
        return step(queue.evict_holder(name, owners[0] if owners else f"nobody:{token}", self.soon))

    def revoke(self, token: int, name: str = "a") -> bool:
        return step(self.queue.revoke(name, token, self.soon))

    def close(self) -> None:
        self.queue.close()
        self.other_queue.close()
        self.me.inbox.unlisten()
        self.store.close()
        self._client.close()


@pytest.fixture
def seats(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Seat]]:
    """A function that makes seats at one empty store."""
    made: list[Seat] = []

    subject: Subject = request.param
    shown: dict[str, Claim] = {}

    def seat() -> Seat:
        made.append(Seat(url, subject.form, shown))
        return made[-1]

    with clocks.clock_of(subject):
        url = subject.fresh(tmp_path)
        yield seat
        for one in made:
            one.close()


@pytest.fixture
def ana(seats: Callable[[], Seat]) -> Seat:
    return seats()


@pytest.fixture
def bob(seats: Callable[[], Seat]) -> Seat:
    return seats()


def _answered(standing: Standing | dibs.StoreUnavailable | None) -> Standing | None:
    if isinstance(standing, dibs.StoreUnavailable):
        raise standing
    return standing
