"""The interleavings that broke earlier drafts of the design, one by one, and those that the simulator found since.

Each is written by hand on a `Stage`, whose watcher looks at every step: two valid holders, a token that does not rise,
a ghost or a revived hold fail the test wherever they appear.
"""

from __future__ import annotations

import pytest

from dibs.core.grants import HELD
from dibs.core.kinds.election import Election
from dibs.core.kinds.multi import Multi
from dibs.core.kinds.options import Options
from dibs.core.kinds.primitives import Latch
from dibs.core.queue import LOOK
from dibs.errors import LockLost
from sim.stage import Fate, Stage


def test_a_hold_is_lost_by_the_clock_before_anything_runs(stage: Stage) -> None:
    """A suspended machine's timers slept too: validity is computed when it is asked for."""
    ana = stage.process("ana")
    hold = stage.done(stage.take(ana, stage.lock(ana)))
    ana.node.pause()
    stage.pass_time(5.0)
    assert hold.grant.state is HELD  # nobody had a chance to notice
    assert hold.is_lost()
    with pytest.raises(LockLost):
        hold.check()


def test_an_evicted_waiter_joins_again_at_the_end_with_a_new_id(stage: Stage) -> None:
    ana, bob, cyd = (stage.process(name) for name in ("ana", "bob", "cyd"))
    locks = {process: stage.lock(process) for process in (ana, bob, cyd)}
    held = stage.done(stage.take(ana, locks[ana]))
    stopped = stage.take(bob, locks[bob])
    stage.until(lambda: len(stage.queue()) == 2)
    old = stage.queue()[1].id
    bob.node.pause()
    patient = stage.take(cyd, locks[cyd])
    stage.pass_time(2.0)
    bob.node.resume()
    stage.until(lambda: len(stage.queue()) == 3)
    assert old not in [entry.id for entry in stage.queue()]
    assert stage.queue()[2].client == bob.client.me.id
    stage.done(stage.give(ana, locks[ana], held))
    token = stage.done(patient).token
    stage.done(stage.give(cyd, locks[cyd], patient.result))
    assert stage.done(stopped).token > token


def test_a_renewal_that_answers_after_the_release_loses_nothing(stage: Stage) -> None:
    ana = stage.process("ana")
    lock = stage.lock(ana)
    told: list[str] = []
    hold = stage.done(stage.take(ana, lock))
    hold.notify = [lambda: told.append("lost")]
    stage.next("request", "renew", Fate(delay=0.1))
    stage.until(lambda: stage.faults_left() == 0)
    stage.done(stage.give(ana, lock, hold))
    stage.pass_time(3.0)
    assert not told
    assert not hold.lost_seen


def test_an_interrupted_second_join_of_an_unfair_waiter_makes_no_ghost(stage: Stage) -> None:
    """Its first join was answered, so an answer is known; the interrupted one is still on its way."""
    ana, bob = stage.process("ana"), stage.process("bob")
    lock = stage.lock(ana, lease=3.0)
    held = stage.done(stage.take(ana, lock))
    outside = stage.take(bob, stage.lock(bob, lease=3.0, fair=False))
    stage.until(lambda: stage.server.world.outside)
    stage.next("request", "join", Fate(delay=1.0, broken=2.0))
    stage.until(lambda: stage.faults_left() == 0)
    outside.task.interrupt()
    stage.done(stage.give(ana, lock, held))
    stage.pass_time(4.0)
    assert not stage.queue()
    assert not stage.server.world.outside


def test_a_broken_unfair_waiter_whose_first_join_comes_late_makes_no_ghost(stage: Stage) -> None:
    """The second copy was granted and then broken by an operator; the first one comes while another holds. No renewal
    finds an unfair waiter, so the store says that the claim is gone; it stays outside unless it is given back."""
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.next("request", "join", Fate(delay=0.6, broken=0.01))
    hold = stage.done(stage.take(ana, stage.lock(ana, lease=3.0, fair=False)))
    stage.done(stage.go(bob, bob.client.break_("x", stage.queue()[0].ticket)))
    stage.done(stage.take(bob, stage.lock(bob, lease=10.0)))
    stage.until(lambda: stage.server.world.outside)
    stage.until(hold.is_lost)
    stage.pass_time(1.0)
    assert not stage.server.world.outside


def test_a_broken_lock_is_not_taken_again_by_an_id_in_doubt(stage: Stage) -> None:
    """The grant's signal came before the operator; the answer to the join did not. The id asks again, finds its old
    signal, and must not take it for a grant of its new place."""
    ana, bob, cyd = (stage.process(name) for name in ("ana", "bob", "cyd"))
    first = stage.lock(ana)
    held = stage.done(stage.take(ana, first))
    stage.next("reply", "join", Fate(lost=True, broken=0.3))
    doubtful = stage.take(bob, stage.lock(bob))
    stage.until(lambda: len(stage.queue()) == 2)
    waiting = stage.take(cyd, stage.lock(cyd))
    stage.until(lambda: len(stage.queue()) == 3)
    stage.done(stage.give(ana, first, held))  # bob holds in the store, and was sent a signal
    stage.done(stage.go(ana, ana.client.break_("x", stage.queue()[0].ticket)))
    hold = stage.done(waiting)
    stage.pass_time(1.0)
    assert not doubtful.over
    assert not hold.is_lost()


