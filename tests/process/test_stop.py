"""A process that is stopped past its lease: the next one is served, and the stopped one knows when it wakes."""

from __future__ import annotations

import signal

import pytest

from process.children import STEADY, Crew
from process.stores import EVERY, each


@pytest.mark.alone
@each(*EVERY)
def test_a_holder_stopped_past_its_lease_has_lost_and_knows_it(crew: Crew) -> None:
    holder, waiter = crew.workers(crew.lasting, STEADY)
    old = holder.take("a")
    waiter.tell("take", "a", STEADY)
    crew.in_queue("a", 1, 1)
    holder.freeze()
    token = int(waiter.hear("took")[0])
    assert token > old
    holder.signal(signal.SIGCONT)
    state = holder.ask("state", "a", hear="state")
    assert (state[:4], state[-1]) == (["LockLost", "lost", "not", "0.0"], "standstill")
    assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    assert crew.client.lock("a").acquire(timeout=0) is None, "the late release must not free the new holder's lock"
    assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert waiter.ask("give", "a", hear="gave") == ["ok"]


def test_a_holder_stopped_for_less_than_its_lease_still_holds(crew: Crew) -> None:
    holder = crew.worker(STEADY / 2)
    holder.take("a")
    holder.freeze()
    assert crew.client.lock("a").acquire(timeout=0.2) is None
    holder.signal(signal.SIGCONT)
    assert holder.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert holder.ask("give", "a", hear="gave") == ["ok"]
    assert crew.client.lock("a").acquire(timeout=0)


@pytest.mark.gate
@each(*EVERY)
def test_a_stopped_waiter_is_passed_over_and_served_later(crew: Crew) -> None:
    sleeper, last = crew.workers(crew.lasting, STEADY)
    hold = crew.client.lock("a").acquire(timeout=0)
    assert hold is not None
    sleeper.tell("take", "a", 2 * STEADY)
    crew.in_queue("a", 1, 1)
    sleeper.freeze()
    last.tell("take", "a", STEADY)
    hold.release()
    last.hear("took")
    sleeper.signal(signal.SIGCONT)
    assert last.ask("give", "a", hear="gave") == ["ok"]
    sleeper.hear("took")
