"""Which node of a real cluster has a key: before and after a fail-over, past those who are silent or only half
informed, by a URL or a driver of redis-py, and with an error that says what is the matter."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

import dibs
from dibs.backends.redis.address import Address
from dibs.backends.redis.discovery import ask, facts
from dibs.backends.redis.topology import MOVES, SLOTS, Cluster, Topology, topology
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import boottime
from dibs.url import parse
from lab.servers import certificates, ports, shared_redis
from lab.servers.programs import Refused, require
from lab.servers.redis import Redis
from lab.servers.redis_groups import cluster, role
from lab.servers.supervisor import Server, together, until
from store.redis import test_rights
from store.redis.finding import PATIENCE, at, endpoint, finder, learned, nobody, refusal, silent

pytestmark = pytest.mark.timeout(150)  # elections, on a machine that others use too
Nodes = tuple[Server, ...]
KEYS = [b"a", b"dibs:invoice:42|line", b"a{tag}b", b"{tag}", b"{}a", b"{a", b"}{x}", "dibs:\u00e9|cell".encode()]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    require("redis")
    with cluster() as made:
        yield made


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    with silent() as listening:
        yield listening


def serves(node: Server, key: bytes) -> bool:
    """Whether it has this key, and sends nobody elsewhere."""
    try:
        node.ask("GET", key.decode())
    except Refused:
        return False
    return True


def settled(nodes: Nodes) -> None:
    """Every node knows who the primaries are: the next test may ask any of them."""

    def known(node: Server) -> frozenset[str]:
        lines = [line.split() for line in node.ask("CLUSTER", "NODES").splitlines()]
        return frozenset(word[0] for word in lines if "master" in word[2] and len(word) > 8)

    def agreed() -> bool:
        primaries = frozenset(node.ask("CLUSTER", "MYID") for node in nodes if role(node) == "master")
        return {known(node) for node in nodes} == {primaries}

    until(agreed, 60, "all nodes agree")


def node_at(nodes: Nodes, found: Topology, key: bytes) -> Server | None:
    return next((node for node in nodes if endpoint(node) == found.locate(key)), None)


def test_each_key_is_where_its_slot_is(nodes: Nodes) -> None:
    found = finder(f"redis+cluster://{at(nodes[0])}")
    assert (found.locate(b"a"), found.all()) == (None, [])
    learned(found)
    for key in KEYS:
        node = node_at(nodes, found, key)
        assert node is not None
        assert serves(node, key), key
    assert len(found.all()) == 3
    assert all(role(node) == "master" for node in nodes if endpoint(node) in found.all())


def test_any_node_will_do_and_the_silent_cost_a_share(nodes: Nodes, mute: socket.socket) -> None:
    replica = next(node for node in nodes if role(node) == "slave")
    found = learned(finder(f"redis+cluster://{at(mute.getsockname()[1], nobody(), replica)}"), 10)
    assert len(found.all()) == 3
    mute.accept()[0].close()
    for known in found.all():
        found.forget(known)
    assert len(learned(found).all()) == 3
    with pytest.raises(BlockingIOError):  # now that nodes are known, the silent one is not asked first
        mute.accept()


def test_forgetting_one_of_them(nodes: Nodes) -> None:
    found = learned(finder(f"redis+cluster://{at(nodes[0])}"))
    gone, *others = found.all()
    found.forget(gone)
    assert found.all() == others
    lost = next(key for key in numbered() if found.locate(key) is None)
    kept = next(key for key in numbered() if found.locate(key) is not None)
    assert found.locate(kept) in others
    assert learned(found).locate(lost) == gone


def numbered() -> Iterator[bytes]:
    return (f"key-{number}".encode() for number in range(10_000))


def test_moved_slots(nodes: Nodes) -> None:
    found = learned(finder(f"redis+cluster://{at(nodes[0])}"))
    old = found.locate(b"a")
    keys = [key for key in numbered() if found.locate(key) == old][: MOVES + 1]
    *moved, last = keys
    elsewhere = ("elsewhere", 1)
    for key in moved[:-1]:
        found.moved(key, elsewhere)
        assert (found.locate(key), found.locate(last)) == (elsewhere, old)
    found.moved(moved[-1], elsewhere)
    assert {found.locate(key) for key in moved} == {elsewhere}
    assert found.locate(last) is None  # and so the next one who asks for it learns
    assert old not in found.all()
    assert {learned(found).locate(key) for key in keys} == {old}


def test_a_node_that_was_cut_off_is_not_asked_first_again(nodes: Nodes) -> None:
    found = Cluster(Address.of(parse(f"redis+cluster://{at(nodes[0])}")), boottime)
    learned(found)
    assert found._nodes[0] == endpoint(nodes[0])
    found.forget(endpoint(nodes[0]))
    assert found._nodes[-1] == endpoint(nodes[0])
    assert learned(found)._nodes[0] != endpoint(nodes[0])


def test_a_cluster_by_tls(tmp_path: Path) -> None:
    require("redis", "openssl")
    pems = certificates.make(tmp_path)
    with Server(Redis(tls=pems, cluster_timeout_ms=2000)) as node:
        node.ask("CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
        text = f"rediss+cluster://localhost:{node.port}"
        assert learned(finder(text, ca=pems.authority.certificate)).all() == [endpoint(node)]
        assert "cannot be trusted" in str(refusal(finder(text)))


def test_a_server_by_itself_is_no_cluster() -> None:
    found = refusal(finder(f"redis+cluster://{at(shared_redis.redis())}"))
    assert not isinstance(found, StoreUnavailable)
    assert "is not a node of a cluster. Next: write redis://" in str(found)


@pytest.fixture(scope="module")
def lone() -> Iterator[Nodes]:
    """Nodes that have not met: one knows no slot, one a few, one all of them."""
    require("redis")
    with together(*(Redis(cluster_timeout_ms=2000) for _ in range(3))) as made:
        made[1].ask("CLUSTER", "ADDSLOTSRANGE", "0", "999")
        made[2].ask("CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
        yield made


def test_half_an_answer_is_kept_as_far_as_it_goes(lone: Nodes) -> None:
    empty, few, whole = lone
    known = next(key for key in numbered() if key_slot(key) < 1000)
    unknown = next(key for key in numbered() if key_slot(key) >= 1000)
    nothing = refusal(finder(f"redis+cluster://{at(empty)}"))
    assert isinstance(nothing, StoreUnavailable)
    assert f"{ports.HOST}:{empty.port} knows no other node yet" in str(nothing)
    half = learned(finder(f"redis+cluster://{at(empty, few)}"))
    assert (half.locate(known), half.locate(unknown), half.all()) == (endpoint(few), None, [endpoint(few)])
    full = learned(finder(f"redis+cluster://{at(empty, few, whole)}"))
    assert full.locate(known) == full.locate(unknown) == endpoint(whole)


@pytest.mark.parametrize(("told", "host"), [("unknown-endpoint", "localhost"), ("hostname", ports.HOST)])
def test_a_node_that_does_not_say_its_host(lone: Nodes, told: str, host: str) -> None:
    """Without one it is the host that was asked; where it should have a name and has none, its address."""
    whole = lone[2]
    whole.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", told)
    try:
        assert learned(finder(f"redis+cluster://localhost:{whole.port}")).all() == [(host, whole.port)]
    finally:
        whole.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


# What is asked by a plain command, and not by a script, follows its key to another node too


@pytest.mark.parametrize("space", ["cell", "latch"])
def test_a_key_moves_to_another_node(nodes: Nodes, space: str) -> None:
    """While its slot is on its way it is read where it is; then there, by who was sent there and who was not."""
    key = f"dibs:moving|{space}"
    slot = key_slot(key.encode())
    primaries = [node for node in nodes if role(node) == "master"]
    source = next(node for node in primaries if serves(node, key.encode()))
    target = next(node for node in primaries if node is not source)
    with dibs.connect(f"redis+cluster://{at(*nodes)}", retry=30) as client:
        cell, latch = client.cell("moving"), client.latch("moving")
        if space == "cell":
            cell.set(b"1", 0)
        else:
            latch.arm(3)

        def seen() -> object:
            return cell.get() if space == "cell" else latch.count()

        before = seen()
        owner = target.ask("CLUSTER", "MYID")
        target.ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", str(slot), "MIGRATING", owner)
        source.ask("MIGRATE", ports.HOST, str(target.port), key, "0", "5000")
        assert seen() == before, "ASK"
        for node in (target, *(node for node in primaries if node is not target)):
            node.ask("CLUSTER", "SETSLOT", str(slot), "NODE", owner)
        assert seen() == before, "MOVED"
        if space == "cell":
            assert cell.set(b"2", 1) == 2
        else:
            latch.count_down()
        assert seen() != before


def test_a_cell_is_read_after_an_orderly_fail_over(nodes: Nodes) -> None:
    """Nobody is down: each old primary lives on as a replica, and says where the keys are now."""
    with dibs.connect(f"redis+cluster://{at(*nodes)}", retry=30) as client:
        cells = [client.cell(f"c{number}") for number in range(9)]
        latches = [client.latch(f"l{number}") for number in range(9)]
        assert [cell.set(b"1", 0) for cell in cells] == [1] * 9
        for latch in latches:
            latch.arm(2)
        for replica in (before := [node for node in nodes if role(node) == "slave"]):
            replica.ask("CLUSTER", "FAILOVER")
        until(lambda: [role(node) for node in before] == ["master"] * 3, what="they took over")
        assert [cell.get() for cell in cells] == [(b"1", 1)] * 9
        assert [latch.count() for latch in latches] == [2] * 9
    settled(nodes)


def test_the_rights_that_doctor_prints_are_enough_in_a_cluster(nodes: Nodes) -> None:
    url = f"redis+cluster://{at(*nodes)}"
    line = test_rights.printed(url)
    test_rights.make(line, *nodes)
    test_rights.every_kind(test_rights.as_user(url))
    test_rights.make(test_rights.without(line, "+cluster|slots"), *nodes)
    with (
        dibs.connect(test_rights.as_user(url), retry=1) as client,
        pytest.raises(dibs.StoreError, match="no permissions"),
    ):
        client.lock("a").acquire(timeout=1)


# Drivers of redis-py


@pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["blocking", "asyncio"])
def test_a_driver_of_a_cluster(module: Any, nodes: Nodes) -> None:
    asked = {"host": ports.HOST, "port": nodes[0].port}
    with ExitStack() as stack:

        def driver(**settings: Any) -> Any:
            made = module.RedisCluster(**asked, **settings)
            stack.callback(lambda: made.close() if module is redis else asyncio.run(_closed(made)))
            return made

        address = Address.of_driver(driver(client_name="shop", protocol=3))
        assert (address.topology, (ports.HOST, nodes[0].port) in address.endpoints) == ("cluster", True)
        assert address.shown.startswith(f"redis+cluster://{ports.HOST}:")
        found = learned(topology(address, boottime))
        assert len(found.all()) == 3
        there = found.locate(b"a")
        assert there is not None
        answer = ask(address.connection(there, PATIENCE), "CLIENT", "INFO").decode()
        assert " name=shop " in answer
        assert " resp=3" in answer
        elsewhere = driver(address_remap=lambda endpoint: ("localhost", endpoint[1]))
        found = learned(topology(Address.of_driver(elsewhere), boottime))
        assert {known[0] for known in found.all()} == {"localhost"}
        assert found.reached(("10.0.0.1", 7), ("localhost", 1)) == ("localhost", 7)


async def _closed(driver: Any) -> None:
    await driver.aclose()


def test_a_function_of_the_users_in_a_cluster(nodes: Nodes) -> None:
    called: list[Any] = []
    with redis.RedisCluster(host=ports.HOST, port=nodes[0].port, redis_connect_func=called.append) as driver:
        address = Address.of_driver(driver)
        called.clear()
        made = address.connection(address.endpoints[0], PATIENCE)
        assert ask(made, "PING") == b"PONG"
        assert called == [made]


WORDS = st.none() | st.integers(-1, 70_000) | st.binary(max_size=4) | st.sampled_from([b"?", b"ip", b"h"])
ANSWERS = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=5), max_leaves=40)
RANGES = st.lists(st.tuples(st.integers(-1, SLOTS), st.integers(-1, SLOTS), ANSWERS, ANSWERS).map(list), max_size=4)


@settings(max_examples=40)  # each makes a table of all slots
@given(ANSWERS | RANGES)
def test_no_answer_is_too_odd(answer: object) -> None:
    found = Cluster(Address.of(parse("redis+cluster://h1")), boottime)
    table, known = found.read(answer, ("h1", 6379))
    assert len(table) == SLOTS
    assert all(isinstance(host, str) and 0 < port < 65536 for host, port in known)
    assert isinstance(facts(answer), dict)