def test_a_broken_hold_that_comes_to_stand_behind_another_is_lost(stage: Stage) -> None:
    """The first copy of its join comes late, after an operator broke what the second one got: the id stands again, and
    its renewal is answered, though somebody else holds. Random schedules hardly ever show it."""
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.next("request", "join", Fate(delay=0.2, broken=0.01))
    broken = stage.done(stage.take(ana, stage.lock(ana)))
    stage.done(stage.go(bob, bob.client.break_("x", broken.token)))
    hold = stage.done(stage.take(bob, stage.lock(bob)))
    stage.until(lambda: len(stage.queue()) == 2, 0.3)
    assert stage.until(lambda: broken.grant.state is not HELD) < 0.5, "at its next renewal"
    stage.until(lambda: len(stage.queue()) == 1)
    assert broken.is_lost()
    assert not hold.is_lost()


def test_forged_signals_are_only_a_reason_to_look(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.done(stage.take(ana, stage.lock(ana)))
    waiting = stage.take(bob, stage.lock(bob))
    stage.until(lambda: len(stage.queue()) == 2)
    id = stage.queue()[1].id
    for n in range(200):
        bob.client.me.inbox.deliver(n.to_bytes(16, "big"), b"y")
        bob.client.me.inbox.deliver(id, LOOK.value if n % 2 else b"\xff forged")
        stage.pass_time(0.003)
    assert not waiting.over


def test_a_lost_confirmation_does_not_end_a_patient_acquire(stage: Stage) -> None:
    """The join was answered so late that it needs confirming, and that got lost: ask again, as after any silence."""
    ana = stage.process("ana")
    stage.next("reply", "join", Fate(delay=0.6))
    stage.next("request", "renew", Fate(lost=True, broken=0.05))
    hold = stage.done(stage.take(ana, stage.lock(ana), 30.0))
    assert stage.faults_left() == 0
    assert hold.remaining() > 0.0


def test_a_lost_confirmation_does_not_end_a_wait_in_the_queue(stage: Stage) -> None:
    """The grant must be confirmed and the renewal is lost: a new claim asks, as after any silence."""
    ana, bob = stage.process("ana"), stage.process("bob")
    first = stage.lock(ana)
    held = stage.done(stage.take(ana, first))
    waiting = stage.take(bob, stage.lock(bob, renew=False), 30.0)
    stage.until(lambda: len(stage.queue()) == 2)
    stage.next("request", "renew", Fate(lost=True, broken=0.05))
    stage.done(stage.give(ana, first, held))
    hold = stage.done(waiting)
    assert stage.faults_left() == 0
    assert hold.remaining() > 0.8


def test_a_lost_claim_is_not_renewed_on_its_way_out(stage: Stage) -> None:
    ana = stage.process("ana")
    hold = stage.done(stage.take(ana, stage.lock(ana)))
    ana.node.pause()
    stage.pass_time(0.97)  # past the holder's own deadline, before the store's
    ana.node.resume()
    stage.pass_time(0.01)
    assert hold.grant.state is not HELD
    assert not stage.queue()
    assert sum("renew" in text for _, _, text in stage.sim.trace or []) == 0


def test_a_cancelled_release_of_several_gives_all_of_them_back(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    multi = Multi([stage.lock(ana, name) for name in ("a", "b")], None, lambda hold, lock: hold)
    several = multi.begin()
    for hold in stage.done(stage.go(ana, ana.take(multi, several))):
        ana.let_go(hold)
    stage.next("request", "leave", Fate(delay=0.5))
    releasing = stage.go(ana, several.release())
    stage.until(lambda: stage.faults_left() == 0)
    releasing.task.interrupt()
    for name in ("a", "b"):
        assert stage.done(stage.take(bob, stage.lock(bob, name), 2.0)) is not None


def test_a_wait_ends_at_its_deadline_also_if_watching_fails(stage: Stage) -> None:
    ana = stage.process("ana")
    latch = Latch(ana.client, "x")
    stage.runs(ana, latch.arm(1))
    for _ in range(10):
        stage.next("request", "watch", Fate(lost=True, broken=0.01))
        assert stage.runs(ana, latch.wait(0.05, False), within=0.1) is False


@pytest.mark.parametrize("verb", ["watch", "changed", "inspect"])
def test_who_follows_goes_on_after_a_lost_message(stage: Stage, verb: str) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    tokens: list[int] = []

    async def follow() -> None:
        election, seen = Election(bob.client, "x", Options()), None
        while True:
            _, seen = await election.change(seen)
            tokens.append(seen)

    following = stage.go(bob, follow())
    stage.until(lambda: tokens == [0])
    stage.next("request", verb, Fate(lost=True, broken=0.05))
    led = [0]
    for _ in range(3):
        lock = Election(ana.client, "x", Options(lease=1.0)).lead()
        hold = stage.done(stage.take(ana, lock))
        stage.pass_time(2.5)
        stage.done(stage.give(ana, lock, hold))
        led += [hold.token, 0]
    stage.pass_time(2.5)
    assert stage.faults_left() == 0
    assert not following.over, following.error
    assert tokens[-1] == 0
    assert set(tokens) <= set(led)
