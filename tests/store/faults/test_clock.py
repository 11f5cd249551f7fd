"""The server's wall clock jumps. An hour ahead, and every lease has run out. An hour back, and nothing lasts longer
than its lease for that, and tokens rise all the same. A session does not notice.
"""

from __future__ import annotations

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.clock import Clock
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from process.children import Crew
from store.faults.kit import LONG, PATIENCE, RENEWED, TIMEOUT, Relay, eventually, give_up, renewed, usually_sync
from store.faults.stores import LEASED, Store, on

pytestmark = [pytest.mark.gate, pytest.mark.timeout(150)]
HOUR = 3600


@on(LEASED)
@usually_sync
async def test_an_hour_ahead(world: World, store: Store, server: Server, clock_of_server: Clock, name: str) -> None:
    """The lease has run out for the server and not for its holder: both are valid until the first one's next renewal.
    The fence, which is kept elsewhere, refuses the older one. A waiter has run out as well, and asks again."""
    relay = Relay(world, name, store.url(server), 2 * RENEWED)
    fence = world.client("memory://").fence(name)
    await relay.begin()
    await relay.ana(lambda: fence.admit(relay.hold.token))
    clock_of_server.step(HOUR)
    won = await relay.pending
    assert won.token > relay.hold.token
    await relay.bob(lambda: fence.admit(won.token))
    with pytest.raises(dibs.StaleToken):
        await relay.ana(lambda: fence.admit(relay.hold.token))
    await eventually(relay.witness.watching(relay.hold.lost.is_set))
    with pytest.raises(dibs.LockLost):
        await relay.ana(relay.witness.give(relay.hold))
    await give_up(relay.witness, relay.bob, won)
    await world.free(relay.other, name)
    guilty = {kind for kind, count in relay.witness.verdict().guilty.items() if count}
    assert guilty <= {"overlap", "taken"}, "the order of those who wait, and of tokens, holds"


@on(LEASED)
@usually_sync
async def test_an_hour_back(
    world: World, store: Store, server: Server, clock_of_server: Clock, crew: Crew, name: str
) -> None:
    """A dead holder's claim would last an hour and a lease: the next one's looks cut it to a lease. A live client would
    give its claim back by itself at its deadline."""
    client, bob, victim = world.client(store.url(server), lease=LONG), world.actor("bob"), crew.worker()
    token = victim.take(name, TIMEOUT)
    victim.kill()
    clock_of_server.step(-HOUR)
    won = await bob(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    assert won is not None, "it was kept waiting for more than a lease"
    assert won.token > token
    await bob(won.release)
    await world.free(client, name)


@on((*LEASED, "mysql-session"))  # PostgreSQL ends idle sessions by its wall clock
@usually_sync
async def test_a_holder_that_lives_goes_on(
    world: World, store: Store, server: Server, clock_of_server: Clock, name: str
) -> None:
    """An hour back, and for sessions ahead too: the holder is renewed, the waiter waits, and tokens rise."""
    relay = Relay(world, name, store.url(server), RENEWED)
    await relay.begin()
    for step in (-HOUR,) if store.lasts else (HOUR, -2 * HOUR):
        clock_of_server.step(step)
        await renewed(relay.witness, relay.hold, RENEWED)
    await relay.end()
    witness, begun = Witness(world, name), clock()
    again = await relay.ana(witness.take(relay.client.lock(name), timeout=TIMEOUT))
    assert clock() - begun < PATIENCE
    assert again.token > relay.waiter.token, "the last token is remembered, whatever the clock says"
    await relay.ana(witness.give(again))
