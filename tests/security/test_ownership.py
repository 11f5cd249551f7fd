"""Ownership (cases 15 to 22): only who made a claim can end it. Looking like its owner is not enough."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import dibs
import dibs.aio
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.seats import Seat
from dibs.testing.contract.worlds import on
from security.test_secrets import forms, ids

PROGRAM = Path(__file__).with_name("clones.py")


def shown_by(scenario: str, count: int) -> list[str]:
    """The ids that the program and its children printed."""
    words = [sys.executable, str(PROGRAM), scenario]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    found = subprocess.run(words, capture_output=True, text=True, timeout=55, check=True, env=env).stdout.split()
    assert len(found) == count
    return found


def test_the_same_seed_gives_other_ids() -> None:
    found = shown_by("seeded", 5) + shown_by("seeded", 5)
    assert len(set(found)) == 10


def test_after_a_fork_ids_are_others() -> None:
    """Three processes: the parent's one claim from before is shown once more by the parent only."""
    found = shown_by("forked", 16)
    assert len(set(found)) == 16


def test_a_clone_that_no_hook_saw_makes_other_ids() -> None:
    """A machine that is snapshotted and started twice: equal ids are one claim to a store, and two holders of it."""
    found = shown_by("cloned", 8)
    assert len(set(found)) == 8, "ids lie ready in memory, and a clone of the memory has the same ones"


async def test_who_looks_like_the_holder_is_not(world: World) -> None:
    """The same host, pid, thread, owner's name and name of the lock, as after a pid was reused."""
    client, double = world.client(owner="ana"), world.client(owner="ana")
    ana = world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    twin = double.lock("a")
    (shown,) = (await world.inspect(double, "a")).holders
    assert (shown.owner, shown.pid) == ("ana", os.getpid())
    assert not await ana(twin.owned)
    assert await ana(lambda: twin.acquire(timeout=0)) is None
    with pytest.raises(dibs.NotHeld):
        await ana(twin.release)
    hold.check()
    await ana(hold.release)


async def test_who_looks_like_the_owner_of_an_rlock_does_not_enter(world: World) -> None:
    """Re-entry is settled in the client that holds, and never by what stands in the store."""
    client, double = world.client(owner="ana"), world.client(owner="ana")
    ana = world.actor("ana")
    hold = await ana(lambda: client.rlock("a").acquire())
    assert await ana(lambda: double.rlock("a").acquire(timeout=0)) is None
    hold.check()
    await ana(hold.release)


@on("blocking")
async def test_a_forked_child_has_no_part_in_its_parents_hold(world: World) -> None:
    """It neither holds nor releases, and its goodbye is its own."""
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    if (pid := os.fork()) == 0:
        status = 1
        try:
            with pytest.raises(dibs.LockLost):
                hold.check()
            with pytest.raises(dibs.LockLost):
                hold.release()
            client.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    hold.check()
    assert await bob(lambda: other.lock("a").acquire(timeout=0)) is None
    await ana(hold.release)
    assert await bob(lambda: other.lock("a").acquire(timeout=30))


def test_a_replayed_leave_spares_the_next_claim(ana: Seat, bob: Seat) -> None:
    """Captured and sent again after the same client took the lock anew: its id was for one acquisition."""
    first, _ = ana.joined()
    ana.leave(first)
    second, standing = ana.joined()
    for _ in range(3):
        ana.leave(first)
        bob.leave(first)
        bob.leave(first, answered=False)
    assert ana.holders() == [standing.ticket]
    assert bob.joined()[1].holds is False
    ana.leave(second)


def test_a_guessed_id_ends_nothing(ana: Seat, bob: Seat) -> None:
    """Also one that differs in one bit, as a leave, a renewal and an amendment."""
    held, standing = ana.joined()
    guess = bob.claim()
    guess.asked, guess.ticket = True, standing.ticket
    for bit in (0, 1, 7, 8, 63, 64, 120, 127):
        guess.id = (int.from_bytes(held.id, "big") ^ 1 << bit).to_bytes(16, "big")
        bob.leave(guess)
        assert bob.look(guess) is None
        bob.amend(guess, 0)
    for wrong in (b"", held.id[:15], held.id + b"\0", bytes(16), b"\xff" * 16):
        guess.id = wrong
        bob.leave(guess)
    assert ana.holders() == [standing.ticket]
    after = ana.look(held)
    assert after is not None
    assert after.holds


@on("aio")
async def test_tasks_of_one_thread_share_nothing(world: World) -> None:
    """One lock object, twenty tasks that also inherit each other's context: a token belongs to one of them."""
    client = world.client()
    lock = client.lock("a")
    inside: list[int] = []
    tokens: list[int] = []

    async def child() -> None:
        """Made inside of its parent's block, with a copy of its context."""
        assert not lock.owned()
        with pytest.raises(dibs.NotHeld):
            await lock.release()

    async def body() -> None:
        async with lock as hold:
            inside.append(hold.token)
            await asyncio.create_task(child())
            assert lock.owned()
            hold.check()
            assert inside == [hold.token]
            inside.remove(hold.token)
            tokens.append(hold.token)
        assert not lock.owned()

    await asyncio.gather(*(body() for _ in range(20)))
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 20


async def test_ids_are_not_in_what_an_error_tracker_records(world: World) -> None:
    """Such tools keep the variables of every frame of a traceback, by their repr."""
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.lock("a").acquire())
    waits = client.lock("a", timeout=3.0)
    pending = bob.start(waits.__enter__ if world.api == "blocking" else waits.__aenter__)
    secrets = set(await eventually(lambda: len(seen := ids(client)) == 2 and seen))
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await pending
    frames = traceback.TracebackException.from_exception(caught.value, capture_locals=True).stack
    ours = [frame.locals or {} for frame in frames if Path(dibs.__file__).parent in Path(frame.filename).parents]
    assert ours
    recorded = "".join(text for variables in ours for text in variables.values())
    recorded += "".join(repr(grant.claim) for grant in client._core.watchdog.renewing.values())
    assert len(secrets) == 2
    assert not [secret for secret in secrets if any(form in recorded for form in forms(secret))]
