"""Which node of a real cluster has a key: before and after a fail-over, past those who are silent or only half
informed, and with an error that says what is the matter."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from dibs.backends.redis.address import Address
from dibs.backends.redis.asking import facts
from dibs.backends.redis.cluster import MOVES, SLOTS, Cluster
from dibs.backends.redis.where import Where
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import boottime
from dibs.url import parse
from lab.servers import certificates, ports
from lab.servers.certificates import Certificates
from lab.servers.programs import Refused, require
from lab.servers.redis import Redis
from lab.servers.redis_groups import cluster, role
from lab.servers.supervisor import Server, together, until
from store.redis.finding import at, finder, learned, nobody, place, refusal, silent, tried

pytestmark = pytest.mark.timeout(150)  # elections, on a machine that others use too
KEYS = [b"a", b"dibs:invoice:42|line", b"a{tag}b", b"{tag}", b"{}a", b"{a", b"}{x}", "dibs:\u00e9|cell".encode()]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require("redis")


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Server, ...]]:
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


def node_at(nodes: tuple[Server, ...], found: Where, key: bytes) -> Server | None:
    return next((node for node in nodes if place(node) == found.locate(key)), None)


def test_each_key_is_where_its_slot_is(nodes: tuple[Server, ...]) -> None:
    found = finder(f"redis+cluster://{at(nodes[0])}")
    assert (found.locate(b"a"), found.all()) == (None, [])
    learned(found)
    for key in KEYS:
        node = node_at(nodes, found, key)
        assert node is not None
        assert serves(node, key), key
    assert len(found.all()) == 3
    assert all(role(node) == "master" for node in nodes if place(node) in found.all())


def test_any_node_will_do_and_the_silent_cost_a_share(nodes: tuple[Server, ...], mute: socket.socket) -> None:
    replica = next(node for node in nodes if role(node) == "slave")
    found = learned(finder(f"redis+cluster://{at(mute.getsockname()[1], nobody(), replica)}"), 10)
    assert len(found.all()) == 3
    mute.accept()[0].close()
    for known in found.all():
        found.forget(known)
    assert len(learned(found).all()) == 3
    with pytest.raises(BlockingIOError):  # now that nodes are known, the silent one is not asked first
        mute.accept()


def test_forgetting_one_of_them(nodes: tuple[Server, ...]) -> None:
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


def test_moved_slots(nodes: tuple[Server, ...]) -> None:
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


def test_a_fail_over_in_a_cluster(nodes: tuple[Server, ...]) -> None:
    found = learned(finder(f"redis+cluster://{at(*nodes)}"))
    old = node_at(nodes, found, b"a")
    assert old is not None
    heir = next(node for node in nodes if role(node) == "slave" and str(old.port) in node.ask("ROLE").split())
    until(lambda: heir.ask("CLUSTER", "FAILOVER") == "OK", what="a fail-over begins")
    until(lambda: role(heir) == "master", what="the replica takes over")

    def elsewhere() -> bool:
        found.forget(place(old))
        return tried(found).locate(b"a") == place(heir)

    until(elsewhere, what="the new primary is found")
    until(lambda: role(old) == "slave", what="the old one follows")


def test_a_node_that_was_cut_off_is_not_asked_first_again(nodes: tuple[Server, ...]) -> None:
    found = Cluster(Address.of(parse(f"redis+cluster://{at(nodes[0])}")), boottime)
    learned(found)
    assert found._nodes[0] == place(nodes[0])
    found.forget(place(nodes[0]))
    assert found._nodes[-1] == place(nodes[0])
    assert learned(found)._nodes[0] != place(nodes[0])


def test_a_cluster_by_tls(pems: Certificates) -> None:
    with Server(Redis(tls=pems, cluster_timeout_ms=2000)) as node:
        node.ask("CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
        text = f"rediss+cluster://localhost:{node.port}"
        assert learned(finder(text, ca=pems.authority.certificate)).all() == [place(node)]
        assert "is not to be trusted" in str(refusal(finder(text)))


def test_a_server_by_itself_is_no_cluster() -> None:
    with Server(Redis()) as server:
        found = refusal(finder(f"redis+cluster://{at(server)}"))
    assert not isinstance(found, StoreUnavailable)
    assert "is no node of a cluster. Next: write redis://" in str(found)


@pytest.fixture(scope="module")
def lone() -> Iterator[tuple[Server, ...]]:
    """Nodes that have not met: one knows no slot, one a few, one all of them."""
    with together(*(Redis(cluster_timeout_ms=2000) for _ in range(3))) as made:
        made[1].ask("CLUSTER", "ADDSLOTSRANGE", "0", "999")
        made[2].ask("CLUSTER", "ADDSLOTSRANGE", "0", str(SLOTS - 1))
        yield made


def test_half_an_answer_is_kept_as_far_as_it_goes(lone: tuple[Server, ...]) -> None:
    empty, few, whole = lone
    known = next(key for key in numbered() if key_slot(key) < 1000)
    unknown = next(key for key in numbered() if key_slot(key) >= 1000)
    nothing = refusal(finder(f"redis+cluster://{at(empty)}"))
    assert isinstance(nothing, StoreUnavailable)
    assert f"{ports.HOST}:{empty.port} knows no other node yet" in str(nothing)
    half = learned(finder(f"redis+cluster://{at(empty, few)}"))
    assert (half.locate(known), half.locate(unknown), half.all()) == (place(few), None, [place(few)])
    full = learned(finder(f"redis+cluster://{at(empty, few, whole)}"))
    assert full.locate(known) == full.locate(unknown) == place(whole)


@pytest.mark.parametrize(("told", "host"), [("unknown-endpoint", "localhost"), ("hostname", ports.HOST)])
def test_a_node_that_does_not_say_its_host(lone: tuple[Server, ...], told: str, host: str) -> None:
    """Without one it is the host that was asked; where it should have a name and has none, its address."""
    whole = lone[2]
    whole.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", told)
    try:
        assert learned(finder(f"redis+cluster://localhost:{whole.port}")).all() == [(host, whole.port)]
    finally:
        whole.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")


WORDS = st.none() | st.integers(-1, 70_000) | st.binary(max_size=4) | st.sampled_from([b"?", b"ip", b"h"])
ANSWERS = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=5), max_leaves=40)
RANGES = st.lists(st.tuples(st.integers(-1, SLOTS), st.integers(-1, SLOTS), ANSWERS, ANSWERS).map(list), max_size=4)


@given(ANSWERS | RANGES)
def test_no_answer_is_too_odd(answer: object) -> None:
    found = Cluster(Address.of(parse("redis+cluster://h1")), boottime)
    table, known = found.read(answer, ("h1", 6379))
    assert len(table) == SLOTS
    assert all(isinstance(host, str) and 0 < port < 65536 for host, port in known)
    assert isinstance(facts(answer), dict)
