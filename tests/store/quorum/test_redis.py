"""A quorum of five Redis servers that are killed, stopped, and restarted without their data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import dibs
from dibs.core.deadline import LEAST_PATIENCE
from dibs.testing.contract.harness import World
from lab.checkers import judge
from lab.crowd import Crowd
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.redis_groups import MAIN, cluster, independent, replicated
from lab.servers.supervisor import Server, until
from lab.surface import Target
from lab.witness import Witness, apis_of
from lab.worker import Spec
from store.faults.kit import TIMEOUT, renewed, usually_sync

both_apis = apis_of("quorum", "quorum+redis://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
pytestmark = [pytest.mark.gate, pytest.mark.early, pytest.mark.slow, pytest.mark.timeout(200)]
Nodes = tuple[Server, ...]
LASTING = 12.0
FREE = 43
"""Bytes of the head of a free queue: see lua/head.lua."""
_TOP = "return string.sub(redis.call('HGET', KEYS[1], 'h') or '', 2, 17)"


@pytest.fixture(scope="module")
def all_nodes() -> Iterator[Nodes]:
    require("redis")
    with independent(5) as nodes:
        yield nodes


@pytest.fixture
def nodes(all_nodes: Nodes) -> Iterator[Nodes]:
    """All of them serve at the beginning."""
    yield all_nodes
    for node in all_nodes:
        if node.running():
            node.resume()
        else:
            node.restart()


def url_of(nodes: Nodes, **options: object) -> str:
    """Without a guard, unless one is wanted: these servers have just begun."""
    wanted = {"guard": 0, **options}
    query = "&".join(f"{key}={value}" for key, value in wanted.items() if value is not None)
    return f"quorum+redis://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}?{query}"


def harm(kind: str, *nodes: Server) -> None:
    for node in nodes:
        if kind == "kill":
            node.kill()
        else:
            node.stop()


def stands_at(nodes: Nodes, name: str) -> list[int]:
    """The numbers of the servers that have a claim."""
    return [number for number, node in enumerate(nodes) if int(node.ask("HSTRLEN", f"dibs:{name}|line", "h")) > FREE]


def tokens_at(nodes: Nodes, name: str) -> set[int]:
    """The last token that each server knows of."""
    return {int(node.ask("EVAL", _TOP, "1", f"dibs:{name}|line") or 0) for node in nodes}


def held_by_all(client: dibs.Client, nodes: Nodes, name: str) -> dibs.Hold:
    """A majority is enough for a hold: acquire again until every server has voted."""
    while True:
        hold = client.lock(name).acquire(timeout=TIMEOUT)
        assert hold is not None
        if len(stands_at(nodes, name)) == len(nodes):
            return hold
        hold.release()


@pytest.mark.parametrize("kind", ["kill", "stop"])
@usually_sync
async def test_any_two_may_be_down(world: World, nodes: Nodes, name: str, kind: str) -> None:
    """Acquire with all five; then renew, release and acquire with three."""
    client, other = world.client(url_of(nodes), lease=LASTING), world.client(url_of(nodes), lease=LASTING)
    witness = Witness(world, name)
    hold = await world(witness.take(client.lock(name), timeout=TIMEOUT))
    while tokens_at(nodes, name) != {hold.token}:  # a member that was slow counts as one that is down, and two more are
        await world(witness.give(hold))
        hold = await world(witness.take(client.lock(name), timeout=TIMEOUT))
    harm(kind, nodes[0], nodes[3])
    for _ in range(2):
        assert await world(other.lock(name).locked)
        await renewed(witness, hold, LASTING)
        await world(witness.give(hold))
        hold = await world(witness.take(other.lock(name), timeout=TIMEOUT))
    await world(witness.give(hold))
    witness.acquit()


def uptime(node: Server) -> int:
    facts = dict(line.split(":", 1) for line in node.ask("INFO", "server").splitlines() if ":" in line)
    return int(facts["uptime_in_seconds"])


def test_a_server_that_keeps_everything_votes_at_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """appendfsync always: it restarts with every vote, so its vote counts at once."""
    with independent(3, persist="always") as nodes, dibs.connect(url_of(nodes, guard=None), lease=20) as client:
        hold = held_by_all(client, nodes, name)
        for node in nodes[:2]:
            node.restart()
        late = "no answer in time" in caplog.text  # on a busy machine: then a vote that it got was given back
        assert stands_at(nodes, name) == [0, 1, 2] or late
        hold.release()
        with client.lock(name, timeout=TIMEOUT) as again:
            assert again.token > hold.token


def test_a_server_that_keeps_nothing_has_to_wait(name: str) -> None:
    young = pytest.raises(dibs.StoreUnavailable, match="just started, may have lost votes, and cannot vote for")
    with independent(3) as nodes, dibs.connect(url_of(nodes, guard=None), lease=20) as client, young:
        client.lock(name).acquire(timeout=0)


@pytest.mark.soak  # a crowd, on every core
@pytest.mark.timeout(200)
def test_twenty_contenders_make_progress_while_members_come_and_go(nodes: Nodes, name: str, tmp_path: Path) -> None:
    """Four processes with three threads and two tasks each, on one name; judged by the lab."""
    url = url_of(nodes, guard=None)
    until(lambda: all(uptime(node) > 3 for node in nodes), what="all have been up for longer than the lease")
    targets = [Target(name, "mutex", 1)]
    specs = [
        Spec(f"p{n}", url, str(tmp_path), os.urandom(4).hex(), targets, lease=2.0, threads=3, tasks=2, look=0.0)
        for n in range(4)
    ]
    with Crowd(specs) as crowd:
        crowd.until(lambda: crowd.grants() >= 40, "forty grants")
        for kind, victims in (("stop", nodes[:2]), ("stop", nodes[2:4]), ("kill", nodes[3:])):
            harm(kind, *victims)
            before = crowd.grants()
            crowd.until(lambda before=before: crowd.grants() >= before + 20, f"twenty more, after {kind}")
            for node in victims:
                if node.running():
                    node.resume()
                else:
                    node.restart(wipe=True)
        crowd.heal()
        crowd.quiet(30.0)
        crowd.end()
        verdict = judge(crowd.history(), within=30.0, fenced=crowd.fenced())
    found = [violation for violation in verdict.violations if violation.kind != "fifo"]  # nobody was promised order
    assert not found, verdict.text()


@pytest.mark.soak  # fifteen servers: their addresses are parsed as every other
def test_members_of_any_kind(name: str) -> None:
    """A single server, a primary found by sentinels, and a cluster."""
    require("redis")
    with Server(Redis()) as single, replicated(replicas=1, sentinels=3) as group, cluster() as shards:
        urls = [
            single.url(),
            f"redis+sentinel://{','.join(f'127.0.0.1:{node.port}' for node in group.sentinels)}/{MAIN}",
            f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in shards[:3])}",
        ]
        with dibs.connect(urls, guard=0) as client, dibs.connect(urls, guard=0) as other:
            with client.lock(name, timeout=TIMEOUT) as hold:
                assert other.lock(name).acquire(timeout=0) is None
            single.kill()
            with other.lock(name, timeout=TIMEOUT) as again:
                assert again.token > hold.token
            assert client.doctor()


def test_drivers_are_members_too(nodes: Nodes, name: str) -> None:
    drivers = [redis.Redis(host="127.0.0.1", port=node.port) for node in nodes[:3]]
    try:
        with dibs.connect(drivers, guard=0) as client, held_by_all(client, nodes[:3], name) as hold:
            assert stands_at(nodes, name) == [0, 1, 2]
            hold.check()
    finally:
        for driver in drivers:
            driver.close()


def test_one_server_under_two_names_is_refused(nodes: Nodes, name: str) -> None:
    """The third is down, so the two names of one server would be the majority."""
    twins = f"127.0.0.1:{nodes[0].port}", f"localhost:{nodes[0].port}", f"127.0.0.1:{nodes[1].port}"
    refused = pytest.raises(dibs.StoreError, match="two members are the same store")
    harm("stop", nodes[1])
    with dibs.connect([f"redis://{host}" for host in twins], guard=0) as client, refused:
        client.lock(name).acquire(timeout=TIMEOUT)


@both_apis
async def test_ping_needs_a_majority_and_no_more(world: World, nodes: Nodes) -> None:
    clients = [world.client(url_of(nodes)) for _ in range(3)]
    first, second, third, *_ = sorted(nodes, key=lambda node: str(node.port))
    first.stop()
    second.stop()
    took = [await world(lambda client=client: client.ping(TIMEOUT)) for client in clients]
    assert min(took) < LEAST_PATIENCE, "it waits for no member in particular, as `identity` does"
    third.stop()
    with pytest.raises(dibs.StoreUnavailable, match="2 of 5 members answered"):
        await world(lambda: clients[0].ping(timeout=5))
    for node in (first, second, third):  # clients are closed sooner
        node.resume()
