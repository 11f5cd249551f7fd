"""A quorum of memory stores whose members fail: it serves on, refuses, or gives back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import dibs
from dibs.core.deadline import LEAST_PATIENCE
from dibs.core.quorum import grantor
from dibs.core.quorum import members as quorum_members
from dibs.core.quorum.members import Health
from dibs.runtime.threads import ThreadRuntime, step
from dibs.testing.contract.harness import World
from lab.stopwatch import Stopwatch
from lab.witness import Witness
from store.faults.kit import TIMEOUT, eventually, renewed, usually_sync
from store.quorum.members import DEAF, DOWN, MUTE, WELL, Member, State, beside, quorum_of

NAME = "a"
LASTING = 6.0
"""A lease in seconds whose renewals are waited for."""
ILL = pytest.mark.parametrize("ill", [DOWN, DEAF, MUTE], ids=lambda state: state.name.lower())


def five(world: World, **options: Any) -> tuple[Any, list[Member]]:
    client, members = quorum_of(5, world.connect, **options)
    world._clients.append(client)  # closed at the end
    return client, members


def another(world: World, client: Any, **options: Any) -> Any:
    other = beside(client, world.connect, **options)
    world._clients.append(other)
    return other


def remove_claims(member: Member) -> None:
    for entry in member.entries(NAME):
        member._world.remove(f"dibs:{NAME}", entry)


def set_state(members: list[Member], state: State) -> None:
    for member in members:
        member.state = state


async def held_by_all(
    world: World, client: Any, members: list[Member], witness: Witness | None = None, **options: Any
) -> Any:
    """A majority is enough for a hold: acquire again until all five count."""
    noted = witness or Witness(world, NAME)
    while True:
        hold = await world(noted.take(client.lock(NAME, **options), timeout=TIMEOUT))
        if tickets_at(members) == [hold.token] * len(members):
            return hold
        await world(noted.give(hold))


def tickets_at(members: list[Member]) -> list[int]:
    return [entry.ticket for member in members for entry in member.entries(NAME)]


def stands_at(members: list[Member]) -> list[int]:
    """The numbers of the members that have a claim."""
    return [number for number, member in enumerate(members) if member.entries(NAME)]


@usually_sync
async def test_all_members_have_one_token_and_it_rises(world: World) -> None:
    client, members = five(world)
    tokens = []
    for _ in range(3):
        hold = await held_by_all(world, client, members)
        tokens.append(hold.token)
        await world(hold.release)
        await eventually(lambda: stands_at(members) == [])
    assert tokens == sorted(set(tokens))


@usually_sync
async def test_a_token_rises_above_what_any_member_of_the_majority_has_given(world: World) -> None:
    """Each member counts on its own. A ballot that is far ahead at one member raises the others."""
    client, members = five(world)
    members[3]._world.last_ticket = 500
    first = await held_by_all(world, client, members)
    await world(first.release)
    members[3].state = members[4].state = DOWN
    second = await world(client.lock(NAME).acquire)
    assert second.token > first.token > 500


@pytest.mark.gate
@ILL
@usually_sync
async def test_two_of_five_may_be_missing(world: World, ill: State) -> None:
    """For two holders in turn: acquire, renew, release."""
    client, members = five(world, lease=LASTING)
    other = another(world, client, lease=LASTING)
    witness = Witness(world, NAME)
    hold = await held_by_all(world, client, members, witness)
    set_state(members[3:], ill)
    assert await world(other.lock(NAME).locked)
    assert await world(lambda: another(world, client).lock(NAME).acquire(timeout=0)) is None
    for _ in range(2):
        await renewed(witness, hold, LASTING)
        hold.check()
        await world(witness.give(hold))
        assert stands_at(members[:3]) == []
        before, hold = hold, await world(witness.take(other.lock(NAME), timeout=TIMEOUT))
        assert hold.token > before.token
    await world(witness.give(hold))
    witness.acquit()


@pytest.mark.alone
@usually_sync
async def test_a_dead_member_costs_its_timeout_once(world: World) -> None:
    """It is backed off: most of the twenty ballots do not ask it."""
    client, members = five(world, lease=3.0)
    members[0].state = DEAF
    with Stopwatch() as watch:
        for _ in range(20):
            hold = await world(lambda: client.lock(NAME).acquire(timeout=TIMEOUT))
            await world(hold.release)
        assert watch.seconds() < 20 * 3.0 / 6


@pytest.mark.gate
@ILL
@usually_sync
async def test_three_of_five_down_is_refused_in_bounded_time(world: World, ill: State) -> None:
    client, members = five(world, lease=9.0)
    set_state(members[:3], ill)
    with Stopwatch() as watch:
        for timeout in (0, 1):
            with pytest.raises(dibs.StoreUnavailable) as caught:
                await world(lambda timeout=timeout: client.lock(NAME).acquire(timeout=timeout))
            text = caught.value.what
            assert "2 of 5 members answered, 3 are needed" in text
            assert all(member.shown in text for member in members[:3])
            assert not any(f"{member.shown}:" in text for member in members[3:])
        assert watch.seconds() < 15
    await eventually(lambda: stands_at(members[3:]) == [])


@pytest.mark.gate
def test_a_member_that_fails_just_as_the_time_is_over_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    failed, told = Health.failed, threading.Event()

    def late(health: Health, why: str, now: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            told.wait(TIMEOUT)
        failed(health, why, now)

    client, members = quorum_of(5, dibs.connect)
    set_state(members[:3], DOWN)
    monkeypatch.setattr(Health, "failed", late)
    with client:
        try:
            with pytest.raises(dibs.StoreUnavailable) as caught:
                client.lock(NAME).acquire(timeout=0)
        finally:
            told.set()
    assert all(f"{member.shown}: no answer in time" in caught.value.what for member in members[:3])


@pytest.mark.gate
def test_a_last_ballot_that_begins_late_does_not_blame_healthy_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before it took longer than there was time."""
    client, members = quorum_of(5, dibs.connect)
    set_state(members[:3], DOWN)
    with client:
        monkeypatch.setattr(ThreadRuntime, "sleep", overslept)
        monkeypatch.setattr(grantor, "SHORTEST_STEP", TIMEOUT)  # a busy machine needs longer than the real one
        with pytest.raises(dibs.StoreUnavailable) as caught:
            client.lock(NAME).acquire(timeout=1)
    assert members[4].asked.count("join") == 2
    assert not any(f"{member.shown}:" in caught.value.what for member in members[3:])


