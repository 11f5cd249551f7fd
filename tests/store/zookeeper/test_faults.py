"""Faults of a real ensemble, judged by the lab: a node cut off, the leader killed. `scripts/soak zookeeper` has more.

The most important fault: a node is cut off from the others, but not from its clients. It answers their pings for
syncLimit ticks, although the leader has ended their sessions and others hold their locks. A client that counts answered
pings would hold beside the next holder.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.backends.zookeeper.wire.session import Session
from dibs.testing.contract.harness import World
from lab.servers.programs import require
from lab.servers.supervisor import Server, joint_url
from lab.servers.zookeeper_ensemble import Ensemble, owners, proxied
from lab.witness import Witness
from store.faults.kit import TIMEOUT, Relay, both_apis, eventually, give_up, usually_sync

pytestmark = [
    pytest.mark.gate,
    pytest.mark.slow,
    pytest.mark.xdist_group("zookeeper-ensemble"),
    pytest.mark.timeout(200),
]
LEASE = 1.5
"""Shorter than a silenced follower serves on, or there would be no trap."""
LONGEST = 6.0
"""Twenty ticks of the ensemble."""


@pytest.fixture(scope="module")
def one_ensemble() -> Iterator[Ensemble]:
    require("zookeeper")
    with proxied() as made:
        yield made


@pytest.fixture
def ensemble(one_ensemble: Ensemble) -> Iterator[Ensemble]:
    yield one_ensemble
    one_ensemble.mend()
    one_ensemble.settle()
    assert one_ensemble.left(within=60) == []


class Partition:
    """A holder at a node that is silenced, and a waiter at the others."""

    def __init__(self, world: World, ensemble: Ensemble, name: str, node: Server) -> None:
        others = joint_url("zookeeper", [other for other in ensemble.nodes if other is not node])
        self.world, self.ensemble, self.name, self.node = world, ensemble, name, node
        self.near, self.far = world.client(node.url(), lease=LEASE), world.client(others, lease=LEASE)
        self.ana, self.bob = world.actors("ana", "bob")
        self.witness = Witness(world, name)

    async def play(self, silenced: Callable[[], bool]) -> tuple[Any, Any]:
        """Both holds: the lost one, and that of the waiter. `silenced` silences the node once it is time."""
        hold = await self.ana(self.witness.take(self.near.lock(self.name)))
        pending = self.bob.start(self.witness.take(self.far.lock(self.name), timeout=TIMEOUT))
        await self.world.in_queue(self.far, self.name, 1)
        await eventually(self.witness.watching(silenced))
        await eventually(self.witness.watching(pending.done))
        assert self.ensemble.lost(), "messages were dropped"
        return hold, await pending

    def silence(self) -> bool:
        self.ensemble.silence(self.node)
        return True

    async def mend(self, hold: Any, won: Any) -> None:
        assert hold.lost.is_set()
        assert won.token > hold.token
        self.ensemble.mend()
        await eventually(self.witness.watching(lambda: won.lost.is_set() or won.remaining > LEASE / 2))
        with pytest.raises(dibs.LockLost):
            await self.ana(self.witness.give(hold))
        with suppress(dibs.LockLost):  # by its own clock, on a machine that others use too
            await self.bob(self.witness.give(won))
        again = await self.ana(self.witness.take(self.near.lock(self.name), timeout=TIMEOUT))
        await self.ana(self.witness.give(again))


@pytest.mark.parametrize("role", ["follower", "leader"])
@usually_sync
async def test_a_node_is_cut_off_from_the_others_and_its_client_is_not(
    world: World, ensemble: Ensemble, name: str, role: str
) -> None:
    node = ensemble.leader() if role == "leader" else ensemble.followers()[0]
    partition = Partition(world, ensemble, name, node)
    hold, won = await partition.play(partition.silence)
    await partition.mend(hold, won)
    partition.witness.acquit()


@usually_sync
async def test_a_follower_is_cut_off_right_after_it_answered(
    world: World, ensemble: Ensemble, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst instant: the heartbeat is answered, but the leader has not yet received the follower's report."""
    partition = Partition(world, ensemble, name, ensemble.followers()[0])
    holders: list[int] = []
    cut = threading.Event()
    beaten = Session.beaten

    def beaten_and_cut(session: Session, sent_at: float) -> None:
        beaten(session, sent_at)
        if session.id in holders and not cut.is_set():
            partition.silence()
            cut.set()

    def silenced() -> bool:
        if not holders:
            holders.append(first_in_queue(ensemble, name))
        return cut.is_set()

    monkeypatch.setattr(Session, "beaten", beaten_and_cut)
    hold, won = await partition.play(silenced)
    await partition.mend(hold, won)
    partition.witness.acquit()


def first_in_queue(ensemble: Ensemble, name: str) -> int:
    """The session that holds."""
    queue = {path: session for path, session in owners(ensemble.leader().ask("dump")).items() if f"/{name}/" in path}
    return queue[min(queue, key=lambda path: path[-10:])]


@both_apis
async def test_the_leader_is_killed(world: World, ensemble: Ensemble, name: str) -> None:
    """The others elect a leader and keep the sessions. If that takes too long, the hold is lost, without an overlap."""
    relay = Relay(world, name, ensemble.url, LONGEST)
    await relay.begin()
    await asyncio.to_thread(ensemble.kill, ensemble.leader())
    await asyncio.to_thread(ensemble.leader)
    await give_up(relay.witness, relay.ana, relay.hold)
    won = await relay.pending
    await give_up(relay.witness, relay.bob, won)
    await world.free(relay.other, name)
    relay.witness.acquit()
