"""The steps that fault tests of all stores share, beside lab.witness.

`Relay` is the usual scene: ana holds and bob waits behind her. Whatever happens meanwhile, he gets the lock from her
in the end, in his place in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.core.deadline import WAITING_LEASE
from dibs.testing.contract import harness
from dibs.testing.contract.harness import Pending, World
from lab.surface import clock
from lab.witness import Witness, apis_of

PATIENCE = 60.0
"""Seconds that a condition may take to come true; no test measures them."""
LONG = 60.0
"""A lease that does not run out in any test."""
SHORT = 5.0
"""A lease that runs out: its end is the subject."""
RENEWED = 12.0
"""A lease whose renewals are waited for: every 4 s, with 8 s to spare on a machine that stands still."""
TIMEOUT = 50.0
"""The timeout of an acquire that must succeed."""
both_apis = apis_of("redis", "redis://127.0.0.1:1")
"""Sync and async API; each client is told its URL, whatever the store."""


def usually_sync(test: Any) -> Any:
    """As `both_apis`, with the async API in the soak only: for tests of the server's part, or of shared code."""
    run: Any = both_apis(test)
    run.pytestmark = [mark for mark in run.pytestmark if mark.args[:1] != ("api",)]
    return pytest.mark.parametrize("api", ["blocking", pytest.param("aio", marks=pytest.mark.soak)])(run)


async def eventually(condition: Callable[[], Any], within: float = PATIENCE) -> Any:
    return await harness.eventually(condition, within=within)


async def warm(world: World, client: Any, name: str) -> None:
    """Connect, subscribe, and let the server learn our routines: what follows is the claim's own messages."""
    ana, bob = world.actors("warmer", "other warmer")
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    waiting = bob.start(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    await world.in_queue(client, name, 1)
    await ana(hold.release)
    await bob((await waiting).release)


async def alone(world: World, client: Any, name: str, hold: Any) -> None:
    """It holds, is the only claim on that name, and its own deadline is not after the store's."""
    deadline = clock() + hold.remaining
    info = await world.inspect(client, name)
    (holder,) = info.holders
    assert (holder.token, info.waiters) == (hold.token, ())
    assert holder.remaining is None or deadline <= clock() + holder.remaining


async def passes(witness: Witness, seconds: float) -> None:
    """A length of time is the condition: all holds are looked at meanwhile."""
    end = clock() + seconds
    await eventually(witness.watching(lambda: clock() >= end))


async def renewed(witness: Witness, hold: Any, lease: float) -> None:
    """Until the watchdog has renewed it once more. `check` raises if it is lost: its time left is 0 then, and the clock
    alone would pass for a renewal."""
    before = clock() + hold.remaining
    await eventually(witness.watching(lambda: hold.check() or clock() + hold.remaining > before + lease / 10))


async def give_up(witness: Witness, actor: Any, hold: Any) -> None:
    """Release, where a loss or a silent server on the way is no surprise."""
    with suppress(dibs.LockLost, dibs.StoreUnavailable):
        await actor(witness.give(hold))


def in_its_place(won: Any, waiter: dibs.Participant, begun: float) -> bool:
    """It kept its place; or the fault took so long, from `begun` on, that its waiting claim may have expired."""
    return won.token == waiter.token or (won.token > waiter.token and clock() - begun > WAITING_LEASE / 2)


def why_lost(hold: Any) -> str:
    """The reason, which the hold and the error must agree on."""
    with pytest.raises(dibs.LockLost) as caught:
        hold.check()
    assert caught.value.reason == hold.lost_reason
    assert caught.value.reason is not None
    return caught.value.reason


class Relay:
    """`waiter_url`: where bob goes, if not where ana does."""

    def __init__(self, world: World, name: str, url: str, lease: float = LONG, waiter_url: str = "") -> None:
        self._world, self._name = world, name
        self.client = world.client(url, lease=lease, retry=TIMEOUT)
        self.other = world.client(waiter_url or url, lease=lease, retry=TIMEOUT)
        self.ana, self.bob = world.actors("ana", "bob")
        self.witness = Witness(world, name)
        self.lost: list[Any] = []

    async def begin(self) -> None:
        """She takes it, and bob joins the queue behind her."""
        self.hold = await self.ana(self.witness.take(self.client.lock(self._name, on_lost=self.lost.append)))
        await self.wait()

    async def wait(self) -> None:
        """Bob joins the queue behind her."""
        self.pending: Pending = self.bob.start(self.witness.take(self.other.lock(self._name), timeout=TIMEOUT))

        async def waits() -> bool:
            self.waiters = (await self._world.inspect(self.other, self._name)).waiters
            return bool(self.waiters) or self.pending.done()

        await eventually(self.witness.watching(waits))
        self.now()

    @property
    def waiter(self) -> dibs.Participant:
        (waiter,) = self.waiters
        return waiter

    def now(self) -> None:
        """The fault happens from now on."""
        self._begun = clock()

    async def end(self) -> None:
        """Ana still holds; she releases, and bob gets it."""
        self.hold.check()
        assert (self.lost, self.pending.done()) == ([], False)
        await self.ana(self.witness.give(self.hold))
        await self.end_given()

    async def end_given(self) -> None:
        """She has released; bob gets it."""
        won = await self.pending
        assert in_its_place(won, self.waiter, self._begun)
        await self._finish(won)

    async def end_lost(self, *, early: bool = False) -> None:
        """Ana has lost it before bob gets it: by her own clock, or, `early`, because she was told so."""
        await eventually(self.witness.watching(self.pending.done))
        won = await self.pending
        assert self.hold.lost.is_set()
        assert won.token > self.hold.token
        await give_up(self.witness, self.ana, self.hold)
        with suppress(dibs.LockLost):  # a short lease, on a machine that stands still
            won.check()
            holders = (await self._world.inspect(self.other, self._name)).holders
            assert [holder.token for holder in holders] in ([won.token], []), "a late release frees nobody else's"
        await self._finish(won, {"taken"} if early else set())

    async def _finish(self, won: Any, allowed: Collection[str] = ()) -> None:
        await give_up(self.witness, self.bob, won)
        await self._world.free(self.other, self._name)
        verdict = self.witness.verdict()
        assert {one.kind for one in verdict.violations} <= set(allowed), verdict.text()
