"""The interleavings of latch, cell, fence and election that are worth a name, written by hand; see test_traps.py."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.backends.common import atomic_cells
from dibs.backends.memory import World
from dibs.core.cells import CELL, FENCE, LATCH
from dibs.core.kinds.election import Election
from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.core.kinds.primitives import Cell, Fence, Latch
from dibs.core.rule import RW_CAPACITY
from dibs.errors import Closed, Conflict, StaleToken, StoreUnavailable
from sim.stage import Doing, Fate, Stage
from sim.workload import Process
from sim.world import POLL_INTERVAL

LOST = Fate(lost=True, broken=0.05)
PROMPT = 0.01


def latch(process: Process) -> Latch:
    return Latch(process.client, "x")


def cell(process: Process) -> Cell:
    return Cell(process.client, "x")


def fence(process: Process) -> Fence:
    return Fence(process.client, "x")


# One wish happens once.


def test_a_count_whose_answer_is_lost_again_and_again_counts_once(stage: Stage) -> None:
    ana = stage.process("ana", retry=60.0)
    stage.runs(ana, latch(ana).arm(20))
    for _ in range(10):
        stage.next("reply", "put", LOST)
    stage.runs(ana, latch(ana).count_down())
    assert stage.faults_left() == 0
    assert stage.value(LATCH) == (b"1 19", 2)


def test_a_count_that_arrives_twice_counts_once(stage: Stage) -> None:
    ana = stage.process("ana")
    stage.runs(ana, latch(ana).arm(20))
    stage.next("request", "put", Fate(again=0.3))
    stage.runs(ana, latch(ana).count_down())
    stage.runs(ana, latch(ana).count_down())
    stage.pass_time(1.0)
    assert stage.value(LATCH) == (b"1 18", 3)


def test_an_arm_whose_answer_is_lost_arms_once_and_does_not_meet_itself(stage: Stage) -> None:
    ana = stage.process("ana")
    stage.next("reply", "put", LOST)
    stage.runs(ana, latch(ana).arm(3))
    assert stage.faults_left() == 0
    assert stage.value(LATCH) == (b"1 3", 1)


def test_a_set_whose_answer_is_lost_reports_its_own_success(stage: Stage) -> None:
    ana = stage.process("ana")
    stage.next("reply", "put", LOST)
    assert stage.runs(ana, cell(ana).set(b"a", 0)) == 1
    assert stage.faults_left() == 0


def test_a_set_reports_its_own_success_also_if_somebody_wrote_in_between(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.next("reply", "put", Fate(lost=True, broken=0.5))
    setting = stage.go(ana, cell(ana).set(b"a", 0))
    stage.until(lambda: stage.value(CELL)[1] == 1)
    assert stage.runs(bob, cell(bob).set(b"b", 1)) == 2
    assert not setting.over
    assert stage.done(setting) == 1
    assert stage.value(CELL) == (b"b", 2)


def test_an_update_whose_answer_is_lost_is_not_done_again_on_top_of_another(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.next("reply", "put", Fate(lost=True, broken=0.5))
    updating = stage.go(ana, cell(ana).update(lambda value: (value or b"") + b"a"))
    stage.until(lambda: stage.value(CELL)[1] == 1)
    stage.runs(bob, cell(bob).update(lambda value: (value or b"") + b"b"))
    assert stage.done(updating) == (b"a", 1)
    assert stage.value(CELL) == (b"ab", 2)


def test_a_put_that_conflicts_does_not_happen_later_either(stage: Stage) -> None:
    """Its first copy is late, its second one finds another version: no version comes back for the first."""
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.next("request", "put", Fate(delay=1.0, broken=0.5))
    setting = stage.go(ana, cell(ana).set(b"a", 0))
    stage.until(lambda: stage.faults_left() == 0)
    stage.runs(bob, cell(bob).set(b"b", 0))
    with pytest.raises(Conflict, match="version 1"):
        stage.done(setting)
    stage.pass_time(2.0)
    assert stage.value(CELL) == (b"b", 1)


# What is not known.


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_put_without_an_answer_says_that_it_is_not_known(stage: Stage, what: str) -> None:
    ana = stage.process("ana", retry=4.0)
    stage.next(what, "put", Fate(lost=True, broken=5.0))
    setting = stage.go(ana, cell(ana).set(b"a", 0))
    stage.until(lambda: setting.over, 4.1)
    with pytest.raises(StoreUnavailable, match="not known") as caught:
        setting.get()
    assert (caught.value.name, caught.value.store) == ("x", "sim://")
    assert caught.value.step == "read the value again"
    assert stage.value(CELL)[1] == (what == "reply")


def test_a_get_without_an_answer_has_nothing_to_doubt(stage: Stage) -> None:
    ana = stage.process("ana", retry=0.5)
    stage.next("reply", "get", Fate(lost=True, broken=5.0))
    with pytest.raises(StoreUnavailable) as caught:
        stage.runs(ana, cell(ana).update(lambda value: b"a"))
    assert "not known" not in str(caught.value)
    assert stage.value(CELL)[1] == 0


def test_a_put_that_its_caller_gave_up_on_does_nothing_afterwards(stage: Stage) -> None:
    ana = stage.process("ana", retry=4.0)
    stage.next("request", "put", Fate(delay=4.1))
    with pytest.raises(StoreUnavailable, match="not known"):
        stage.runs(ana, cell(ana).set(b"a", 0))
    stage.pass_time(2.0)
    assert stage.value(CELL) == (None, 0)


# Armed, and armed again.


def test_an_unarmed_latch_is_open_and_armed_waits_for_an_arm(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    assert stage.runs(ana, latch(ana).wait(None, False), PROMPT) is True
    assert stage.runs(ana, latch(ana).wait(0.5, True), 0.6) is False
    patient = stage.go(ana, latch(ana).wait(None, True))
    stage.pass_time(0.1)
    stage.runs(bob, latch(bob).arm(1))
    stage.pass_time(3.0)
    assert not patient.over
    stage.runs(bob, latch(bob).count_down())
    assert stage.until(lambda: patient.over) < PROMPT
    assert patient.get() is True


def test_an_armed_wait_that_comes_after_the_opening_waits_for_the_next(stage: Stage) -> None:
    ana = stage.process("ana")
    stage.runs(ana, latch(ana).arm(1))
    stage.runs(ana, latch(ana).count_down())
    assert stage.runs(ana, latch(ana).wait(0.5, True)) is False


def test_a_latch_that_is_not_open_is_not_armed_again(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.runs(ana, latch(ana).arm(2))
    with pytest.raises(Conflict, match="2 to go"):
        stage.runs(bob, latch(bob).arm(1))
    assert stage.value(LATCH) == (b"1 2", 1)


def test_who_was_stopped_while_it_opened_and_was_armed_again_is_let_through(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.runs(bob, latch(bob).arm(1))
    waiting = stage.go(ana, latch(ana).wait(None, False))
    stage.pass_time(0.1)
    ana.node.pause()
    stage.runs(bob, latch(bob).count_down())
    stage.runs(bob, latch(bob).arm(1))
    ana.node.resume()
    assert stage.until(lambda: waiting.over) < PROMPT
    assert waiting.get() is True


def test_a_late_count_does_not_reach_the_next_generation(stage: Stage) -> None:
    """It has looked, its put is late, and is asked for again when the latch is closed once more."""
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.runs(bob, latch(bob).arm(1))
    stage.next("request", "put", Fate(delay=2.0, broken=1.0))
    late = stage.go(ana, latch(ana).count_down())
    stage.until(lambda: stage.faults_left() == 0)
    stage.runs(bob, latch(bob).count_down())
    stage.runs(bob, latch(bob).arm(1))
    stage.done(late)
    stage.pass_time(3.0)
    assert stage.value(LATCH) == (b"2 1", 3)


def test_a_wait_that_misses_the_signal_looks_for_itself(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.runs(bob, latch(bob).arm(1))
    waiting = stage.go(ana, latch(ana).wait(None, False))
    stage.pass_time(0.1)
    stage.next("signal", "ana", Fate(lost=True))
    stage.runs(bob, latch(bob).count_down())
    assert PROMPT < stage.until(lambda: waiting.over) < POLL_INTERVAL
    assert waiting.get() is True


def test_a_count_at_any_instant_of_a_wait_is_not_missed(stage: Stage) -> None:
    """To look and to be put down as one who watches is one step, so the count falls before it or behind."""
    ana, bob = stage.process("ana"), stage.process("bob")
    for instant in range(1, 40):
        stage.runs(bob, latch(bob).arm(1))
        waiting = stage.go(ana, latch(ana).wait(None, False))
        stage.pass_time(instant / 10_000)
        stage.runs(bob, latch(bob).count_down())
        assert stage.until(lambda waiting=waiting: waiting.over) < PROMPT, instant


def test_a_wait_ends_at_its_deadline_also_if_watching_fails(stage: Stage) -> None:
    ana = stage.process("ana")
    stage.runs(ana, latch(ana).arm(1))
    for _ in range(10):
        stage.next("request", "watch", Fate(lost=True, broken=0.01))
        assert stage.runs(ana, latch(ana).wait(0.05, False), within=0.1) is False


def test_closing_ends_whoever_waits(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.runs(bob, latch(bob).arm(1))
    waiting = stage.go(ana, latch(ana).wait(None, False))
    stage.pass_time(0.1)
    stage.runs(ana, ana.client.close())
    assert stage.until(lambda: waiting.over) < PROMPT
    with pytest.raises(Closed):
        waiting.get()


# Tokens at a fence.


def test_readers_are_let_in_in_any_order_and_shut_nobody_out(stage: Stage) -> None:
    """Their tokens are valid side by side: the highest one must not refuse the others."""
    readers = [stage.process(name) for name in ("ana", "bob", "cyd")]
    tokens = []
    for reader in readers:
        lock = Lock(reader.client, "x", Options(), kind="rw", capacity=RW_CAPACITY, weight=1)
        tokens.append(stage.done(stage.take(reader, lock)).token)
    assert tokens == sorted(tokens)
    for reader, token in reversed(list(zip(readers, tokens, strict=True))):
        stage.runs(reader, fence(reader).admit(token, True, None))
    stage.runs(readers[0], fence(readers[0]).admit(tokens[0], False, None))  # as no writer came with a higher one


def test_a_writer_shuts_out_the_readers_before_it(stage: Stage) -> None:
    ana = stage.process("ana")
    for token in (7, 5, 6):
        stage.runs(ana, fence(ana).admit(token, True, None))
    stage.runs(ana, fence(ana).admit(8, False, None))
    for token in (5, 6, 7):
        with pytest.raises(StaleToken, match=f"token {token} is stale: 8"):
            stage.runs(ana, fence(ana).admit(token, True, None))
    stage.runs(ana, fence(ana).admit(9, True, None))
    stage.runs(ana, fence(ana).admit(8, False, None))


def test_a_token_whose_answer_was_lost_is_let_in_again(stage: Stage) -> None:
    ana = stage.process("ana")
    stage.next("reply", "admit", LOST)
    stage.runs(ana, fence(ana).admit(5, False, None))
    assert stage.faults_left() == 0
    assert stage.value(FENCE) == (b"5", 1)


def test_a_token_whose_answer_was_lost_is_refused_once_a_higher_one_came(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    stage.next("reply", "admit", Fate(lost=True, broken=0.5))
    admitting = stage.go(ana, fence(ana).admit(5, False, None))
    stage.until(lambda: stage.value(FENCE)[1] == 1)
    stage.runs(bob, fence(bob).admit(6, False, None))
    with pytest.raises(StaleToken, match="6 was admitted"):
        stage.done(admitting)


class Resource:
    """What the lock is for. With a fence of its own it checks in the very step of the change."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._table = World("resource")

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        return atomic_cells.admit(self._table, name, token, shared)

    async def write(self, process: Process, token: int) -> None:
        await fence(process).admit(token, False, self)  # nothing is awaited between this and the change
        self.tokens.append(token)


