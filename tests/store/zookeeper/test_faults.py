"""Faults of a real ensemble, judged by the lab: a node cut off, the leader killed. `scripts/soak zookeeper` has more.

The one that matters most: a node that is cut off from the others and not from its clients. It answers their pings for
syncLimit ticks, while the leader, who alone ends sessions, has long given their locks away. Whoever counts answered
pings as proof believes to hold beside the next holder; `Believer` is one, and shows that the trap was there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.session import Session
from dibs.testing.contract.harness import World
from lab.checkers import judge
from lab.history import History
from lab.servers.programs import require
from lab.servers.supervisor import Server, joint_url
from lab.servers.zookeeper_ensemble import Ensemble, owners, proxied
from lab.servers.zookeeper_session import Believer
from store.faults.kit import TIMEOUT, Relay, both_apis, eventually, give_up, usually_sync
from store.zookeeper.faulty import Witness, fresh_name

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper-ensemble"), pytest.mark.timeout(200)]
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
    """Whole at the beginning; whole again and without anything of the test at its end."""
    yield one_ensemble
    one_ensemble.mend()
    one_ensemble.settle()
    assert one_ensemble.left(within=60) == []


@pytest.fixture
def name() -> str:
    return fresh_name()


class Partition:
    """One holder at a node that is silenced, one waiter at the others, and a believer beside the holder."""

    def __init__(self, world: World, ensemble: Ensemble, name: str, node: Server) -> None:
        others = joint_url("zookeeper", [other for other in ensemble.nodes if other is not node])
        self.world, self.ensemble, self.name, self.node = world, ensemble, name, node
        self.near, self.far = world.client(node.url(), lease=LEASE), world.client(others, lease=LEASE)
        self.ana, self.bob = world.actors("ana", "bob")
        self.witness = Witness(world, name)
        self.believed = 0.0
        """Until when the believer thought to live."""

    async def play(self, silenced: Callable[[], bool]) -> tuple[Any, Any]:
        """Both holds: the one that is lost, and the one that the waiter gets. `silenced`: do it, once it is time."""
        hold = await self.ana(self.witness.take(self.near.lock(self.name)))
        pending = self.bob.start(self.witness.take(self.far.lock(self.name), timeout=TIMEOUT))
        await self.world.in_queue(self.far, self.name, 1)
        with Believer(self.node.port, LEASE) as believer:
            await eventually(self.witness.watching(lambda: believer.deadline))
            await eventually(self.witness.watching(silenced))
            await eventually(self.witness.watching(pending.done))
        self.believed = believer.deadline
        assert self.ensemble.lost(), "something was said that nobody heard"
        return hold, await pending

    def silence(self) -> bool:
        self.ensemble.silence(self.node)
        return True

    async def mend(self, hold: Any, won: Any) -> None:
        """Everybody goes on."""
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
    """The worst instant: the beat is answered, and the leader has not yet heard from the follower that we live."""
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
    line = {path: session for path, session in owners(ensemble.leader().ask("dump")).items() if f"/{name}/" in path}
    return line[min(line, key=lambda path: path[-10:])]


@pytest.mark.soak  # the trap is there for a second, which a busy machine may miss
@both_apis
async def test_a_holder_that_counts_pings_is_convicted(
    world: World, ensemble: Ensemble, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same trial for a holder whose beats the node answers by itself: it holds beside the next one."""
    monkeypatch.setattr(codec, "sync", lambda path: codec.children("/"))
    partition = Partition(world, ensemble, name, ensemble.followers()[0])
    _, won = await partition.play(partition.silence)
    assert partition.believed > partition.witness.granted(won), "whoever counts pings holds beside the next holder"
    verdict = judge(History(uses=partition.witness.uses), within=0)
    assert verdict.guilty["overlap"] == 1, "this is what the test above looks for"


@both_apis
async def test_the_leader_is_killed(world: World, ensemble: Ensemble, name: str) -> None:
    """The others elect, and take the sessions over. An election that outlasts the session is a loss, and no overlap."""
    relay = Relay(world, name, ensemble.url, LONGEST)
    await relay.begin()
    await asyncio.to_thread(ensemble.kill, ensemble.leader())
    await asyncio.to_thread(ensemble.leader)
    await give_up(relay.witness, relay.ana, relay.hold)
    won = await relay.pending
    await give_up(relay.witness, relay.bob, won)
    await world.free(relay.other, name)
    relay.witness.acquit()
