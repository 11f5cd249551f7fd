"""The server's wall clock jumps: an hour ahead, and everything has run out; an hour back, and nothing lasts longer than
its lease for that, and tokens rise all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.clock import Clock
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness, faces_of
from store.clocks import readable

both_faces = faces_of("postgresql", "postgresql://127.0.0.1:1/postgres")
LEASE = 2.0
LONG = 40.0
HOUR = 3600
SLACK = 10.0
"""More than a lease takes on a machine that others use too; much less than an hour."""


@pytest.fixture(scope="module")
def hands() -> Iterator[Clock]:
    require("postgresql")
    with readable() as made:
        yield made


@pytest.fixture(scope="module")
def server(hands: Clock) -> Iterator[Server]:
    with Server(PostgreSQL(), hands.env()) as made:
        yield made


@both_faces
async def test_an_hour_ahead(world: World, server: Server, hands: Clock, name: str) -> None:
    """The lease has run out for the server and not for its holder: both are valid, until the first one's next renewal;
    the fence, which is elsewhere, refuses the older one."""
    client, other = world.client(server.url(), lease=5 * LEASE), world.client(server.url(), lease=5 * LEASE)
    fence = world.client("memory://").fence(name)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await ana(lambda: fence.admit(hold.token))
    hands.step(HOUR)
    won = await bob(witness.take(other.lock(name), timeout=20))
    assert won.token > hold.token
    await bob(lambda: fence.admit(won.token))
    with pytest.raises(dibs.StaleToken):
        await ana(lambda: fence.admit(hold.token))
    await eventually(witness.watching(hold.lost.is_set))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await bob(witness.give(won))
    guilty = witness.verdict().guilty
    print(f"figure: the server's clock an hour ahead: {guilty}; the fence refused the older holder")
    assert {kind for kind, count in guilty.items() if count} <= {"overlap", "taken"}


@both_faces
async def test_an_hour_back(world: World, server: Server, hands: Clock, name: str) -> None:
    """Who holds goes on; who is silent keeps the next one no longer than its lease."""
    client, other = world.client(server.url(), lease=LONG), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    silent = await ana(lambda: client.lock(name, lease=LEASE, renew=False).acquire(timeout=20))
    last = silent.token
    hands.step(-HOUR)
    begun = clock()
    won = await bob(lambda: other.lock(name).acquire(timeout=20))
    assert clock() - begun < LEASE + SLACK
    assert won.token > last
    await bob(won.release)