async def overslept(_: ThreadRuntime, __: float) -> None:
    time.sleep(LEAST_PATIENCE + 0.1)


@pytest.mark.gate
@usually_sync
async def test_three_of_five_down_while_it_is_held_is_a_loss_at_the_own_deadline(world: World) -> None:
    client, members = five(world, lease=2.0)
    hold = await world(client.lock(NAME).acquire)
    set_state(members[:3], DEAF)
    await eventually(hold.lost.is_set)
    with pytest.raises(dibs.LockLost):
        hold.check()
    set_state(members, WELL)
    again = await world(lambda: another(world, client).lock(NAME).acquire(timeout=TIMEOUT))
    assert again.token > hold.token


@pytest.mark.gate
@usually_sync
async def test_a_failed_ballot_gives_its_votes_back(world: World) -> None:
    """Also where the reply was lost: there the watchdog retries until it gets one."""
    client, members = five(world, lease=30)
    set_state(members[:3], MUTE)
    with pytest.raises(dibs.StoreUnavailable):
        await world(lambda: client.lock(NAME).acquire(timeout=0))
    await eventually(lambda: stands_at(members[3:]) == [])
    set_state(members[:3], WELL)
    await eventually(lambda: stands_at(members) == [])
    assert await world(lambda: another(world, client).lock(NAME).acquire(timeout=0)) is not None


@pytest.mark.gate
@usually_sync
async def test_a_vote_that_is_gone_from_a_majority_is_a_loss_and_the_rest_is_given_back(world: World) -> None:
    """At the next renewal, long before its own deadline. No vote is written again, though others still have it."""
    client, members = five(world, lease=9.0)
    hold = await held_by_all(world, client, members)
    joins = [member.asked.count("join") for member in members]
    for member in members[:3]:
        member.forget()
    deadline = time.monotonic() + hold.remaining
    await eventually(hold.lost.is_set)
    assert time.monotonic() < deadline
    await eventually(lambda: stands_at(members) == [])
    assert [member.asked.count("join") for member in members] == joins
    with pytest.raises(dibs.LockLost):
        await world(hold.release)


