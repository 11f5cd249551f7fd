"""The waiting loop over a real store with a stalled watchdog: messages for claims that expired or nearly did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from dibs.core.acquire import QueueGrantor
from dibs.core.deadline import FOREVER
from dibs.core.grants import Grant, Request
from dibs.core.queue import FAIR, FOREIGN, LEASES, YOURS, ClientIdentity
from dibs.core.registry import HoldRegistry
from dibs.core.reporter import Reporter
from dibs.core.runtime import Runtime
from dibs.core.watchdog import Watchdog
from dibs.runtime.threads import ThreadRuntime, step
from dibs.testing.contract.seats import Seat, until
from dibs.testing.contract.worlds import above_the_store, needs, timed, without

pytestmark = [needs(FAIR, LEASES), without(FOREIGN), above_the_store]


class Standstill:
    """A watchdog's worker that never runs, as during a C call that keeps the GIL."""

    def ring(self) -> None: ...

    def stop(self) -> None: ...

    def retire(self) -> None: ...


class StandstillRuntime(ThreadRuntime):
    def worker(self, turn: Callable[[], Coroutine[Any, Any, float | None]]) -> Standstill:
        return Standstill()


class Waiter:
    """One acquire in a thread, on a seat's queue, without renewal."""

    def __init__(self, seat: Seat, lease: float) -> None:
        runtime: Runtime = StandstillRuntime(seat.now, 0.01)
        me = ClientIdentity(seat.me.id, seat.me.inbox, lease, seat.me.news)
        reporter = Reporter("test", "memory", runtime.now, None)
        registry = HoldRegistry(runtime, "test", reporter, runtime.mutex())
        self.watchdog = registry.watchdog = Watchdog(runtime, me, lambda: self.grantor, reporter, runtime.mutex())
        self.grantor = QueueGrantor(seat.queue, runtime, me, registry, 10.0)
        self.grant = Grant(Request("a", "mutex", 1, lease, True, True))
        self.held: bool | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self.held = step(self.grantor.acquire(self.grant, 1, "{}", FOREVER))

    def join(self) -> None:
        until(lambda: not self._thread.is_alive())


@pytest.fixture
def cy(seats: Callable[[], Seat]) -> Seat:
    return seats()


@timed
def test_a_message_for_a_claim_that_expired_grants_nothing(ana: Seat, bob: Seat, cy: Seat) -> None:
    mine, first = ana.joined(lease=30)
    waiter = Waiter(bob, lease=bob.brief)
    old = until(lambda: ana.waiters() and waiter.grant.claim)
    until(lambda: not ana.waiters())  # not renewed, so it expired
    theirs, second = cy.joined(lease=30)
    overslept = waiter.grant.claim is old  # where waiters poll, it may have joined again already
    bob.me.inbox.deliver(old.id, YOURS.value)  # a message from before the expiry, delayed in a buffer
    until(lambda: len(ana.waiters()) == 2 and waiter.grant.claim is not old)  # it joins again, at the end of the queue
    assert waiter.held is None
    assert ana.holders() == [first.ticket]
    assert not overslept or ana.waiters()[0] == second.ticket
    ana.leave(mine)
    cy.leave(theirs)
    waiter.join()
    assert waiter.held
    assert waiter.grant.token > (second if overslept else first).ticket
    step(waiter.grantor.release(waiter.grant, bob.soon))


@timed
def test_a_message_that_comes_late_is_confirmed_before_it_counts(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined(lease=30)
    waiter = Waiter(bob, lease=4.0)
    until(ana.waiters)
    until(lambda: waiter.grant.until - bob.now() < 1.9)  # less than half of the waiting lease is left
    ana.leave(mine)
    waiter.join()
    assert waiter.held
    assert waiter.grant.until - bob.now() > 2.0  # it renewed between the message and the hold
    step(waiter.grantor.release(waiter.grant, bob.soon))


@timed
def test_a_message_in_time_counts_for_no_more_than_what_is_left(ana: Seat, bob: Seat) -> None:
    mine, _ = ana.joined(lease=30)
    waiter = Waiter(bob, lease=30)
    until(ana.waiters)
    ana.leave(mine)
    waiter.join()
    assert waiter.held
    assert waiter.grant.until - bob.now() <= 4.5  # the waiting lease less the margin, not the whole lease
    step(waiter.grantor.release(waiter.grant, bob.soon))
