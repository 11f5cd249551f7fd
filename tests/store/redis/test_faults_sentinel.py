"""Fail-over by Sentinel under real clients: the primary is killed, stopped, or sent away, and they find the next one.

Replication is asynchronous, so the promoted replica may lack what was acknowledged at the last moment: an overlap is
counted, and allowed only between somebody who held before the fault and somebody who came after it. With `replicas=1`
there is none.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.contract.harness import World
from lab.checkers import Verdict, judge
from lab.crowd import Crowd
from lab.history import History
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis_groups import MAIN, Group, in_step, is_failing_over, primary_seen_by, replicated, role
from lab.servers.supervisor import Server, joint_url, until
from lab.surface import clock
from lab.witness import Witness, fresh_name
from store.faults.kit import LONG, TIMEOUT, Relay, both_apis
from store.redis.faulty import left, loaded, specs

# Several elections, on a machine that others use too.
pytestmark = [pytest.mark.early, pytest.mark.slow, pytest.mark.timeout(200)]
LEASE = 4.0
WITHIN = 60.0
LOST = {"overlap", "taken", "fifo"}
"""What a server that lacks acknowledged writes, or two that take each other's place, may do."""


class Service:
    """A primary and two replicas, which change places; three sentinels."""

    def __init__(self, group: Group) -> None:
        self.nodes = (group.primary, *group.replicas)
        self.sentinels = group.sentinels
        self.url = joint_url("redis+sentinel", group.sentinels, f"/{MAIN}")
        self._marks = itertools.count(1)

    def primary(self) -> Server:
        found: Server = self._until(self._agreed, "all sentinels name one primary")
        return found

    def another_than(self, node: Server) -> None:
        """Until another one is the primary."""
        self._until(lambda: self._agreed() not in (None, node), "a fail-over")

    def mend(self) -> None:
        """All run and follow the primary. Sentinels would see to that too, some ten seconds later."""
        for node in self.nodes:
            node.resume()
        self._until(lambda: self._mended() and self._copied(), "replicas in step")

    def copy(self) -> None:
        """All that was written has arrived. A replica that says it is in step may have to wait for the first of it."""
        self._until(self._copied, "everything is copied")

    def _agreed(self) -> Server | None:
        """All sentinels name it, none of them is about to change that, and it says so itself."""
        if any(is_failing_over(sentinel) for sentinel in self.sentinels):
            return None
        (port, *others) = {primary_seen_by(sentinel) for sentinel in self.sentinels}
        named = next(node for node in self.nodes if node.port == port)
        return named if not others and role(named) == "master" else None

    def _mended(self) -> bool:
        primary = self._agreed()
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
        mark, primary = str(next(self._marks)), self._agreed()
        if primary is None:
            return False
        primary.ask("SET", "mark", mark)
        primary.ask("WAIT", str(len(self.nodes) - 1), "1000")
        return all(node.ask("GET", "mark") == mark for node in self.nodes)

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return until(condition, what=what)
        except AssertionError as error:
            error.add_note("\n".join(f"{one!r}:\n{one.log()[-2000:]}" for one in (*self.sentinels, *self.nodes)))
            raise


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
    """It goes on once another one has taken its place, and grants to who did not notice, until it is told to follow."""
    primary.stop()
    try:
        service.another_than(primary)
    finally:
        primary.resume()
    service.mend()


def sent_away(service: Service, primary: Server) -> None:
    def asked() -> bool:
        return service.sentinels[0].ask("SENTINEL", "FAILOVER", MAIN) == "OK"

    until(asked, what="a planned fail-over")  # one that is under way is refused, as is one too soon after another
    service.another_than(primary)
    service.mend()


HARMS: list[Callable[[Service, Server], None]] = [killed, stopped, sent_away]


@pytest.mark.soak  # crowds, and an election each
@pytest.mark.parametrize("options", ["", "?replicas=1"], ids=["acknowledged", "replicated"])
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_under_load(service: Service, tmp_path: Path, harm: Callable[[Service, Server], None], options: str) -> None:
    """Threads and tasks of three processes."""
    primary = service.primary()
    with Crowd(specs(service.url + options, tmp_path, LEASE)) as crowd:
        loaded(crowd)
        harm(service, primary)
        over = clock()
        crowd.heal()
        crowd.quiet(WITHIN)
        loaded(crowd)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=WITHIN, fenced=fenced, left=left(service.url))
    guilty = {kind: count for kind, count in verdict.guilty.items() if count}
    served = f"{history.hand_overs} hand-overs, all served {verdict.recovery:.2f} s after"
    print(f"figure: fail-over by Sentinel, {harm.__name__}{options}: {served}, {guilty or 'clean'}")
    if options:
        assert not verdict.violations, verdict.text()
    else:
        assert set(guilty) <= LOST, verdict.text()
        assert not unexplained(verdict, history, over), verdict.text()


def unexplained(verdict: Verdict, history: History, over: float) -> list[str]:
    """What happened to those who came when there was one primary again: no lost write explains that."""
    uses = {use.id: use for use in history.uses}
    return [one.text for one in verdict.violations if all(uses[id].called > over for id in one.uses)]


@both_apis
async def test_a_hold_outlives_the_primary(world: World, service: Service) -> None:
    """It was copied: it is renewed and given back at the next primary, and the waiter keeps its place."""
    relay = Relay(world, fresh_name(), service.url)
    await relay.begin()
    primary = await asyncio.to_thread(service.primary)
    await asyncio.to_thread(service.copy)
    relay.now()
    await asyncio.to_thread(killed, service, primary)
    await relay.end()


@both_apis
async def test_a_client_left_at_a_primary_that_is_none_any_more(world: World, service: Service) -> None:
    """It is told READONLY there, asks the sentinels, and goes on at the next one."""
    name = fresh_name()
    client, ana = world.client(service.url, lease=LONG), world.actor("ana")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    primary = await asyncio.to_thread(service.primary)
    await asyncio.to_thread(service.copy)
    before = refusals(primary)
    await asyncio.to_thread(sent_away, service, primary)
    await ana(witness.give(hold))
    again = await ana(witness.take(client.lock(name), timeout=TIMEOUT))
    await ana(witness.give(again))
    assert refusals(primary) > before, "somebody was refused there"
    witness.acquit()


@both_apis
async def test_a_client_that_does_not_listen_yet_finds_the_next_primary(world: World, service: Service) -> None:
    """It knows the old one, and has nobody but itself to ask for another before it can listen."""
    name = fresh_name()
    client, ana = world.client(service.url, lease=LEASE), world.actor("ana")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name), timeout=0))
    await ana(witness.give(hold))
    primary = await asyncio.to_thread(service.primary)
    await asyncio.to_thread(killed, service, primary)
    again = await ana(witness.take(client.lock(name), timeout=TIMEOUT))
    await ana(witness.give(again))
    witness.acquit()


def refusals(node: Server) -> int:
    """How often it said READONLY."""
    told = node.ask("INFO", "errorstats").splitlines()
    return sum(int(line.rpartition("=")[2]) for line in told if line.startswith("errorstat_READONLY"))
