"""An operator of a quorum, on the simulator."""

from __future__ import annotations

import pytest

from dibs.core.kinds.lock import Lock
from dibs.core.kinds.options import Options
from dibs.errors import LockLost, NotHeld, StoreUnavailable
from sim.quorum import LEASE, World


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
