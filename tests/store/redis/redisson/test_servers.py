"""Servers that restart, forget their scripts, fail over, or are a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import redis

import dibs
from lab.redisson import PATIENCE, Failed, Redisson, Sharded
from lab.servers import ports, programs, redis_groups
from lab.servers.redis import Redis
from lab.servers.supervisor import Server, joint_url, until
from store.faults.refusals import busy
from store.faults.stores import SLOW
from store.redis.redisson.peers import FAIR, FENCED, KINDS, LOCK, SEMAPHORE, WRITE, Kind, Raw, take_turns
from store.sides import Python, python

pytestmark = [pytest.mark.gate, pytest.mark.slow, pytest.mark.xdist_group("redisson-servers")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    programs.require("redis", "redisson")
    with Server(Redis(persist="always")) as made:
        yield made


@pytest.fixture(scope="module")
def jvm(server: Server) -> Iterator[Redisson]:
    with Redisson(f"{ports.HOST}:{server.port}") as java:
        yield java


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scripts_that_the_server_forgot(jvm: Redisson, here: Python, own: Raw, name: str, kind: Kind) -> None:
    client = here.client()
    take_turns(jvm, here, own, name, kind, client)
    hold = here.take(kind.ours(client, name))
    own.client.script_flush()
    here.do(hold.release)
    own.client.script_flush()
    take_turns(jvm, here, own, name, kind, client)


def test_a_server_that_restarts_with_its_data(server: Server, jvm: Redisson, here: Python, own: Raw, name: str) -> None:
    """A hold stays, and a waiter in Python gets the lock. Java gets it once its client has connected again."""
    client = here.client()
    for kind in (LOCK, FAIR):
        hold = here.take(kind.ours(client, f"{name}-{kind}"))
        ours = here.takes(kind.ours(here.client(), f"{name}-{kind}"))
        own.wait_for(kind, f"{name}-{kind}", 1)
        server.restart()
        hold.check()
        here.do(hold.release)
        here.do(ours.result(PATIENCE).release)
    until(lambda: _unless_failed(lambda: jvm.lock(name).take(5)), PATIENCE, "Java has it")
    ours = here.takes(client.lock(name))
    own.wait_for(LOCK, name, 1)
    server.restart()
    until(lambda: _unless_failed(jvm.lock(name).force) or not own.holders(name), PATIENCE, "it is forced")
    here.do(ours.result(PATIENCE).release)


def _unless_failed(action: Callable[[], Any]) -> Any:
    """None: Java's connection was lost, and its client does not retry."""
    try:
        return action()
    except Failed:
        return None


def test_a_server_that_lost_its_data(server: Server, jvm: Redisson, here: Python, own: Raw, name: str) -> None:
    hold = here.take(here.client(lease=3).lock(name))
    until(own.client.flushall, PATIENCE, "it is empty")
    assert jvm.lock(name).take(0) is not None
    until(hold.lost.is_set, PATIENCE, "it hears of its loss")
    assert hold.lost_reason == "broken"
    with pytest.raises(dibs.LockLost):
        here.do(hold.release)
    assert len(own.holders(name)) == 1


@pytest.mark.early
def test_a_fail_over(name: str) -> None:
    programs.require("redis", "redisson")
    with redis_groups.replicated(replicas=2, sentinels=3) as group:
        where = [f"{ports.HOST}:{sentinel.port}" for sentinel in group.sentinels]
        url = joint_url("redis+sentinel", group.sentinels, f"/{redis_groups.MAIN}?layout=redisson&replicas=1")
        with (
            Redisson(where, topology="sentinel", service=redis_groups.MAIN, timeout=PATIENCE) as java,
            python("blocking", url) as side,
        ):
            client = side.client(lease=30)
            for kind in (LOCK, FENCED, FAIR, WRITE, SEMAPHORE):
                side.do(side.take(kind.ours(client, f"{name}-{kind}")).release)
                theirs = kind.java(java, f"{name}-{kind}")
                assert theirs.take()
                theirs.give()
            hold = side.take(client.lock(name))
            group.primary.kill()
            theirs_too = java.lock(f"{name}-java")
            until(lambda: _answers(side, client), PATIENCE, "the next primary")
            hold.check()
            assert java.lock(name).take(0) is None
            waits = java.lock(name).begin_take()
            side.do(hold.release)
            assert waits.result(PATIENCE) is not None
            assert theirs_too.take() is not None
            assert side.tries(client.lock(f"{name}-java")) is None


def _answers(side: Python, client: Any) -> bool:
    try:
        side.inspect("a", client)
    except dibs.StoreUnavailable:
        return False
    return True


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Server, ...]]:
    programs.require("redis", "redisson")
    with redis_groups.cluster() as made:
        yield tuple(made)


@pytest.mark.early
@pytest.mark.parametrize("sharded", ["AUTO", "OFF"])
def test_a_cluster(nodes: tuple[Server, ...], name: str, sharded: Sharded) -> None:
    """With sharded messages and without them, on every server."""
    where = [f"{ports.HOST}:{node.port}" for node in nodes[:3]]
    url = joint_url("redis+cluster", nodes[:3], f"?layout=redisson&sharded={sharded.lower()}")
    with (
        Redisson(where, topology="cluster", sharded=sharded, timeout=PATIENCE) as java,
        python("blocking", url) as threads,
        python("aio", url) as tasks,
        closing(redis.Redis(port=nodes[0].port)) as client,
    ):
        nowhere = Raw(client, "")
        for number, kind in enumerate(KINDS):
            side = (threads, tasks)[number % 2]
            for slot in range(3):
                own = f"{{{slot}}}{name}-{kind}"
                wait = partial(_until_one_waits, nodes, own, is_sharded=sharded != "OFF")
                take_turns(java, side, nowhere, own, kind, side.client(), wait)
        _a_latch(java, tasks, f"{name}-latch")
        assert {info.name for info in threads.locks("")} == set()


def _until_one_waits(nodes: tuple[Server, ...], name: str, *, is_sharded: bool) -> None:
    command = "SHARDCHANNELS" if is_sharded else "CHANNELS"

    def waits() -> bool:
        found: list[bytes] = []
        for node in nodes:
            with closing(redis.Redis(port=node.port, protocol=2)) as client:
                found += client.execute_command("PUBSUB", command)
        return any(name.encode() in channel for channel in found)

    until(waits, PATIENCE, f"one waits for {name}")


def test_a_cluster_that_is_busy_at_first(name: str) -> None:
    """The check for sharded messages is repeated."""
    programs.require("redis")
    with (
        redis_groups.cluster(*SLOW, primaries=1, node_timeout_ms=60_000) as group,
        python("blocking", joint_url("redis+cluster", group[:1], "?layout=redisson")) as side,
    ):
        client = side.client()
        side.inspect(name, client)  # it knows the servers from here on
        with busy(group[0]), pytest.raises(dibs.StoreUnavailable):
            side.take(client.lock(name), timeout=1)
        hold = side.take(client.lock(name))
        waits = side.takes(side.client().lock(name))
        _until_one_waits(group, name, is_sharded=True)
        side.do(hold.release)
        side.do(waits.result(PATIENCE).release)


def _a_latch(java: Redisson, side: Python, name: str) -> None:
    ours = side.client().latch(name)
    side.do(lambda: ours.arm(1))
    waits = java.latch(name).begin_wait(PATIENCE)
    side.do(ours.count_down)
    assert waits.result(PATIENCE)
    assert java.latch(name).set_count(1)
    python = side.begin(lambda: ours.wait(PATIENCE))
    java.latch(name).count_down()
    assert python.result(PATIENCE)
