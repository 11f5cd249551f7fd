"""The option replicas=n: WAIT counts from the last write of its connection, so each retry writes again, and concurrent
tasks share one WAIT. Without enough replicas nothing is granted. Other writes that were not copied are lost with the
primary; clients connect to whichever server is the primary, as with a managed service's address.

On Redis 7.0 every command moves that mark, since 7.2 only writes do: these tests only see that the scripts write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import redis

import dibs
import dibs.aio
from dibs.core.cells import CELL, CellKey, Write
from dibs.core.queue import NOWHERE
from dibs.runtime.threads import step
from dibs.testing.contract.harness import World
from dibs.testing.contract.seats import Seat
from lab.faults import Refuse, Stall
from lab.proxy import DOWN, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.redis_groups import Group, in_step, replicated
from lab.servers.supervisor import Server, until
from lab.surface import clock
from lab.witness import Witness, fresh_name
from store.faults.kit import RENEWED, TIMEOUT, both_apis, eventually, give_up, renewed, usually_sync
from store.redis.hashes import Raw
from store.redis.kit import key_of

TASKS = 40
LEASE = 1.5


def writes(client: Any, verb: Callable[[], Any]) -> int:
    """The number of writes that the server ran for that."""
    before = calls(client, "hset")
    verb()
    return calls(client, "hset") - before


def calls(client: Any, command: str) -> int:
    told: dict[str, int] = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return told["calls"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_join_that_is_asked_again(seats: Callable[[], Seat], raw: Raw, waits: bool) -> None:
    seat = seats()
    if waits:
        seats().joined(name="dibs:a")
    claim, standing = seat.joined(name="dibs:a")
    assert standing.holds is not waits
    before = raw.queue().chain()
    for place in (None, NOWHERE):
        assert writes(raw.client, lambda place=place: seat.join(claim, place)) > 0
    assert raw.queue().chain() == before, "and changes nothing"


def test_a_put_that_is_asked_again(seat: Seat, raw: Raw) -> None:
    cells = seat.store.open_cells(seat.runtime, seat.me)
    with closing(cells):
        write = Write(CellKey(CELL, "dibs:c"), b"x", 0, seat.runtime.fresh_id(), seat.now() + 10)
        assert step(cells.put(write, seat.soon)) == 1
        assert writes(raw.client, lambda: step(cells.put(write, seat.soon))) > 0
        assert step(cells.get(write.cell_key, seat.soon)) == (b"x", 1)


def test_an_admission_that_raises_nothing(seat: Seat, raw: Raw) -> None:
    """An earlier copy may have, or another request with the same token."""
    cells = seat.store.open_cells(seat.runtime, seat.me)
    with closing(cells):
        step(cells.admit("dibs:f", 5, False, seat.soon))
        for token, shared in ((5, False), (5, True), (4, False), (4, True), (6, True)):
            asked = "dibs:f", token, shared
            assert writes(raw.client, lambda asked=asked: step(cells.admit(*asked, seat.soon))) > 0
            assert step(cells.admit("dibs:f", 1, True, seat.soon)) == 5


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    require("redis")
    with Server(Redis(users={"ana": ">pw ~* &* +@all -wait"})) as server:
        yield server


@pytest.mark.gate
def test_what_was_not_kept_is_in_nobodys_way(alone: Server) -> None:
    with dibs.connect(alone.url(), replicas=1) as careful, dibs.connect(alone.url()) as careless:
        with pytest.raises(dibs.StoreUnavailable):
            careful.lock("b").acquire(timeout=0)
        assert careless.lock("b").acquire(timeout=25), "it was given back, and did not last as long as its lease"


@pytest.mark.gate
def test_who_may_not_wait_for_replicas_is_told_so(alone: Server) -> None:
    with (
        dibs.connect(alone.url(user="ana", password="pw"), replicas=1) as client,
        pytest.raises(dibs.StoreError, match="NOPERM") as refused,
    ):
        client.lock("c").acquire(timeout=30)
    assert not isinstance(refused.value, dibs.StoreUnavailable), "asking again helps nobody"


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    require("redis")
    with replicated(replicas=1) as made:
        yield made


@pytest.mark.gate
def test_tasks_that_ask_at_once_share_the_wait_for_replicas(group: Group) -> None:
    names = [fresh_name() for _ in range(TASKS)]

    async def play(raw: Any) -> tuple[int, int]:
        async with dibs.aio.connect(group.primary.url(), replicas=1) as client:
            await (await client.lock(fresh_name()).acquire()).release()
            before = calls(raw, "wait")
            holds = await asyncio.gather(*(client.lock(name).acquire(timeout=60) for name in names))
            waits = calls(raw, "wait") - before
            held = sum([len((await client.inspect(name)).holders) for name in names])
            await asyncio.gather(*(hold.release() for hold in holds))
            return waits, held

    with closing(redis.Redis(port=group.primary.port)) as raw:
        waits, held = asyncio.run(play(raw))
    print(f"figure: {TASKS} tasks, each of which takes a free lock with replicas=1: {waits} times WAIT")
    assert held == TASKS
    assert 1 <= waits <= TASKS / 4


LONG = 30.0
UNKEPT = "fewer than 1 replicas have it|did not answer in time|no connection to .* in time"
"""The last retry may have no time left for its reply."""


@dataclass
class Pair:
    primary: Server
    replica: Server
    link: Proxy
    way: Proxy

    def url(self, options: str = "") -> str:
        return f"redis://{ports.HOST}:{self.way.port}{options}"

    def lag(self) -> None:
        """Hold back what is written from now on."""
        self.link.add(Stall(), DOWN)

    def part(self) -> None:
        self.link.add(Refuse())
        self.link.reset()
        until(lambda: "connected_slaves:0" in self.primary.ask("INFO", "replication"), what="the replica is missed")

    def meet(self) -> None:
        self.link.heal()
        until(lambda: in_step(self.primary, (self.replica,)), what="in step")

    def fail_over(self) -> None:
        self.primary.kill()
        self.replica.ask("REPLICAOF", "NO", "ONE")
        self.way.target = (ports.HOST, self.replica.port)
        self.way.reset()


@pytest.fixture
def servers() -> Iterator[Pair]:
    require("redis")
    with Server(Redis()) as primary, Proxy((ports.HOST, primary.port)) as link:
        source = f"replicaof {ports.HOST} {link.port}"
        with Server(Redis(source)) as replica, Proxy((ports.HOST, primary.port)) as way:
            until(lambda: in_step(primary, (replica,)), what="in step")
            yield Pair(primary, replica, link, way)


@pytest.mark.gate
@usually_sync
async def test_nothing_counts_that_a_lagging_replica_lacks(world: World, servers: Pair, name: str) -> None:
    """With replicas=1 it counts as no grant."""
    client, ana, bob = world.client(servers.url("?replicas=1"), lease=LONG), *world.actors("ana", "bob")
    servers.lag()
    with pytest.raises(dibs.StoreUnavailable, match=UNKEPT):
        await ana(lambda: client.lock(name).acquire(timeout=1.5))
    assert servers.primary.ask("HEXISTS", key_of(name), "h") == "1", "the server itself had granted it"
    await asyncio.to_thread(servers.fail_over)
    last = world.client(servers.url(), lease=LONG)
    won = await bob(lambda: last.lock(name).acquire(timeout=TIMEOUT))
    await bob(won.release)


@pytest.mark.gate
@usually_sync
async def test_replicas_cut_off_and_back(world: World, servers: Pair, name: str) -> None:
    """Without replicas nothing is granted or renewed, and no claim stays."""
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


@pytest.mark.gate
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
