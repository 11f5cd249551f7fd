"""The directory of a lock: the server removes it while it is idle, or its counter is near its end.

The numbers of children have 32 bits; after the last one all children get the same number. An idle directory is
recreated long before that, and a busy one refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kazoo.client import KazooClient

import dibs
from dibs.backends.zookeeper.queue_rule import LEASES_NODE, LOCKS_NODE
from dibs.testing.contract.harness import Actor, World
from dibs.testing.contract.worlds import MUTEXES
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left
from lab.servers.zookeeper_log import raise_counter
from lab.witness import Witness
from store.faults.kit import eventually, usually_sync
from store.zookeeper.faulty import directory, operate

pytestmark = [pytest.mark.gate, pytest.mark.timeout(150)]
LEASE = 60.0
"""Sessions outlive a restart of the server on a busy machine."""
TIME_OUT = 50.0
HIGH, NEAR_ITS_END, AT_ITS_END = 2**30 + 5, 2**31 - 2**20 + 5, 2**31 - 5
"""Counters that need a new directory, that must stop a claim, and that are nearly used up."""
FOREIGN = {
    kind: f"_c_00000000-0000-4000-8000-000000000000-{word}0000000000"
    for kind, word in {"lock": "lock-", "write": "__WRIT__", "semaphore": "lock-"}.items()
}
"""A node of another program that is first in the queue."""
KINDS = pytest.mark.parametrize("kind", ["lock", "semaphore"])


def removing_containers(every_ms: int) -> Server:
    require("zookeeper")
    longest = f"maxSessionTimeout={LEASE * 1000:.0f}"
    return Server(ZooKeeper(longest, tick_ms=300, java=[f"-Dznode.container.checkIntervalMs={every_ms}"]))


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    """It leaves idle containers alone: only dibs recreates them."""
    with removing_containers(every_ms=3_600_000) as server:
        yield server


@pytest.fixture(scope="module")
def reaper() -> Iterator[Server]:
    """It removes idle containers all the time, not once a minute."""
    with removing_containers(every_ms=20) as server:
        yield server


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    yield one_server
    assert left(one_server, within=LEASE / 2) == []


@KINDS
@usually_sync
async def test_a_directory_removed_between_two_uses(world: World, reaper: Server, name: str, kind: str) -> None:
    client, other = world.client(reaper.url(), lease=LEASE), world.client(reaper.url(), lease=LEASE)
    ana, witness = world.actor("ana"), Witness(world, name)
    for one in (client, other, client):
        await use(ana, witness, MUTEXES[kind](one, name))
        await eventually(lambda: not operate(reaper, lambda kazoo: kazoo.exists(directory(name))))
    assert len({use.token for use in witness.uses}) == 3, "numbers restart, tokens rise"
    witness.acquit()


@KINDS
@usually_sync
async def test_a_directory_removed_all_the_time(world: World, reaper: Server, name: str, kind: str) -> None:
    """It may disappear between any two requests, without an event."""
    witness = Witness(world, name)

    async def turns(who: str) -> None:
        actor, client = world.actor(who), world.client(reaper.url(), lease=LEASE)
        for _ in range(6):
            await use(actor, witness, MUTEXES[kind](client, name))

    await asyncio.gather(turns("ana"), turns("bob"))
    assert len(witness.uses) == 12
    witness.acquit()


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("lock", ""),
        pytest.param("write", "", marks=pytest.mark.soak),
        pytest.param("semaphore", f"/{LOCKS_NODE}", marks=pytest.mark.soak),
        ("semaphore", f"/{LEASES_NODE}"),
    ],
)  # each restarts the server
@usually_sync
async def test_an_idle_directory_with_a_high_counter_is_recreated(
    world: World, server: Server, name: str, kind: str, place: str
) -> None:
    """By the last claim that leaves it, long before the server removes empty ones."""
    client, ana = world.client(server.url(), lease=LEASE), world.actor("ana")
    mutex, where, witness = MUTEXES[kind](client, name), directory(name) + place, Witness(world, name)
    await use(ana, witness, mutex)
    await asyncio.to_thread(lambda: raise_counter(server, where, HIGH))

    async def anew() -> bool:
        await use(ana, witness, mutex)
        return next_number(server, where) < 1000

    await eventually(anew)
    witness.acquit()


@usually_sync
async def test_a_busy_directory_with_a_high_counter_still_serves(world: World, server: Server, name: str) -> None:
    """A thousand million numbers are left: it is recreated once it is idle, and not before."""
    client, other = (world.client(server.url(), lease=LEASE) for _ in range(2))
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await asyncio.to_thread(lambda: raise_counter(server, directory(name), HIGH))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_queue(client, name, 1)
    assert sorted(int(child[-10:]) for child in children(server, directory(name))) == [0, HIGH]
    await ana(witness.give(hold))
    won = await pending
    await bob(witness.give(won))
    witness.acquit()


@pytest.mark.parametrize(
    ("kind", "place", "number"),
    [
        pytest.param("lock", "", NEAR_ITS_END, marks=pytest.mark.soak),
        ("lock", "", AT_ITS_END),
        pytest.param("write", "", NEAR_ITS_END, marks=pytest.mark.soak),
        ("semaphore", f"/{LOCKS_NODE}", NEAR_ITS_END),
    ],
)
@usually_sync
async def test_a_busy_directory_near_its_end_refuses(
    world: World, server: Server, name: str, kind: str, place: str, number: int
) -> None:
    client, ana = world.client(server.url(), lease=LEASE), world.actor("ana")
    where, mutex = directory(name) + place, MUTEXES[kind](client, name)
    hold = await ana(mutex.acquire)
    await ana(hold.release)
    operate(server, lambda kazoo: kazoo.create(f"{where}/{FOREIGN[kind]}", b"another program"))
    await asyncio.to_thread(lambda: raise_counter(server, where, number))
    with pytest.raises(dibs.StoreError, match=name) as refused:
        await ana(lambda: mutex.acquire(timeout=TIME_OUT))
    assert not isinstance(refused.value, dibs.StoreUnavailable), "a retry changes nothing"
    assert "Next: " in str(refused.value)
    await eventually(lambda: children(server, where) == [FOREIGN[kind]])
    operate(server, lambda kazoo: kazoo.delete(f"{where}/{FOREIGN[kind]}"))

    async def works_again() -> bool:
        with suppress(dibs.StoreError):
            await use(ana, Witness(world, name), mutex)
            return True
        return False

    await eventually(works_again)
    assert next_number(server, where) < 1000, "it was recreated"


async def use(actor: Actor, witness: Witness, mutex: Any) -> None:
    hold = await actor(witness.take(mutex, timeout=TIME_OUT))
    await actor(witness.give(hold))


def children(server: Server, path: str) -> list[str]:
    return operate(server, lambda kazoo: list(kazoo.get_children(path))) or []


def next_number(server: Server, path: str) -> int:
    """The number of the next child; 0: the directory is being removed."""

    def probe(kazoo: KazooClient) -> int:
        made: str = kazoo.create(f"{path}/%probe-", sequence=True)
        kazoo.delete(made)
        return int(made[-10:])

    return operate(server, probe) or 0
