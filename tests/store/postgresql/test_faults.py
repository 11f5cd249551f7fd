"""What waiting costs on PostgreSQL: no connection of those who hold, and few statements."""

from __future__ import annotations

import asyncio

import pytest

from dibs.testing.contract.harness import World
from lab.proxy import UP, Proxy
from lab.servers import ports
from lab.servers.postgresql import NAME
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from store.faults.kit import LONG, TIMEOUT, both_apis, eventually, passes, usually_sync, warm

WAITERS = 20
CONNECTIONS = 5


def connections(server: Server, application: str) -> int:
    return int(server.ask(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{application}'"))


@both_apis
async def test_many_wait_and_the_holder_works_on(world: World, server: Server, name: str) -> None:
    """Of five connections none is taken by who only waits."""
    client = world.client(f"{server.url()}?connections={CONNECTIONS}&application_name={name}", lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    waiters = [world.actor(f"waiter {number}") for number in range(WAITERS)]
    asked = [waiter.start(witness.take(client.lock(name), timeout=LONG)) for waiter in waiters]
    await world.in_line(client, name, WAITERS)
    for number in range(5):
        await ana((await ana(lambda number=number: client.lock(f"{name}-{number}").acquire(timeout=TIMEOUT))).release)
    assert await asyncio.to_thread(connections, server, name) <= CONNECTIONS + 2, "one that listens, the watchdog's"
    await ana(witness.give(hold))
    left = dict(zip(asked, waiters, strict=True))
    while left:
        await eventually(lambda: any(pending.done() for pending in left))
        done = next(pending for pending in left if pending.done())
        await left.pop(done)(witness.give(await done))
    await world.free(client, name)
    witness.acquit()


@pytest.mark.parametrize("wake", ["messages", "looks"])
@usually_sync
async def test_who_waits_asks_at_most_twice_a_second(
    world: World, server: Server, proxy: Proxy, name: str, wake: str
) -> None:
    through = f"postgresql://{NAME}:{NAME}@{ports.HOST}:{proxy.port}/postgres?wake={wake}"
    holder, client = world.client(server.url(), lease=LONG), world.client(through, lease=LONG)
    ana, bob, witness = *world.actors("ana", "bob"), Witness(world, name)
    await warm(world, client, name)
    hold = await ana(lambda: holder.lock(name).acquire(timeout=TIMEOUT))
    pending = bob.start(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    await world.in_line(holder, name, 1)
    await passes(witness, 2.0)  # the watchdog has connected by then, which is not what is counted here
    before, begun = proxy.total(UP, "passed")[0], clock()
    await passes(witness, 3.0)
    asked, took = proxy.total(UP, "passed")[0] - before, clock() - begun
    assert asked <= 2 * took + 1
    await ana(hold.release)
    await bob((await pending).release)
