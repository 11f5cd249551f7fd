"""The endpoint of a key, learned from real sentinels and cluster nodes: before and after a fail-over, past silent or
wrong ones, by a URL or a driver of redis-py. Errors name the cause."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.crc import key_slot
from redis.sentinel import Sentinel as DriverSentinel
from redis.sentinel import SentinelConnectionPool

import dibs
from dibs.backends.redis import discovery
from dibs.backends.redis.address import Address, Endpoint
from dibs.backends.redis.discovery import ask, facts
from dibs.backends.redis.topology import MOVES, SLOTS, Cluster, Sentinel, Topology, topology
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import boottime
from dibs.url import parse
from lab.faults import Latency
from lab.proxy import Proxy
from lab.servers import ports, shared_redis
from lab.servers.programs import Refused, require
from lab.servers.redis import Redis, directly
from lab.servers.redis import Sentinel as SentinelServer
from lab.servers.redis_groups import Group, cluster, replicated, role
from lab.servers.supervisor import Server, together, until
from store.redis import test_rights
from store.redis.kit import at

PATIENCE = 30.0
PASSWORD = "open-sesame"


def finder(text: str, **options: Any) -> Topology:
    return topology(Address.of(parse(text), **options), boottime)


def learned(found: Topology, patience: float = PATIENCE) -> Topology:
    found.learn(boottime() + patience)
    return found


def tried(found: Topology, patience: float = PATIENCE) -> Topology:
    """As a caller does until its deadline."""
    with suppress(StoreUnavailable):
        found.learn(boottime() + patience)
    return found


def refusal(found: Topology, patience: float = PATIENCE) -> StoreError:
    with pytest.raises(StoreError) as caught:
        found.learn(boottime() + patience)
    assert caught.value.__context__ is None
    return caught.value


def endpoint(server: Server) -> Endpoint:
    return (ports.HOST, server.port)


def nobody() -> int:
    with socket.create_server((ports.HOST, 0)) as gone:
        return int(gone.getsockname()[1])


def test_one_server_is_where_it_is() -> None:
    found = finder("unix:///run/redis.sock")
    found.forget("/run/redis.sock")
    learned(found).moved(b"a", ("h", 1))
    assert found.locate(b"a") == "/run/redis.sock"
    assert found.all() == ["/run/redis.sock"]
    assert finder("redis://h1").reached(("", 7), ("h1", 6379)) == ("h1", 7)


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    require("redis")
    with replicated(replicas=1, sentinels=3, password=PASSWORD, down_after_ms=60_000) as made:
        yield made


class Guarded:
    """A sentinel with a login; `before`: options for redis-cli."""

    name = "sentinel"
    user = None

    def __init__(self, kind: SentinelServer, line: str, before: tuple[str, ...]) -> None:
        kind._lines += (line,)
        self.port, self.ports = kind.port, kind.ports
        self.prepare, self.command, self.url = kind.prepare, kind.command, kind.url
        self.ask = partial(kind.ask, *before)

    def ready(self) -> bool:
        return self.ask("PING", within=2) == "PONG"


def watching(port: int) -> SentinelServer:
    return SentinelServer(port, quorum=1, down_after_ms=60_000, password=None, through=directly)


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """It listens, and says nothing; `accept` does not wait."""
    with socket.create_server((ports.HOST, 0)) as listening:
        listening.setblocking(False)
        yield listening


def of(group: Group, *before: int | Server, login: str = f":{PASSWORD}@") -> Topology:
    return finder(f"redis+sentinel://{login}{at(*before, *group.sentinels)}/main")


def test_the_primary_by_its_sentinels(group: Group) -> None:
    found = of(group)
    assert (found.locate(b"a"), found.all()) == (None, [])
    learned(found)
    assert (found.locate(b"a"), found.all()) == (endpoint(group.primary), [endpoint(group.primary)])
    found.forget((ports.HOST, 1))
    assert found.locate(b"a") == endpoint(group.primary)
    found.forget(endpoint(group.primary))
    assert (found.locate(b"a"), found.all()) == (None, [])


@pytest.mark.gate
def test_who_is_silent_or_gone_costs_a_share_of_the_time_and_only_once(group: Group, mute: socket.socket) -> None:
    found = of(group, mute.getsockname()[1], nobody())
    assert learned(found, 10).locate(b"a") == endpoint(group.primary)
    mute.accept()[0].close()
    found.forget(endpoint(group.primary))
    assert learned(found).locate(b"a") == endpoint(group.primary)
    with pytest.raises(BlockingIOError):  # whoever answered is asked first: the silent one was not asked again
        mute.accept()


@pytest.mark.gate
def test_nobody_answers(mute: socket.socket, group: Group) -> None:
    assert "no time was left" in str(refusal(of(group), -1.0))
    silent, gone = mute.getsockname()[1], nobody()
    found = refusal(finder(f"redis+sentinel://{at(silent, gone)}/main"), 1.0)
    assert isinstance(found, StoreUnavailable)
    assert 'no majority of the sentinels names the primary of "main"' in str(found)
    assert f"127.0.0.1:{silent} does not answer" in str(found)
    assert f"no connection to 127.0.0.1:{gone}: Connection refused" in str(found)
    assert str(found).startswith("redis+sentinel://")


@pytest.mark.gate
def test_one_who_answers_late_is_given_more_time(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "QUICK", 0.02)
    with Proxy((ports.HOST, group.sentinels[0].port)) as proxy:
        proxy.add(Latency(0.2))
        found = finder(f"redis+sentinel://:{PASSWORD}@{at(proxy.port)}/main")
        assert isinstance(refusal(found), StoreUnavailable)
        until(lambda: tried(found).locate(b"a"), what="enough patience")


@pytest.mark.gate
def test_a_sentinel_that_is_wrong_is_not_believed(group: Group) -> None:
    """It takes a replica for the primary. Without the password it never learns better."""
    with Server(watching(group.replicas[0].port)) as misled:
        found = refusal(finder(f"redis+sentinel://:{PASSWORD}@{at(misled)}/main"))
        assert isinstance(found, StoreUnavailable)
        assert "is named as the primary, but is not the primary yet" in str(found)
        assert learned(of(group, misled)).locate(b"a") == endpoint(group.primary)


def test_a_service_that_nobody_watches(group: Group) -> None:
    found = refusal(finder(f"redis+sentinel://:{PASSWORD}@{at(*group.sentinels)}/mian"))
    assert not isinstance(found, StoreUnavailable)
    assert 'watches no service "mian"; it watches "main". Next: give one of them in the URL' in str(found)


def test_a_primary_that_refuses_the_login(group: Group) -> None:
    for login in ("", ":s3cr3t@", "ana:s3cr3t@"):
        found = refusal(of(group, login=login))
        assert not isinstance(found, StoreUnavailable)
        assert "refuses the login" in str(found)
        assert "Next: check user and password" in str(found)
        assert "s3cr3t" not in str(found)


@pytest.mark.gate
def test_sentinels_with_a_login_of_their_own(group: Group) -> None:
    login = ("--no-auth-warning", "-a", "s3cr3t")
    with Server(Guarded(watching(group.primary.port), "user default on >s3cr3t +@all", login)) as server:
        text = f"redis+sentinel://:{PASSWORD}@{at(server)}/main"
        for wrong in (finder(text), finder(text, sentinel_password="no-s3cr3t")):
            found = refusal(wrong)
            assert "refuses the login" in str(found)
            assert "s3cr3t" not in str(found)
        right = learned(finder(text, sentinel_username="default", sentinel_password="s3cr3t"))
        assert right.locate(b"a") == endpoint(group.primary)


@pytest.mark.gate
def test_a_waiter_for_an_asker_that_is_gone_asks_in_the_end(group: Group) -> None:
    found = of(group)
    assert isinstance(found, Sentinel)
    abandoned = threading.Lock()
    abandoned.acquire()
    found._discovery._ongoing = abandoned  # as of a thread that did not come along into a forked child
    until(lambda: tried(found, 2.0).locate(b"a"), what="it asks by itself")


@pytest.mark.gate
def test_the_rights_that_doctor_prints_are_enough_with_sentinels_and_replicas(group: Group) -> None:
    url = f"redis+sentinel://:{PASSWORD}@{at(*group.sentinels)}/main"
    test_rights.are_enough(url, (group.primary, *group.replicas), "+role", "+wait", replicas=1)


# Drivers of redis-py


@pytest.mark.gate
@pytest.mark.parametrize("kind", [DriverSentinel, AsyncSentinel], ids=["blocking", "asyncio"])
def test_a_service_of_a_drivers_sentinel(kind: Any, group: Group) -> None:
    port = group.sentinels[0].port
    manager = kind([(ports.HOST, port)], password=PASSWORD, db=2, sentinel_kwargs={"db": 0})
    driver = manager.master_for("main", client_name="shop")
    for source in (driver, driver.connection_pool):
        address = Address.of_driver(source)
        assert address.shown == f"redis+sentinel://{ports.HOST}:{port}/main/2"
        found = learned(topology(address, boottime)).locate(b"a")
        assert found == endpoint(group.primary)
        answer = ask(address.connection(found, PATIENCE), "CLIENT", "INFO").decode()
        assert " name=shop " in answer
        assert " db=2 " in answer


@pytest.mark.gate
def test_what_a_drivers_sentinel_was_told(group: Group) -> None:
    asked = [(ports.HOST, group.sentinels[0].port)]
    wary = DriverSentinel(asked, min_other_sentinels=9, password=PASSWORD)
    told = refusal(topology(Address.of_driver(wary.master_for("main")), boottime))
    assert "sees 2 other sentinels; it should see 9" in str(told)
    forced = DriverSentinel(asked, force_master_ip="localhost", password=PASSWORD)
    found = learned(topology(Address.of_driver(forced.master_for("main")), boottime))
    assert found.locate(b"a") == ("localhost", group.primary.port)
    pool = SentinelConnectionPool("main", DriverSentinel(asked), password=PASSWORD)
    assert learned(topology(Address.of_driver(pool), boottime)).locate(b"a") == endpoint(group.primary)


Nodes = tuple[Server, ...]
KEYS = [b"a", b"dibs:invoice:42|line", b"a{tag}b", b"{tag}", b"{}a", b"{a", b"}{x}", "dibs:\u00e9|cell".encode()]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    require("redis")
    with cluster() as made:
        yield made


def serves(node: Server, key: bytes) -> bool:
    try:
        node.ask("GET", key.decode())
    except Refused:
        return False
    return True


def test_each_key_is_where_its_slot_is(nodes: Nodes) -> None:
    found = finder(f"redis+cluster://{at(nodes[0])}")
    assert (found.locate(b"a"), found.all()) == (None, [])
    learned(found)
    for key in KEYS:
        (node,) = (node for node in nodes if endpoint(node) == found.locate(key))
        assert serves(node, key), key
    assert len(found.all()) == 3
    assert all(role(node) == "master" for node in nodes if endpoint(node) in found.all())


@pytest.mark.gate
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


@pytest.mark.gate
def test_forgetting_one_of_them(nodes: Nodes) -> None:
    """It is not asked first again."""
    found = Cluster(Address.of(parse(f"redis+cluster://{at(nodes[0])}")), boottime)
    gone = learned(found)._nodes[0]
    assert gone == endpoint(nodes[0])
    others = [known for known in found.all() if known != gone]
    found.forget(gone)
    assert (found.all(), found._nodes[-1]) == (others, gone)
    lost = next(key for key in numbered() if found.locate(key) is None)
    kept = next(key for key in numbered() if found.locate(key) is not None)
    assert found.locate(kept) in others
    assert learned(found).locate(lost) == gone
    assert found._nodes[0] != gone


def numbered() -> Iterator[bytes]:
    return (f"key-{number}".encode() for number in range(10_000))


@pytest.mark.gate
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


def test_a_server_by_itself_is_no_cluster() -> None:
    found = refusal(finder(f"redis+cluster://{at(shared_redis.redis())}"))
    assert not isinstance(found, StoreUnavailable)
    assert "is not a node of a cluster. Next: write redis://" in str(found)


@pytest.fixture(scope="module")
def lone() -> Iterator[Nodes]:
    """Nodes that have not met: with no slot, a few, and all of them."""
    require("redis")
    with together(*(Redis(cluster_timeout_ms=2000) for _ in range(3))) as made:
        made[1].ask("CLUSTER", "ADDSLOTSRANGE", "0", "999")
        made[2].ask("CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
        yield made


@pytest.mark.gate
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


@pytest.mark.gate
@pytest.mark.parametrize(("told", "host"), [("unknown-endpoint", "localhost"), ("hostname", ports.HOST)])
def test_a_node_that_does_not_say_its_host(lone: Nodes, told: str, host: str) -> None:
    """Without a host it is the one that was asked; without a name, its address."""
    whole = lone[2]
    whole.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", told)
    try:
        assert learned(finder(f"redis+cluster://localhost:{whole.port}")).all() == [(host, whole.port)]
    finally:
        whole.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


# A plain command follows its key to another node, as a script does.


@pytest.mark.gate
def test_a_key_moves_to_another_node(nodes: Nodes) -> None:
    """Reads follow ASK while its slot moves, then MOVED."""
    key = "dibs:moving|cell"
    slot = str(key_slot(key.encode()))
    primaries = [node for node in nodes if role(node) == "master"]
    source = next(node for node in primaries if serves(node, key.encode()))
    target, *others = (node for node in primaries if node is not source)
    owner = target.ask("CLUSTER", "MYID")
    with dibs.connect(f"redis+cluster://{at(*nodes)}", retry=30) as client:
        cell = client.cell("moving")
        cell.set(b"1", 0)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.ask("CLUSTER", "MYID"))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", owner)
        source.ask("MIGRATE", ports.HOST, str(target.port), key, "0", "5000")
        assert cell.get() == (b"1", 1), "ASK"
        for node in (target, source, *others):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", owner)
        assert cell.get() == (b"1", 1), "MOVED"
        assert cell.set(b"2", 1) == 2


@pytest.mark.gate
def test_the_rights_that_doctor_prints_are_enough_in_a_cluster(nodes: Nodes) -> None:
    test_rights.are_enough(f"redis+cluster://{at(*nodes)}", nodes, "+cluster|slots")


@pytest.mark.gate
@pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["blocking", "asyncio"])
def test_a_driver_of_a_cluster(module: Any, nodes: Nodes) -> None:
    asked = {"host": ports.HOST, "port": nodes[0].port}
    with ExitStack() as stack:

        def driver(**settings: Any) -> Any:
            made = module.RedisCluster(**asked, **settings)
            stack.callback(lambda: made.close() if module is redis else asyncio.run(made.aclose()))
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


@pytest.mark.gate
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