def _stopped_between_check_and_change(stage: Stage, write: Any) -> Doing:
    """Ana shows her token, is stopped for longer than her lease, bob takes over and writes; then she goes on."""
    ana, bob = stage.process("ana"), stage.process("bob")
    hold = stage.done(stage.take(ana, stage.lock(ana)))

    async def check_and_write() -> None:
        await fence(ana).admit(hold.token, False, None)
        await ana.runtime.sleep(0.01)
        await write(ana, hold.token)

    late = stage.go(ana, check_and_write())
    stage.until(lambda: stage.value(FENCE)[1] == 1)
    ana.node.pause()
    lock = stage.lock(bob)
    other = stage.done(stage.take(bob, lock))
    stage.runs(bob, fence(bob).admit(other.token, False, None))
    stage.runs(bob, write(bob, other.token))
    ana.node.resume()
    stage.until(lambda: late.over)
    return late


def test_a_fence_beside_the_resource_does_not_keep_the_stopped_out(stage: Stage) -> None:
    """What no fence can do, whoever calls it: admit before one acts, and be stopped in between."""
    resource = Resource()

    async def write(process: Process, token: int) -> None:
        resource.tokens.append(token)

    _stopped_between_check_and_change(stage, write).get()
    assert resource.tokens == sorted(resource.tokens, reverse=True)
    assert len(resource.tokens) == 2


