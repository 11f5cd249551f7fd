"""Faults of a real cluster: a primary dies, a slot with a hold moves, a whole shard is gone, or one shard is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.faults import BlackHole
from lab.proxy import UP
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis_groups import cluster, in_step, role
from lab.servers.supervisor import Server, joint_url, until
from lab.servers.ways import Ways
from lab.surface import clock
from lab.witness import Witness, fresh_name
from store.faults.kit import RENEWED, SHORT, TIMEOUT, Relay, eventually, renewed, usually_sync
from store.redis.kit import errors, in_slots, key_of, slot_of, slots

pytestmark = [pytest.mark.gate, pytest.mark.early, pytest.mark.slow, pytest.mark.timeout(200)]
TIMES = 10


class Nodes:
    """Three primaries and a replica of each; they change places."""

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


def begin_move(source: Server, target: Server, slot: int) -> None:
    target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.ask("CLUSTER", "MYID"))
    source.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.ask("CLUSTER", "MYID"))


def end_move(nodes: Nodes, target: Server, slot: int) -> None:
    owner = target.ask("CLUSTER", "MYID")
    for node in [target, *(node for node in nodes.primaries() if node is not target)]:
        node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner)


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
    before = errors(source, "MOVED")
    for _ in range(TIMES):
        again = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
        await ana(again.release)
    assert errors(source, "MOVED") - before < TIMES, "it is asked for where it is"


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[Ways, tuple[Server, ...]]]:
    require("redis")
    with Ways() as ways, cluster(primaries=2, through=ways) as servers:
        yield ways, servers


@usually_sync
async def test_one_shard_is_silent(world: World, proxied: tuple[Ways, tuple[Server, ...]]) -> None:
    """Its holds are lost by their own clock. Those of the other shard are renewed."""
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
