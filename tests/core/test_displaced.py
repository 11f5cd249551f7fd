"""A hold that the store puts behind another is lost at its next renewal, though the claim stands; what a renewal said
that was asked while the claim still waited loses nothing."""

from __future__ import annotations

from copy import copy
from itertools import count
from typing import Any

import pytest

import dibs
from dibs.core.queue import QUEUE
from dibs.runtime.threads import step
from dibs.testing.contract.harness import World, eventually
from lab.witness import apis_of
from process.children import until

both_apis = apis_of("memory", "memory://nowhere")
LEASE = 4.0
LONG = 60.0
PATIENCE = 15.0
_numbers = count(1)


@pytest.fixture
def url() -> str:
    return f"memory://displaced-{next(_numbers)}"


@both_apis
async def test_a_hold_behind_another_is_lost(world: World, url: str) -> None:
    """Somebody broke it, another one has it; then a late copy of its join stands there again, and is even renewed."""
    first, second = world.client(url, lease=LEASE), world.client(url, lease=LONG)
    ana, bob = world.actors("ana", "bob")
    lost: list[Any] = []
    hold = await ana(lambda: first.lock("a", on_lost=lost.append).acquire())
    late = copy(hold._core.grant.claim)
    await bob(lambda: second.break_("a", token=hold.token))
    theirs = await bob(lambda: second.lock("a").acquire(timeout=PATIENCE))
    watchdog = second._core.watchdog._open_for_renewals()
    standing = step(watchdog._queue.join(late, QUEUE, second._core.now() + PATIENCE))
    assert standing is not None
    assert not standing.holds, "it stands, and behind the other"
    await eventually(lambda: hold.lost.is_set() and lost)
    await world.in_queue(second, "a", 0)
    theirs.check()
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    await bob(theirs.release)


@both_apis
async def test_what_was_said_of_a_waiter_does_not_end_its_hold(world: World, url: str) -> None:
    """The renewal was sent while it waited; the grant came by a message; then the answer arrives."""
    first, second = world.client(url, lease=LEASE), world.client(url, lease=LONG)
    ana, bob = world.actors("ana", "bob")
    theirs = await bob(lambda: second.lock("a").acquire())
    watchdog = first._core.watchdog
    grantor = watchdog._open_for_renewals()
    usual, said = grantor.renew, []

    async def renew(grants: Any, end: float) -> Any:
        """In the watchdog's own thread."""
        standings = await usual(grants, end)
        said.extend(standings)
        if len(said) == 1:
            until(pending.done, PATIENCE, "it was granted")
        return standings

    grantor.renew = renew
    pending = ana.start(lambda: first.lock("a").acquire(timeout=PATIENCE))
    await eventually(lambda: said)
    await bob(theirs.release)
    hold = await pending
    await eventually(lambda: len(said) > 1 and hold.remaining > LEASE / 2)
    assert [standing.holds for standing in said[:2]] == [False, True]
    hold.check()
    await ana(hold.release)
