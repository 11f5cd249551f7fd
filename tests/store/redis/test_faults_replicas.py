"""A primary and a replica that takes its place: what was not copied in time is lost, unless `replicas=1` waited for it.

The clients' way leads to whoever is the primary, as a managed service's address does. Tokens over such a change are
printed, also where they fall: the promoted server must lack the last grants *and* have a clock that is behind by more
than these are old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World
from lab.clock import Clock, shim
from lab.faults import Refuse, Stall
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.redis_groups import in_step
from lab.servers.supervisor import Server, until
from lab.surface import clock
from lab.witness import Witness
from store.faults.kit import RENEWED, SHORT, TIMEOUT, both_apis, eventually, give_up, renewed, usually_sync
from store.redis.faulty import key_of

pytestmark = pytest.mark.timeout(150)
LONG = 30.0
BEHIND = 60
UNKEPT = "fewer than 1 replicas have it|did not answer in time|no connection to .* in time"
"""The last of several questions may have no time left for its answer."""
_HEAD = "return redis.sha1hex(redis.call('HGET', KEYS[1], 'h') or '')"
"""A head is no text: ids are in it."""


@dataclass
class Pair:
    primary: Server
    replica: Server
    link: Proxy
    """Between the two."""
    way: Proxy
    """For clients."""

    def url(self, options: str = "") -> str:
        return f"redis://{ports.HOST}:{self.way.port}{options}"

    def lag(self) -> None:
        """From now on what is written does not arrive there."""
        self.link.add(Stall(), DOWN)

    def part(self) -> None:
        self.link.add(Refuse())
        self.link.reset()
        until(lambda: "connected_slaves:0" in self.primary.ask("INFO", "replication"), what="the replica is missed")

    def meet(self) -> None:
        self.link.heal()
        until(lambda: in_step(self.primary, (self.replica,)), what="in step")

    def copied(self, name: str) -> bool:
        heads = [one.ask("EVAL", _HEAD, "1", key_of(name)) for one in (self.replica, self.primary)]
        return heads[0] == heads[1]

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.way.target = (ports.HOST, self.replica.port)
        self.way.reset()


@contextmanager
def pair(env: dict[str, str] | None = None) -> Iterator[Pair]:
    """`env`: of the replica."""
    require("redis")
    with Server(Redis()) as primary, Proxy((ports.HOST, primary.port)) as link:
        source = f"replicaof {ports.HOST} {link.port}"
        with Server(Redis(source), env) as replica, Proxy((ports.HOST, primary.port)) as way:
            until(lambda: in_step(primary, (replica,)), what="in step")
            yield Pair(primary, replica, link, way)


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair() as made:
        yield made


@pytest.fixture
def behind(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The replica's clock is."""
    hands = Clock(tmp_path, shim(tmp_path_factory))
    hands.step(-BEHIND)
    with pair(hands.env()) as made:
        yield made


@usually_sync
async def test_nothing_counts_that_a_lagging_replica_lacks(world: World, servers: Pair, name: str) -> None:
    """With replicas=1 the same grant is none, so there is nobody whom the next holder could meet."""
    client, ana, bob = world.client(servers.url("?replicas=1"), lease=LONG), *world.actors("ana", "bob")
    servers.lag()
    with pytest.raises(dibs.StoreUnavailable, match=UNKEPT):
        await ana(lambda: client.lock(name).acquire(timeout=1.5))
    assert servers.primary.ask("HEXISTS", key_of(name), "h") == "1", "the server itself had granted it"
    await asyncio.to_thread(servers.fail_over)
    last = world.client(servers.url(), lease=LONG)
    won = await bob(lambda: last.lock(name).acquire(timeout=TIMEOUT))
    await bob(won.release)


@usually_sync
async def test_replicas_cut_off_and_back(world: World, servers: Pair, name: str) -> None:
    """Nothing is granted or renewed without them, and nothing is left of what was tried; with them all is well."""
    client, plain = world.client(servers.url("?replicas=1"), lease=RENEWED), world.client(servers.url(), lease=RENEWED)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    lost: list[Any] = []
    hold = await ana(witness.take(client.lock(name, on_lost=lost.append)))
    await renewed(witness, hold, RENEWED)
    await asyncio.to_thread(servers.part)
    with pytest.raises(dibs.StoreUnavailable, match=UNKEPT):
        await bob(lambda: client.lock(f"{name}-b").acquire(timeout=1.5))
    await eventually(witness.watching(hold.lost.is_set))
    await world.free(plain, f"{name}-b")
    pending = bob.start(witness.take(client.lock(name), timeout=TIMEOUT))
    await asyncio.to_thread(servers.meet)
    won = await pending
    assert won.token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await give_up(witness, bob, won)
    await eventually(lambda: lost)
    witness.acquit()


@both_apis
async def test_a_grant_by_message_counts_once_replicas_have_it(world: World, servers: Pair, name: str) -> None:
    client, other = (world.client(servers.url("?replicas=1"), lease=LONG) for _ in range(2))
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIMEOUT))
    await world.in_queue(other, name, 1)
    await asyncio.to_thread(servers.part)
    await ana(hold.release)
    await eventually(lambda: holders(world, other, name))
    begun = clock()
    await eventually(lambda: clock() > begun + 1)
    assert not pending.done(), "the primary grants it; that is not enough"
    await asyncio.to_thread(servers.meet)
    won = await pending
    await bob(won.release)


async def holders(world: World, client: Any, name: str) -> int:
    info = await world.inspect(client, name)
    return len(info.holders)


@pytest.mark.parametrize("state", ["in step", "lagging"])
@usually_sync
async def test_the_promoted_clock_is_a_minute_behind(world: World, behind: Pair, name: str, state: str) -> None:
    """In step it knows the last token and goes on from there. One that lacks the last grants knows no better than its
    clock: the token falls, and a fence refuses the *newer* holder until that clock has come so far. Nobody overlaps
    unnoticed, and everything goes on by itself."""
    client, other = world.client(behind.url(), lease=SHORT), world.client(behind.url(), lease=SHORT)
    fence = world.client("memory://").fence(name)
    ana, bob = world.actors("ana", "bob")
    if state == "lagging":
        behind.lag()
    begun = clock()
    hold = await ana(lambda: client.lock(name).acquire())
    await ana(lambda: fence.admit(hold.token))
    if state == "in step":
        await eventually(lambda: behind.copied(name))
    await asyncio.to_thread(behind.fail_over)
    await give_back(ana, hold)
    won = await bob(lambda: other.lock(name).acquire(timeout=TIMEOUT))
    assert won is not None, "a clock that is behind keeps nobody waiting for longer than a lease"
    passed, step = clock() - begun, won.token - hold.token
    if state == "in step":
        assert step > 0
        await bob(lambda: fence.admit(won.token))
    else:
        assert -BEHIND - 1 < step / 1e6 < -BEHIND + 1 + passed
        with pytest.raises(dibs.StaleToken):
            await bob(lambda: fence.admit(won.token))
    await bob(won.release)


async def give_back(actor: Any, hold: Any) -> None:
    """Where the server may know nothing of it any more."""
    with suppress(dibs.LockLost):
        await actor(hold.release)
