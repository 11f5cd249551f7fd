"""Fail-over by Sentinel under real clients: the primary is killed, stopped, or sent away, and they find the next one.

What these tests rely on was copied before: replication is asynchronous, so the promoted replica may lack what was
acknowledged at the last moment. No name has two valid holders.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from dibs.backends.redis import failover
from dibs.errors import StoreUnavailable
from dibs.testing.contract.harness import World
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis_groups import MAIN, Group, in_step, is_failing_over, primary_seen_by, replicated, role
from lab.servers.supervisor import Server, joint_url, until
from lab.witness import Witness, fresh_name
from store.faults.kit import TIMEOUT, Relay, eventually, give_up, passes, renewed, usually_sync
from store.redis.kit import errors

# Several elections, on a machine that others use too.
pytestmark = [pytest.mark.gate, pytest.mark.early, pytest.mark.slow, pytest.mark.timeout(200)]
LEASE = 4.0
KEPT = 30.0
"""The lease of holds that outlive an election, even one that fails twice."""
SWITCHED = 5.0
"""The lease of holds that outlive a switch. Nothing new is granted for so long after it."""
GIVEN_UP = 15.0
"""Seconds after which Sentinel gives up a fail-over."""
WITHIN = 60.0


class Service:
    def __init__(self, group: Group) -> None:
        self.nodes = (group.primary, *group.replicas)
        self.sentinels = group.sentinels
        self._url = joint_url("redis+sentinel", group.sentinels, f"/{MAIN}")
        self._marks = itertools.count(1)

    def url(self, options: str = "") -> str:
        """A prefix of this test alone: after a fail-over nothing is granted for the longest lease in use."""
        return f"{self._url}?prefix={fresh_name()}:{options}"

    def primary(self) -> Server:
        found: Server = until(self.agreed, what="all sentinels name one primary")
        return found

    def another_than(self, node: Server) -> None:
        until(lambda: self.agreed() not in (None, node), what="a fail-over")

    def mend(self) -> None:
        """All run and follow the primary. Sentinels would see to that too, some ten seconds later."""
        for node in self.nodes:
            node.resume()
        until(lambda: self._mended() and self._copied(), what="replicas in step")

    def copy(self) -> None:
        """All that was written has arrived. A replica that says it is in step may have to wait for the first of it."""
        until(self._copied, what="everything is copied")

    def agreed(self) -> Server | None:
        """All sentinels name it, none of them is about to change that, and it says so itself."""
        if any(is_failing_over(sentinel) for sentinel in self.sentinels):
            return None
        (port, *others) = {primary_seen_by(sentinel) for sentinel in self.sentinels}
        named = next(node for node in self.nodes if node.port == port)
        return named if not others and role(named) == "master" else None

    def _mended(self) -> bool:
        primary = self.agreed()
        if primary is None:
            return False
        others = tuple(node for node in self.nodes if node is not primary)
        for node in others:
            if not node.running():
                with (node.data / "redis.conf").open("a") as config:
                    config.write(f"replicaof {ports.HOST} {primary.port}\n")
                node.start()
            elif f"master_port:{primary.port}" not in node.ask("INFO", "replication").splitlines():
                node.ask("REPLICAOF", ports.HOST, str(primary.port))
        return in_step(primary, others)

    def _copied(self) -> bool:
        mark, primary = str(next(self._marks)), self.agreed()
        if primary is None:
            return False
        primary.ask("SET", "mark", mark)
        primary.ask("WAIT", str(len(self.nodes) - 1), "1000")
        return all(node.ask("GET", "mark") == mark for node in self.nodes)


@pytest.fixture(scope="module")
def one_service() -> Iterator[Service]:
    require("redis")
    with replicated(replicas=2, sentinels=3, down_after_ms=3000) as group:
        yield Service(group)


@pytest.fixture
def service(one_service: Service) -> Iterator[Service]:
    yield one_service
    one_service.mend()


def killed(service: Service, primary: Server) -> None:
    primary.kill()
    service.another_than(primary)


def stopped(service: Service, primary: Server) -> None:
    """It resumes after the fail-over, and grants to clients that know only it, until it is told to follow."""
    primary.stop()
    try:
        service.another_than(primary)
    finally:
        primary.resume()
    service.mend()


def ordered(service: Service, primary: Server) -> None:
    """Sentinels refuse one while another is under way, and give one up on a busy machine."""

    def asked() -> bool:
        return service.sentinels[0].ask("SENTINEL", "FAILOVER", MAIN) == "OK"

    def is_done() -> bool:
        return service.agreed() not in (None, primary)

    while True:
        until(asked, what="a planned fail-over")
        with suppress(AssertionError):
            until(is_done, GIVEN_UP)
            return


def sent_away(service: Service, primary: Server) -> None:
    ordered(service, primary)
    service.mend()


@usually_sync
async def test_an_ordered_switch(world: World, service: Service) -> None:
    """Every server is healthy, and the old primary stays one for some ten seconds: clients that know it go on there,
    others come to the new one. Holds are kept, and a name that nobody used before is not granted twice."""
    primary = await asyncio.to_thread(service.primary)
    url = service.url()
    old, new = world.client(url, lease=SWITCHED), world.client(url, lease=SWITCHED)
    witnesses = [Witness(world, fresh_name()) for _ in range(10)]
    unused = Witness(world, fresh_name())
    holders = world.actors(*(f"holder {number}" for number in range(10)))
    holds = [await ana(w.take(old.lock(w.name))) for ana, w in zip(holders, witnesses, strict=True)]
    await asyncio.to_thread(service.copy)

    await asyncio.to_thread(ordered, service, primary)
    comers = world.actors(*(f"comer {number}" for number in range(10)))
    waiting = [bob.start(w.take(new.lock(w.name), timeout=TIMEOUT)) for bob, w in zip(comers, witnesses, strict=True)]
    stayed, came = world.actors("stayed", "came")
    both = [
        (stayed, stayed.start(unused.take(old.lock(unused.name), timeout=TIMEOUT))),
        (came, came.start(unused.take(new.lock(unused.name), timeout=TIMEOUT))),
    ]

    def looked() -> bool:
        for witness in (*witnesses, unused):
            witness.look()
        return any(one.done() for _, one in both)

    while both:
        await eventually(looked)
        actor, one = first = next(each for each in both if each[1].done())
        both.remove(first)
        hold = await one
        await passes(unused, 1.0)  # the other one would have it, too, if it could
        await give_up(unused, actor, hold)
    unused.acquit()
    for hold in holds:
        hold.check()
    for ana, hold, witness in zip(holders, holds, witnesses, strict=True):
        await ana(witness.give(hold))
    for bob, one, witness in zip(comers, waiting, witnesses, strict=True):
        await bob(witness.give(await one))
        witness.acquit()


@usually_sync
async def test_without_a_majority_of_the_sentinels(world: World, service: Service) -> None:
    """Nothing is granted until enough sentinels answer again."""
    client, ana = world.client(service.url(), lease=LEASE), world.actor("ana")
    lock = client.lock(fresh_name())
    for sentinel in service.sentinels[1:]:
        sentinel.stop()
    try:
        with pytest.raises(StoreUnavailable, match="no majority of the sentinels"):
            await ana(lambda: lock.acquire(timeout=0))
    finally:
        for sentinel in service.sentinels:
            sentinel.resume()
    hold = await ana(lambda: lock.acquire(timeout=TIMEOUT))
    await ana(hold.release)


@usually_sync
async def test_a_hold_outlives_the_primary(world: World, service: Service) -> None:
    """It was copied: it is renewed at the next primary, where the waiter stands behind it, and given back there. That
    the waiter gets it a lease later is seen above. A lock that nobody holds is not granted yet, and not called busy."""
    name = fresh_name()
    relay = Relay(world, name, service.url(), lease=KEPT)
    await relay.begin()
    primary = await asyncio.to_thread(service.primary)
    await asyncio.to_thread(service.copy)
    await asyncio.to_thread(killed, service, primary)
    for fair in (True, False):
        unused, cy = relay.client.lock(fresh_name(), fair=fair), world.actor("cy")
        text = await eventually(partial(not_granted, cy, unused))
        assert "nothing new is granted" in text
    await renewed(relay.witness, relay.hold, KEPT)

    async def stands_behind() -> bool:
        info = await world.inspect(relay.client, name)
        return [one.token for one in info.holders] == [relay.hold.token] and len(info.waiters) == 1

    await eventually(relay.witness.watching(stands_behind))
    relay.hold.check()
    assert (relay.lost, relay.pending.done()) == ([], False)
    await relay.ana(relay.witness.give(relay.hold))


async def not_granted(actor: Any, lock: Any) -> str:
    """The error, once the new primary is known. Neither a hold nor "busy" may come before it."""
    with pytest.raises(StoreUnavailable) as raised:
        await actor(partial(lock.acquire, timeout=0.5))
    return str(raised.value) if "sentinels" not in raised.value.what else ""


@pytest.mark.parametrize("harm", [stopped, sent_away], ids=lambda harm: harm.__name__)
@usually_sync
async def test_a_client_left_at_a_primary_that_is_none_any_more(
    world: World, service: Service, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Service, Server], None]
) -> None:
    """An idle client gets READONLY there, asks the sentinels, and goes on at the next primary."""
    monkeypatch.setattr(failover, "_LINGER", -1.0)
    name = fresh_name()
    client, ana = world.client(service.url(), lease=LEASE), world.actor("ana")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await ana(witness.give(hold))
    primary = await asyncio.to_thread(service.primary)
    before = errors(primary, "READONLY")
    await asyncio.to_thread(harm, service, primary)
    again = await ana(witness.take(client.lock(name), timeout=TIMEOUT))
    await ana(witness.give(again))
    assert errors(primary, "READONLY") > before, "somebody was refused there"
    witness.acquit()


@usually_sync
async def test_a_client_that_does_not_listen_yet_finds_the_next_primary(
    world: World, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "_LINGER", -1.0)
    name = fresh_name()
    client, ana = world.client(service.url(), lease=LEASE), world.actor("ana")
    witness = Witness(world, name)

    async def tried() -> Any:  # a caller that waits would listen; the fail-over of an earlier test may be recent
        with suppress(StoreUnavailable):
            return await ana(witness.take(client.lock(name), timeout=0))
        return None

    await ana(witness.give(await eventually(tried)))
    primary = await asyncio.to_thread(service.primary)
    await asyncio.to_thread(killed, service, primary)
    again = await ana(witness.take(client.lock(name), timeout=TIMEOUT))
    await ana(witness.give(again))
    witness.acquit()
