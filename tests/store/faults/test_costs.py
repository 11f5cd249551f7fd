"""What waiting costs a client with few connections: none of them, and few requests."""

from __future__ import annotations

import pytest

from dibs.testing.contract.harness import World
from lab.proxy import UP, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from store.faults.kit import LONG, TIMEOUT, both_apis, eventually, passes, warm
from store.faults.stores import Store, on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]
WAITERS = 20
CONNECTIONS = 5


@on(("postgresql", "mysql"))
@both_apis
async def test_many_wait_and_the_holder_works_on(
    world: World, store: Store, server: Server, proxy: Proxy, name: str
) -> None:
    """All of them together ask about twice a second, and get the lock in turn."""
    client = world.client(f"{store.through(server, proxy)}?connections={CONNECTIONS}", lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name)
    hold = await ana(witness.take(client.lock(name)))
    waiters = [world.actor(f"waiter {number}") for number in range(WAITERS)]
    asked = [waiter.start(witness.take(client.lock(name), timeout=LONG)) for waiter in waiters]
    await world.in_queue(client, name, WAITERS)
    for number in range(5):
        await ana((await ana(lambda number=number: client.lock(f"{name}-{number}").acquire(timeout=TIMEOUT))).release)
    assert len(proxy.open_links) <= CONNECTIONS + 3, "one that listens, and the watchdog's"
    await passes(witness, 2.0)  # the watchdog has connected by then, which is not what is counted here
    before, begun = proxy.total(UP, "passed")[0], clock()
    await passes(witness, 3.0)
    requests, took = proxy.total(UP, "passed")[0] - before, clock() - begun
    # Renewals that are due within half a second go together; the subscriber of MySQL asks once in five seconds.
    assert requests <= 2 * took + 1 + (took / 5 + 1)
    await ana(witness.give(hold))
    left = dict(zip(asked, waiters, strict=True))
    while left:
        await eventually(lambda: any(pending.done() for pending in left))
        done = next(pending for pending in left if pending.done())
        await left.pop(done)(witness.give(await done))
    await world.free(client, name)
    witness.acquit()
