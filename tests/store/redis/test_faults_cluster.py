"""Faults of a real cluster: a primary dies under load, a slot moves from one node to another while clients use names in
it, a whole shard is gone, one shard is silent while the others are not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.checkers import judge
from lab.crowd import Crowd
from lab.faults import BlackHole
from lab.proxy import UP
from lab.servers import ports
from lab.servers.programs import Refused, require
from lab.servers.redis_groups import cluster, in_step, role
from lab.servers.supervisor import Server, joint_url, until
from lab.servers.ways import Ways
from lab.surface import clock
from lab.witness import Witness, fresh_name
from store.faults.kit import (
    LONG,
    RENEWED,
    SHORT,
    TIMEOUT,
    Relay,
    eventually,
    renewed,
    usually_sync,
)
from store.redis.faulty import in_slots, key_of, left, loaded, slot_of, slots, specs

pytestmark = [pytest.mark.early, pytest.mark.slow, pytest.mark.timeout(200)]
LEASE = 4.0
WITHIN = 60.0
TIMES = 10


class Nodes:
    """Three primaries and a replica of each, which change places."""

    def __init__(self, servers: tuple[Server, ...]) -> None:
        self.all = servers
        self.url = joint_url("redis+cluster", servers)

    def primaries(self) -> list[Server]:
        return sorted((node for node in self.running() if slots(node)), key=lambda node: min(slots(node)))

    def running(self) -> list[Server]:
        return [node for node in self.all if node.running()]

    def replica_of(self, primary: Server) -> Server | None:
        source = primary.ask("CLUSTER", "MYID")
        for line in primary.ask("CLUSTER", "NODES").splitlines():
            if f"slave {source}" in line:
                port = int(line.split()[1].partition("@")[0].rpartition(":")[2])
                return next(node for node in self.all if node.port == port)
        return None

    def mend(self) -> None:
        """All run; every slot is served, by three, and each has a replica in step."""
        for node in self.all:
            if not node.running():
                node.start()
        until(self._whole, what="the cluster is whole")

    def _whole(self) -> bool:
        primaries = self.primaries()
        return (
            all("cluster_state:ok" in node.ask("CLUSTER", "INFO") for node in self.all)
            and len(primaries) == 3
            and all(
                replica is not None and in_step(primary, (replica,))
                for primary in primaries
                for replica in [self.replica_of(primary)]
            )
        )


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[Nodes]:
    require("redis")
    with cluster(persist="always") as servers:
        yield Nodes(servers)


@pytest.fixture
def nodes(one_cluster: Nodes) -> Iterator[Nodes]:
    yield one_cluster
    one_cluster.mend()


@usually_sync
async def test_a_hold_survives_its_primary(world: World, nodes: Nodes) -> None:
    """It was copied: it is renewed and released at the promoted replica, and the waiter keeps its place."""
    primary, *_ = await asyncio.to_thread(nodes.primaries)
    replica = nodes.replica_of(primary)
    assert replica is not None
    relay = Relay(world, in_slots(slots(primary), fresh_name()), nodes.url)
    await relay.begin()
    await asyncio.to_thread(until, lambda: in_step(primary, (replica,)), what="it is copied")
    primary.kill()
    await asyncio.to_thread(until, lambda: role(replica) == "master", what="a fail-over")
    await relay.end()


@pytest.mark.soak  # a crowd
def test_a_slot_moves_under_load(nodes: Nodes, tmp_path: Path) -> None:
    """Names that exist and names that do not: asked for where they were, redirected by ASK, then by MOVED."""
    source, target, _ = nodes.primaries()
    stem = in_slots(slots(source), fresh_name(), "{{{}}}")
    names = [f"{stem}{letter}" for letter in "abcd"]
    slot = slot_of(names[0])
    assert {slot_of(name) for name in names} == {slot}
    before = redirections(source)
    with Crowd(specs(nodes.url, tmp_path, LEASE, names=names)) as crowd:
        loaded(crowd)
        begin_move(source, target, slot)
        loaded(crowd)
        for key in source.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "100").splitlines():
            source.ask("MIGRATE", ports.HOST, str(target.port), key, "0", "5000")
            loaded(crowd, 10)
        late = f"{stem}late"
        with dibs.connect(nodes.url) as client:
            hold = client.lock(late).acquire(timeout=TIMEOUT)
            assert hold is not None
            there = target.ask("CLUSTER", "GETKEYSINSLOT", str(slot), "100").splitlines()
            assert key_of(late) in there, "asked for at the source, made at the target"
            hold.release()
        end_move(nodes, target, slot)
        loaded(crowd)
        crowd.heal()
        crowd.quiet(WITHIN)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    after = redirections(source)
    assert all(after[code] > before[code] for code in ("ASK", "MOVED")), (before, after)
    verdict = judge(history, within=WITHIN, fenced=fenced, left=left(nodes.url))
    print(f"figure: a slot moved: {history.hand_overs} hand-overs, {after['ASK'] - before['ASK']} times ASK")
    assert not verdict.violations, verdict.text()


def begin_move(source: Server, target: Server, slot: int) -> None:
    target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.ask("CLUSTER", "MYID"))
    source.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.ask("CLUSTER", "MYID"))


def end_move(nodes: Nodes, target: Server, slot: int) -> None:
    owner = target.ask("CLUSTER", "MYID")
    for node in [target, *(node for node in nodes.primaries() if node is not target)]:
        node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner)


def redirections(node: Server) -> dict[str, int]:
    """How often it sent somebody elsewhere."""
    told = node.ask("INFO", "errorstats").splitlines()
    counts = {
        line.split(":")[0].removeprefix("errorstat_"): int(line.rpartition("=")[2]) for line in told if "=" in line
    }
    return {code: counts.get(code, 0) for code in ("ASK", "MOVED")}


@usually_sync
async def test_a_hold_moves_with_its_slot(world: World, nodes: Nodes) -> None:
    """Its record goes to another node; it is renewed there, its waiter keeps its place, and it is released there. A
    new name in that slot is redirected to the target while the slot moves."""
    source, target, _ = await asyncio.to_thread(nodes.primaries)
    name = in_slots(slots(source), fresh_name(), "{{{}}}")
    relay = Relay(world, name, nodes.url, RENEWED)
    await relay.begin()
    begin_move(source, target, slot_of(name))
    source.ask("MIGRATE", ports.HOST, str(target.port), key_of(name), "0", "5000")
    await renewed(relay.witness, relay.hold, RENEWED)
    eve = world.actor("eve")
    late = await eve(lambda: relay.client.lock(f"{name}late").acquire(timeout=TIMEOUT))
    there = target.ask("CLUSTER", "GETKEYSINSLOT", str(slot_of(name)), "100").splitlines()
    assert key_of(f"{name}late") in there, "asked for at the source, made at the target"
    end_move(nodes, target, slot_of(name))
    await renewed(relay.witness, relay.hold, RENEWED)
    await eve(late.release)
    await relay.end()
    client, ana = relay.client, relay.ana
    before = redirections(source)["MOVED"]
    for _ in range(TIMES):
        again = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
        await ana(again.release)
    assert redirections(source)["MOVED"] - before < TIMES, "it is asked for where it is"


@usually_sync
async def test_a_whole_shard_is_gone(world: World, nodes: Nodes) -> None:
    """The cluster serves nobody then: refused within the deadline; and granted once it is whole again."""
    first, second, _ = await asyncio.to_thread(nodes.primaries)
    name = in_slots(slots(second), fresh_name())
    client, ana, bob = world.client(nodes.url, lease=LONG), *world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    await ana(hold.release)
    replica = nodes.replica_of(first)
    assert replica is not None
    for node in (replica, first):
        node.kill()
    await eventually(lambda: says(second, "CLUSTERDOWN", key_of(name)))
    with pytest.raises(dibs.StoreUnavailable, match=f'"{name}" on redis.cluster://.*CLUSTERDOWN'):
        await ana(lambda: client.lock(name).acquire(timeout=1))
    pending = bob.start(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    await asyncio.to_thread(nodes.mend)
    won = await pending
    await bob(won.release)


def says(node: Server, code: str, key: str) -> bool:
    try:
        node.ask("GET", key)
    except Refused as error:
        return code in str(error)
    return False


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Ways, tuple[Server, ...]]]:
    require("redis")
    with Ways() as ways, cluster(primaries=2, through=ways) as servers:
        yield ways, servers


@usually_sync
async def test_one_shard_is_silent(world: World, proxied: tuple[Ways, tuple[Server, ...]]) -> None:
    """Its holds are lost by their own clock. The others' are renewed as ever, taken and given back."""
    lease, (ways, (silent, other, *_)) = 2 * SHORT, proxied
    url = joint_url("redis+cluster", (silent, other), through=ways)
    client, actors = world.client(url, lease=lease), world.actors("ana", "bob")
    names = [in_slots(slots(node), fresh_name()) for node in (silent, other)]
    witnesses = [Witness(world, name) for name in names]
    there, here = [
        await actor(witness.take(client.lock(witness.name), timeout=TIMEOUT))
        for actor, witness in zip(actors, witnesses, strict=True)
    ]
    way = ways.to(silent.port)
    way.add(BlackHole())
    begun = clock()
    try:
        await eventually(watching(witnesses, there.lost.is_set))
        await eventually(watching(witnesses, lambda: clock() > begun + 2 * lease))
        assert way.total(UP, "dropped")[1] > 0
        here.check()
        assert here.remaining > lease / 4
        fresh = in_slots(slots(other), fresh_name())
        for _ in range(3):
            hold = await actors[1](lambda: client.lock(fresh).acquire(timeout=TIMEOUT))
            await actors[1](hold.release)
        here.check()
    finally:
        way.heal()
    await actors[1](witnesses[1].give(here))
    with pytest.raises(dibs.LockLost):
        await actors[0](witnesses[0].give(there))
    again = await actors[0](witnesses[0].take(client.lock(names[0]), timeout=TIMEOUT))
    await actors[0](witnesses[0].give(again))
    for witness in witnesses:
        witness.acquit()


def watching(witnesses: list[Witness], condition: Any) -> Any:
    for witness in witnesses:
        condition = witness.watching(condition)
    return condition