@pytest.mark.gate
@usually_sync
async def test_a_member_that_forgot_has_no_vote_until_its_guard_is_over(world: World) -> None:
    """Otherwise it would give its vote to a second majority while the first holder counts on it."""
    client, members = five(world, lease=LASTING)
    witness = Witness(world, NAME)
    members[3].state = members[4].state = DOWN
    hold = await world(witness.take(client.lock(NAME, renew=False), timeout=TIMEOUT))
    assert stands_at(members) == [0, 1, 2]
    members[3].state = members[4].state = WELL
    members[2].forget()
    other = another(world, client, lease=LASTING)
    # Two members are free, two are not, and the one that would make a majority has no vote.
    assert await world(lambda: another(world, client).lock(NAME).acquire(timeout=0)) is None
    later = await world(witness.take(other.lock(NAME), timeout=TIMEOUT))
    assert hold.lost.is_set()
    witness.look()
    assert later.token > hold.token
    witness.acquit()


@usually_sync
async def test_an_identity_that_is_asked_at_the_deadline_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try of a caller: members that are well have a moment, here as long as the machine may stand still."""
    monkeypatch.setattr(quorum_members, "SHORTEST_STEP", TIMEOUT)
    monkeypatch.setattr(quorum_members, "LEAST_PATIENCE", TIMEOUT)
    client, _ = five(world)
    await world(lambda: client.inspect(NAME))
    core = client._core
    assert step(core.opened.identity(core.runtime.now())).startswith("quorum of ")


@pytest.mark.alone
@usually_sync
async def test_validity_counts_from_before_round_one(world: World) -> None:
    """The members' leases run during a slow first round."""
    client, members = five(world, lease=3.0)
    for member in members:
        member.before["join"] = lambda: time.sleep(0.1)
        member.before["stamp"] = lambda: time.sleep(0.02)
    hold = await world(client.lock(NAME, renew=False).acquire)
    assert hold.remaining <= 3.0 * 0.9 - 0.12, "both rounds took at least that"


@usually_sync
async def test_a_stall_between_the_rounds_is_no_grant(world: World) -> None:
    """TRAPS, B11: a caller lost three of its votes between the rounds. Two stamps do not make its token count."""
    client, members = five(world)
    other = another(world, client)
    theirs: list[Any] = []
    first = threading.Lock()

    def broken_and_taken() -> None:
        """Once, before any member is asked to stamp."""
        with first:
            if theirs:
                return
            for member in members[:3]:
                remove_claims(member)
            with dibs.connect([member.shown for member in members]) as third:
                hold = third.lock(NAME).acquire(timeout=TIMEOUT)
                assert hold is not None
                theirs.append(hold.token)
                hold.release()

    for member in members:
        member.before["stamp"] = broken_and_taken
    hold = await world(lambda: client.lock(NAME).acquire(timeout=TIMEOUT))
    assert any(member.asked.count("join") >= 2 for member in members)
    assert hold.token > theirs[0]
    assert await world(other.lock(NAME).locked)


@pytest.mark.gate
@usually_sync
async def test_break_takes_it_from_every_member_that_answers(world: World) -> None:
    client, members = five(world, lease=LASTING)
    members[4].state = DOWN
    hold = await world(client.lock(NAME).acquire)
    members[4].state = WELL
    await world(lambda: client.break_(NAME, token=hold.token))
    await eventually(hold.lost.is_set)
    await eventually(lambda: all("evict" in member.asked for member in members))
    await eventually(lambda: stands_at(members) == [])
    with pytest.raises(dibs.NotHeld):
        await world(lambda: client.break_(NAME, token=hold.token))


@usually_sync
async def test_a_holder_is_seen_though_the_members_that_voted_for_it_answer_last(world: World) -> None:
    """A majority of replies is not enough: the missing ones may change the result."""
    client, members = five(world)
    members[3].state = members[4].state = DOWN
    hold = await world(client.lock(NAME).acquire)
    members[3].state = members[4].state = WELL
    other = another(world, client)
    for looked in ("inspect", "page"):
        for member in members[:2]:
            member.before[looked] = lambda: time.sleep(0.3)
    (holder,) = (await world.inspect(other, NAME)).holders
    assert holder.token == hold.token
    (info,) = await world.locks(other)
    assert [holder.token for holder in info.holders] == [hold.token]


@pytest.mark.alone
@usually_sync
async def test_inspect_waits_once_for_silent_members(world: World) -> None:
    """Their replies could complete a majority, but they were asked before and did not answer."""
    client, members = five(world, lease=30.0)
    hold = await held_by_all(world, client, members)
    for member in members[1:3]:
        remove_claims(member)
    members[3].state = members[4].state = DEAF
    other = another(world, client, retry=1.5)
    await world.inspect(other, NAME)
    with Stopwatch() as watch:
        (waiter,) = (await world.inspect(other, NAME)).waiters
        assert watch.seconds() < 1.2  # less than `retry`, for which the first call waited
    assert waiter.token == hold.token
