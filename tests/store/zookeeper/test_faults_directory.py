"""The directory of a lock: taken away by the server while nobody needs it, and its counter near its end.

Numbers of children are 32 bits long; past them the server gives everybody the same one (seen in the lab's own tests).
So a directory is made anew while it is idle, long before, and a busy one refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

import dibs
from dibs.backends.zookeeper.queue_rule import LEASES_NODE, LOCKS_NODE
from dibs.testing.contract.harness import Actor, World
from dibs.testing.contract.worlds import MUTEXES
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_ensemble import left
from lab.servers.zookeeper_log import raise_counter
from store.faults.kit import eventually, usually_sync
from store.zookeeper.faulty import Witness, directory, fresh_name, operator

pytestmark = pytest.mark.timeout(150)
LEASE = 60.0
"""The longest session: what is held outlives a restart of the server on a busy machine."""
TIME_OUT = 50.0
HIGH, NEAR_ITS_END, AT_ITS_END = 2**30 + 5, 2**31 - 2**20 + 5, 2**31 - 5
"""Where a counter is worth a new directory, where it must stop a claim, and where it is all but over."""
REAP_MS = 20
FOREIGN = {
    kind: f"_c_00000000-0000-4000-8000-000000000000-{word}0000000000"
    for kind, word in {"lock": "lock-", "write": "__WRIT__", "semaphore": "lock-"}.items()
}
"""The node of another program, which stays: a holder, or the one whose turn it is to take permits."""
MUTEX = pytest.mark.parametrize("mutex", [MUTEXES[kind] for kind in ("lock", "semaphore")], ids=["lock", "semaphore"])
Mutex = Callable[..., Any]


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    """It leaves idle containers alone: what is made anew here, we made anew."""
    require("zookeeper")
    longest = f"maxSessionTimeout={LEASE * 1000:.0f}"
    with Server(ZooKeeper(longest, tick_ms=300, java=["-Dznode.container.checkIntervalMs=3600000"])) as server:
        yield server


@pytest.fixture(scope="module")
def reaper() -> Iterator[Server]:
    """It removes idle containers all the time, not once a minute."""
    require("zookeeper")
    with Server(
        ZooKeeper(
            f"maxSessionTimeout={LEASE * 1000:.0f}", tick_ms=300, java=[f"-Dznode.container.checkIntervalMs={REAP_MS}"]
        )
    ) as server:
        yield server


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    yield one_server
    assert left(one_server, within=LEASE / 2) == []


@pytest.fixture
def name() -> str:
    return fresh_name()


def there(server: Server, name: str) -> bool:
    with operator(server) as kazoo:
        return kazoo.exists(directory(name)) is not None


@MUTEX
@usually_sync
async def test_a_directory_reaped_between_two_uses(world: World, reaper: Server, name: str, mutex: Mutex) -> None:
    client, other = world.client(reaper.url(), lease=LEASE), world.client(reaper.url(), lease=LEASE)
    ana, witness = world.actor("ana"), Witness(world, name)
    for one in (client, other, client):
        hold = await ana(witness.take(mutex(one, name), timeout=TIME_OUT))
        await ana(witness.give(hold))
        await eventually(lambda: asyncio.to_thread(lambda: not there(reaper, name)))
    assert len({use.token for use in witness.uses}) == 3, "numbers begin anew, tokens go on"
    witness.acquit()


@MUTEX
@usually_sync
async def test_a_directory_reaped_all_the_time(world: World, reaper: Server, name: str, mutex: Mutex) -> None:
    """It may go between any two requests; nobody is told of it."""
    witness = Witness(world, name)

    async def turns(who: str) -> None:
        actor, client = world.actor(who), world.client(reaper.url(), lease=LEASE)
        for _ in range(6):
            hold = await actor(witness.take(mutex(client, name), timeout=TIME_OUT))
            await actor(witness.give(hold))

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
async def test_an_idle_directory_with_a_high_counter_is_made_anew(
    world: World, server: Server, name: str, kind: str, place: str
) -> None:
    """By whoever leaves it last, long before the server comes round for empty ones."""
    client, ana = world.client(server.url(), lease=LEASE), world.actor("ana")
    mutex, where, witness = MUTEXES[kind](client, name), directory(name) + place, Witness(world, name)
    await use(ana, witness, mutex)
    await asyncio.to_thread(lambda: raise_counter(server, where, HIGH))

    async def anew() -> bool:
        await use(ana, witness, mutex)
        return await asyncio.to_thread(lambda: upcoming(server, where)) < 1000

    await eventually(anew)
    witness.acquit()


@usually_sync
async def test_a_busy_directory_with_a_high_counter_still_serves(world: World, server: Server, name: str) -> None:
    """There is room for a thousand million more: it is made anew when it falls idle, and not under anybody's feet."""
    client, other = (world.client(server.url(), lease=LEASE) for _ in range(2))
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await asyncio.to_thread(lambda: raise_counter(server, directory(name), HIGH))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_queue(client, name, 1)
    assert await asyncio.to_thread(lambda: numbers(server, name)) == [0, HIGH]
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
    await asyncio.to_thread(lambda: create(server, f"{where}/{FOREIGN[kind]}"))
    await asyncio.to_thread(lambda: raise_counter(server, where, number))
    with pytest.raises(dibs.StoreError, match=name) as refused:
        await ana(lambda: mutex.acquire(timeout=TIME_OUT))
    assert not isinstance(refused.value, dibs.StoreUnavailable), "asking again helps nobody"
    assert "Next: " in str(refused.value)
    await eventually(lambda: asyncio.to_thread(lambda: children(server, where) == [FOREIGN[kind]]))
    await asyncio.to_thread(lambda: delete(server, f"{where}/{FOREIGN[kind]}"))

    async def works_again() -> bool:
        with suppress(dibs.StoreError):
            await use(ana, Witness(world, name), mutex)
            return True
        return False

    await eventually(works_again)
    assert await asyncio.to_thread(lambda: upcoming(server, where)) < 1000, "it was made anew"


async def use(actor: Actor, witness: Witness, mutex: Any) -> None:
    hold = await actor(witness.take(mutex, timeout=TIME_OUT))
    await actor(witness.give(hold))


def upcoming(server: Server, path: str) -> int:
    """The number of the next child; it is made, and goes. Somebody may be removing the path just now."""
    with operator(server) as kazoo, suppress(NoNodeError):
        made: str = kazoo.create(f"{path}/%probe-", sequence=True)
        kazoo.delete(made)
        return int(made[-10:])
    return 0


def children(server: Server, path: str) -> list[str]:
    with operator(server) as kazoo, suppress(NoNodeError):
        return list(kazoo.get_children(path))
    return []


def numbers(server: Server, name: str) -> list[int]:
    return sorted(int(child[-10:]) for child in children(server, directory(name)))


def create(server: Server, path: str) -> None:
    with operator(server) as kazoo:
        kazoo.create(path, b"another program")


def delete(server: Server, path: str) -> None:
    with operator(server) as kazoo:
        kazoo.delete(path)