def test_a_resource_that_checks_in_the_step_of_the_change_keeps_the_stopped_out(stage: Stage) -> None:
    resource = Resource()
    late = _stopped_between_check_and_change(stage, resource.write)
    with pytest.raises(StaleToken):
        late.get()
    assert len(resource.tokens) == 1


# Who leads.


class Follower:
    """Keeps what a watch yields, as a API does."""

    def __init__(self, stage: Stage, process: Process) -> None:
        self.tokens: list[int] = []
        self.doing = stage.go(process, self._follow(Election(process.client, "x", Options())))

    async def _follow(self, election: Election) -> None:
        seen: int | None = None
        while True:
            _, seen = await election.change(seen)
            self.tokens.append(seen)


def _lead(stage: Stage, process: Process, lease: float = 1.0) -> tuple[Any, Any]:
    lock = Election(process.client, "x", Options(lease=lease)).lead()
    return lock, stage.done(stage.take(process, lock))


def test_a_change_of_leader_is_told_at_once(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    seen = Follower(stage, bob).tokens
    stage.until(lambda: seen == [0])
    lock, hold = _lead(stage, ana)
    assert stage.until(lambda: seen == [0, hold.token]) < PROMPT
    stage.pass_time(10.0)
    stage.done(stage.give(ana, lock, hold))
    assert stage.until(lambda: seen == [0, hold.token, 0]) < PROMPT


@pytest.mark.parametrize("lost", [False, True])
def test_a_leader_that_dies_or_whose_coming_nobody_heard_of_is_found_by_looking(stage: Stage, lost: bool) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    seen = Follower(stage, bob).tokens
    stage.pass_time(0.1)
    if lost:
        stage.next("signal", "bob", Fate(lost=True))
    _, hold = _lead(stage, ana)
    assert stage.until(lambda: seen == [0, hold.token]) < (POLL_INTERVAL if lost else PROMPT)
    ana.node.die()
    stage.watcher.died(ana.node)
    stage.until(lambda: seen == [0, hold.token, 0], 1.0 + POLL_INTERVAL + PROMPT)


def test_who_was_stopped_sees_the_newest_leader_and_never_an_older_one(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    seen = Follower(stage, bob).tokens
    lock, hold = _lead(stage, ana)
    stage.until(lambda: seen[-1:] == [hold.token])
    bob.node.pause()
    for _ in range(3):
        stage.done(stage.give(ana, lock, hold))
        lock, hold = _lead(stage, ana)
    bob.node.resume()
    stage.until(lambda: seen[-1] == hold.token, PROMPT)
    assert seen == sorted(seen)


def test_a_change_that_comes_while_the_follower_is_busy_is_not_missed(stage: Stage) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    election = Election(bob.client, "x", Options())
    assert stage.runs(bob, election.change(None)) == (None, 0)
    _, hold = _lead(stage, ana)
    leader, token = stage.runs(bob, election.change(0), PROMPT)
    assert leader.token == token == hold.token


@pytest.mark.parametrize("verb", ["watch", "changed", "inspect"])
def test_who_follows_goes_on_after_a_lost_message(stage: Stage, verb: str) -> None:
    ana, bob = stage.process("ana"), stage.process("bob")
    following = Follower(stage, bob)
    stage.until(lambda: following.tokens == [0])
    stage.next("request", verb, LOST)
    for _ in range(3):
        lock, hold = _lead(stage, ana)
        stage.pass_time(2.5)
        stage.done(stage.give(ana, lock, hold))
    assert stage.faults_left() == 0
    assert not following.doing.over, following.doing.error
