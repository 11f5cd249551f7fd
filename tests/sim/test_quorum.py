"""The simulator over a quorum: nothing is violated; and without any one safeguard something is, soon."""

from __future__ import annotations

import os
import secrets
from collections import Counter

import pytest

from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.errors import LockLost, NotHeld, StoreUnavailable
from sim.quorum import BROKEN, LEASE, World, broken, find, run

WITHIN = 600
FROM = {
    "validity from before round one": 1_146,
    "round two looks before it stamps": 1_014,
    "restart guard": 1_012,
    "margin": 1_075,
}
"""Where the search begins; the rarest violation shows in about one schedule of a hundred."""
FAULTS = {"lost", "late", "twice", "stop", "stall", "lose", "die", "break"}


def check(first: int, count: int) -> None:
    found = find(first, count)
    assert found is None, f"{found[1]}; replay: python tests/sim/quorum.py {found[0]}"


def test_first_schedules() -> None:
    """A seed gives the same steps again, and every fault happens."""
    outcomes = [run(seed, trace=True) for seed in range(16)]
    assert run(8, trace=True).trace == outcomes[8].trace
    happened = Counter(kind for outcome in outcomes for kind in outcome.happened)
    assert set(happened) == FAULTS
    assert min(outcome.handed for outcome in outcomes) >= 12


@pytest.mark.early
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("first", "count"), [(16, 50), pytest.param(66, 50, marks=pytest.mark.soak)])
def test_known_schedules(first: int, count: int) -> None:
    check(first, count)


def test_fresh_schedules() -> None:
    check(int(os.environ.get("DIBS_SIM_SEED") or secrets.randbelow(2**40)), 20)


@pytest.mark.parametrize("safeguard", BROKEN)
def test_the_simulator_finds_what_is_broken(safeguard: str) -> None:
    with broken(safeguard):
        found = find(FROM.get(safeguard, 1_000), WITHIN)
    assert found is not None, f"{WITHIN} schedules without «{safeguard}» and nothing was found"
    assert found[1].__cause__ is None, f"the twin itself fails: {found[1]}"
    check(found[0], 1)  # with the safeguard, this schedule violates nothing


def test_an_operator_looks_asks_and_breaks() -> None:
    """Without faults, and then with as many members silent as may be, and one more."""
    world, done = World(1, seats=0), list[bool]()
    (ana, here), (bob, _) = world.process(), world.process()
    lock, other = (Lock(client, "x", Options(lease=LEASE)) for client in (ana, bob))

    async def holds() -> None:
        hold = lock.begin()
        assert await lock.acquire(hold)
        assert not await other.acquire(other.begin(0))
        (holder,) = (await bob.inspect("x")).holders
        assert holder.token == hold.token
        assert [info.name for info in (await bob.page("", ""))[0]] == ["x"]
        assert (await bob.page("y", ""))[0] == []
        assert (await bob.identity()) == (await ana.identity()) != ""
        await other.revoke()
        await ana.runtime.sleep(LEASE)
        assert hold.grant.revoke_seen
        assert not hold.is_lost()
        for member in world.members[: world.spare]:
            member.node.pause()
        await ana.runtime.sleep(3 * LEASE)
        assert (await bob.inspect("x")).holders[0].token == holder.token
        assert not hold.is_lost(), "a majority renews it"
        await bob.break_("x", holder.token)
        await ana.runtime.sleep(LEASE)
        assert hold.is_lost()
        with pytest.raises(LockLost):
            await lock.release(hold)
        again = other.begin()
        assert await other.acquire(again)
        assert again.token > holder.token
        with pytest.raises(NotHeld):
            await ana.break_("x", again.token + 1)
        await other.release(again)
        assert not (await ana.inspect("x")).holders
        for member in world.members[: world.spare]:
            member.node.resume()
        await ana.runtime.sleep(2 * LEASE)
        third = other.begin()
        assert await other.acquire(third)
        await ana.break_("x", third.token)
        with pytest.raises(LockLost):
            await other.release(third)
        for member in world.members[: world.spare + 1]:
            member.node.pause()
        with pytest.raises(StoreUnavailable, match=f"{world.spare} of {len(world.members)} members"):
            await other.acquire(other.begin(1.0))
        done.append(True)

    world.sim.start(here, "user", holds())
    assert world.sim.run(lambda: bool(done), 60.0, lambda: None)
    world.sim.bury()
