"""A fail-over to a replica. One that is waited for has every grant; from one that is not the last grants may be
missing: then two hold, which is counted here, and the token, which rises all the same, lets a fence refuse the older.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.faults import BlackHole
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.postgresql import NAME, promote, replicated
from lab.servers.programs import require
from lab.servers.supervisor import Server, until
from store.faults.kit import LONG, TIMEOUT, eventually, usually_sync

pytestmark = [pytest.mark.gate, pytest.mark.timeout(200)]


@pytest.fixture
def wire() -> Iterator[list[Proxy]]:
    """Between primary and replica."""
    made: list[Proxy] = []
    yield made
    for proxy in made:
        proxy.close()


def _both(primary: Server, replica: Server) -> str:
    hosts = f"{ports.HOST}:{primary.port},{ports.HOST}:{replica.port}"
    return f"postgresql://{NAME}:{NAME}@{hosts}/postgres"


@usually_sync
async def test_a_replica_that_is_waited_for_has_every_grant(world: World, name: str) -> None:
    """The holder goes on beside the next one, who waits for it on the new primary."""
    require("postgresql")
    with replicated("hot_standby=on") as (primary, replica):
        primary.ask("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(lambda: primary.ask("SELECT sync_state FROM pg_stat_replication") == "sync", what="it is waited for")
        client, other = (world.client(_both(primary, replica), lease=LONG, retry=TIMEOUT) for _ in range(2))
        ana, bob = world.actors("ana", "bob")
        hold = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(promote, replica)
        assert await bob(lambda: other.lock(name).acquire(timeout=1.0)) is None
        hold.check()
        await ana(hold.release)
        won = await bob(lambda: other.lock(name).acquire(timeout=TIMEOUT))
        assert won.token > hold.token
        await bob(won.release)


@usually_sync
async def test_one_that_is_not_may_miss_the_last_grants(world: World, name: str, wire: list[Proxy]) -> None:
    require("postgresql")

    def cuttable(port: int) -> int:
        wire.append(Proxy((ports.HOST, port)))
        return wire[-1].port

    with replicated("hot_standby=on", link=cuttable) as (primary, replica):
        client, other = (world.client(_both(primary, replica), lease=LONG, retry=TIMEOUT) for _ in range(2))
        fence = world.client("memory://").fence(name)
        ana, bob = world.actors("ana", "bob")
        warm = await ana(lambda: client.lock("warm").acquire(timeout=TIMEOUT))
        lsn = primary.ask("SELECT pg_current_wal_flush_lsn()")
        caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{lsn}'"
        await eventually(lambda: replica.ask(caught_up) == "t")
        wire[0].add(BlackHole())
        hold = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
        await ana(lambda: fence.admit(hold.token))
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(promote, replica)
        won = await bob(lambda: other.lock(name).acquire(timeout=TIMEOUT))
        assert won.token > hold.token, "tokens rise though the last ones are not known there"
        assert not hold.lost.is_set(), "nobody can have told it yet"
        print("figure: fail-over to a replica that was not waited for: 1 grant lost, the fence refused its holder")
        await bob(lambda: fence.admit(won.token))
        with pytest.raises(dibs.StaleToken):
            await ana(lambda: fence.admit(hold.token))
        warm.check()
        assert (await world.inspect(other, "warm")).holders[0].token == warm.token, "what it had is kept"
