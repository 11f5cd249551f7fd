"""The Java program against itself: each kind taken, waited for, given back, listed and revoked, by either Curator."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from lab import curator_jars
from lab.curator import PATIENCE, Curator, Failed, Handle
from lab.servers import guard, ports, programs
from lab.servers.supervisor import Server, until
from lab.servers.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    programs.require("zookeeper", "curator")
    with Server(ZooKeeper()) as server:
        yield server


def where(server: Server) -> str:
    return f"{ports.HOST}:{server.port}"


@pytest.fixture(scope="module", params=["the newest", "Debian's"])
def java(server: Server, request: pytest.FixtureRequest) -> Iterator[Curator]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "Debian's":
            patch.setenv("DIBS_MAVEN", "")
        program = curator_jars.compiled.__wrapped__()
    with Curator(where(server), program=program) as java:
        yield java


@pytest.fixture
def path(request: pytest.FixtureRequest) -> str:
    """Of this test alone: the server is shared."""
    return "/" + request.node.name.replace("[", "-").strip("]").replace(" ", "-").replace("'", "")


def one_waits(java: Curator, path: str, count: int = 2) -> None:
    until(lambda: len(java.nodes(path)) == count, what=f"{count} at {path}")


def test_a_mutex_passes_from_one_to_the_next(java: Curator, path: str) -> None:
    first, second = java.mutex(path), java.mutex(path)
    before = time.monotonic_ns()
    held = first.take()
    assert held is not None
    assert before <= held.at <= time.monotonic_ns()
    assert [(f"{path}/{node.name}", node.czxid) for node in java.nodes(path)] == [(held.node, held.czxid)]
    assert second.take(0) is None
    waits = second.begin()
    one_waits(java, path)
    nodes = first.participants()
    assert nodes[0] == held.node
    assert not waits.done()
    released = first.give()
    next_held = waits.result(PATIENCE)
    assert next_held is not None
    assert next_held.at > released > held.at
    assert next_held.node == nodes[1]
    assert next_held.czxid > held.czxid
    second.give()
    assert java.nodes(path) == []


def test_each_handle_is_somebody_else(java: Curator, path: str) -> None:
    first = java.mutex(path)
    assert first.take()
    assert first.take(0), "the same thread enters again"
    first.give()
    assert java.mutex(path).take(0) is None
    first.give()
    with pytest.raises(Failed, match="IllegalMonitorState"):
        first.give()


def test_readers_share_and_writers_do_not(java: Curator, path: str) -> None:
    readers, writer = [java.read_write(path) for _ in range(2)], java.read_write(path)
    assert all(reader.take(word="read") for reader in readers)
    waits = writer.begin(word="write")
    one_waits(java, path, 3)
    assert java.read_write(path).take(0, word="read") is None
    assert len(readers[0].participants("read")) == 2
    assert len(readers[0].participants("write")) == 1
    for reader in readers:
        assert not waits.done()
        reader.give("read")
    assert waits.result(PATIENCE)
    assert readers[0].take(0, word="read") is None
    writer.give("write")


def test_who_writes_may_read_at_its_own_number_since_5_5(java: Curator, path: str) -> None:
    lock = java.read_write(path)
    assert lock.take(word="write")
    assert lock.take(word="read")
    numbers = {node.name[-10:] for node in java.nodes(path)}
    tie = tuple(map(int, java.version.split(".")[:2])) >= (5, 5)
    assert len(numbers) == (1 if tie else 2)
    lock.give("write")
    lock.give("read")


def test_permits(java: Curator, path: str) -> None:
    first, second = java.semaphore(path, 3), java.semaphore(path, 3)
    held = first.take(word="2")
    assert held is not None
    leases = java.nodes(f"{path}/leases")
    assert len(leases) == 2
    assert held.node in {f"{path}/leases/{lease.name}" for lease in leases}
    assert sorted(first.participants()) == sorted(lease.name for lease in leases)
    assert second.take(0.2, word="2") is None
    assert second.take(word="1")
    waits = java.semaphore(path, 3).begin(word="1")
    until(lambda: len(java.nodes(f"{path}/leases")) == 4, what="one waits for a permit")
    first.give()
    assert waits.result(PATIENCE)


def test_a_semaphore_mutex_is_one_lease(java: Curator, path: str) -> None:
    first, second = java.semaphore_mutex(path), java.semaphore_mutex(path)
    assert first.take()
    assert second.take(0.2) is None
    assert len(java.nodes(f"{path}/leases")) == 1
    first.give()
    assert second.take()
    second.give()
    with pytest.raises(Failed, match="lists no one"):
        first.participants()


def test_leadership(java: Curator, path: str) -> None:
    one, two = java.latch(path, "one"), java.latch(path, "two")
    assert one.take()
    assert two.take(0.05) is None
    one_waits(java, path)
    assert one.participants() == ["one", "two"]
    assert two.participants("leader") == ["one"]
    one.give()
    assert two.take()
    assert two.participants("leader") == ["two"]
    two.give()


def test_revocation(java: Curator, path: str) -> None:
    lock = java.mutex(path)
    lock.revocable()
    held = lock.take()
    assert held is not None
    assert not lock.asked(within=0)
    java.revoke(held.node)
    assert lock.asked()
    assert java.data(held.node) == "__REVOKE__"
    lock.give()


def test_a_namespace_of_the_client_comes_before_the_path(java: Curator, path: str) -> None:
    lock = java.mutex("/a", namespace=path.strip("/"))
    assert lock.take()
    assert java.mutex(f"{path}/a").take(0) is None
    lock.give()


def test_pairs_and_contention(java: Curator, path: str) -> None:
    locks = [java.mutex(path) for _ in range(3)]
    assert 0 < locks[0].pairs(20) < PATIENCE
    end = time.monotonic_ns() + 300_000_000
    told = [lock.contend(end, 0.002) for lock in locks]
    holds = [answer.result(PATIENCE) for answer in told]
    assert all(holds)
    assert all(released - granted >= 2_000_000 for each in holds for granted, released in each)
    together = sorted(hold for each in holds for hold in each)
    assert all(released < granted for (_, released), (granted, _) in itertools.pairwise(together))


def test_an_unknown_word_is_an_answer(java: Curator) -> None:
    with pytest.raises(Failed, match="unknown verb"):
        Handle(java, "stranger").ask("juggle")


def test_its_end_frees_what_it_held(java: Curator, server: Server, path: str) -> None:
    with Curator(where(server)) as other:
        assert other.mutex(path).take()
        waits = other.mutex(path).begin()
        one_waits(java, path)
    with pytest.raises(Failed):
        waits.result(PATIENCE)
    assert java.mutex(path).take(0)
    with pytest.raises(AssertionError, match="has ended"):
        other.mutex(path)


def test_a_killed_one_holds_until_its_session_is_over(java: Curator, server: Server, path: str) -> None:
    with Curator(where(server), timeout=1) as other:
        assert other.mutex(path).take()
        waits = other.mutex(path).begin()
        one_waits(java, path)
        other.kill()
        with pytest.raises(Failed, match="ended without an answer"):
            waits.result(PATIENCE)
        assert java.mutex(path).take(0) is None
        assert java.mutex(path).take()


def test_nobody_there() -> None:
    programs.require("zookeeper", "curator")
    port, others = ports.reserve(), guard.working_in(guard.root())
    try:
        with pytest.raises(Failed, match="nobody answers"):
            Curator(f"{ports.HOST}:{port}", connecting=0.1)
    finally:
        ports.release(port)
    assert set(guard.working_in(guard.root())) <= set(others)
