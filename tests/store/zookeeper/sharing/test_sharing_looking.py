"""Java and Python on one path: equal listings, revocation, breaking, other kinds, namespaces."""

from __future__ import annotations

import pytest

import dibs
from lab.curator import PATIENCE, Curator
from lab.servers.supervisor import until
from store.sides import Python
from store.zookeeper.sharing.sides import ELECTION, KINDS, LOCK, READ, SEMAPHORE, WRITE, Kind, each


def tokens(info: dibs.LockInfo) -> list[int]:
    return [one.token for one in (*info.holders, *info.waiters)]


@each(*KINDS, READ)
def test_a_hold_of_java_s_is_shown(java: Curator, side: Python, path: str, kind: Kind) -> None:
    client = side.client(**kind.options)
    free = side.inspect(path, client)
    assert (free.holders, free.waiters) == ((), ())
    theirs = kind.theirs(java, path)
    assert theirs.take(word=kind.word)
    info = side.inspect(path, client)
    (holder,) = info.holders
    assert (info.name, info.waiters) == (path, ())
    assert holder.token in {node.czxid for place in (path, f"{path}/leases") for node in java.nodes(place)}
    assert holder.label.isprintable()
    assert side.do(kind.ours(client, path).locked)
    theirs.give(kind.word)
    until(lambda: side.inspect(path, client).holders == (), PATIENCE, "it is free")  # LeaderLatch does not wait


@pytest.mark.gate
def test_both_list_the_same_permits(java: Curator, side: Python, path: str) -> None:
    """While Java waits it has nodes in both directories, which count as one claim."""
    theirs = java.semaphore(path, 4)
    held = theirs.take(word="1")
    assert held is not None
    hold = side.take(side.client().semaphore(path, 4), n=3)
    java.semaphore(path, 4).begin(PATIENCE, word="1")
    until(lambda: len(java.nodes(f"{path}/leases")) == 5, PATIENCE, "Java waits")
    assert len(java.nodes(f"{path}/locks")) == 1
    info = side.inspect(path)
    assert (info.kind, info.capacity, len(info.waiters)) == ("semaphore", 4, 1)
    assert [(one.token, one.weight) for one in info.holders] == [(held.czxid, 1), (hold.token, 3)]
    assert sorted(theirs.participants()) == sorted(node.name for node in java.nodes(f"{path}/leases"))


@pytest.mark.gate
def test_both_list_the_same_candidates_and_know_who_leads(java: Curator, side: Python, path: str) -> None:
    one, two = java.latch(path, "one"), java.latch(path, "two")
    assert one.take()
    election = side.client().election(path)
    leads = side.takes(election.lead())
    side.in_queue(path, 1)
    assert two.take(0.05) is None
    side.in_queue(path, 2)
    info, nodes = side.inspect(path), java.nodes(path)
    assert info.kind == "election"
    assert tokens(info) == [node.czxid for node in nodes]
    assert side.do(election.leader).token == nodes[0].czxid
    assert one.participants() == [java.data(f"{path}/{node.name}") for node in nodes]
    assert (one.participants()[0], one.participants()[2]) == ("one", "two")
    one.give()
    hold = leads.result(PATIENCE)
    ours = next(node for node in java.nodes(path) if node.czxid == hold.token)
    assert two.participants("leader") == [java.data(f"{path}/{ours.name}")]
    side.do(hold.release)


@pytest.mark.gate
@pytest.mark.parametrize("deep", [False, True])
def test_all_that_is_held_below_a_path_is_listed(java: Curator, side: Python, path: str, deep: bool) -> None:
    top = path if deep else f"/{path.rpartition('/')[2]}"
    held = {f"{top}/{name}": java.mutex(f"{top}/{name}").take() for name in ("b", "a")}
    side.take(side.client().lock(f"{top}/c"))
    assert java.read_write(f"{top}/d").take(word="read")
    assert java.mutex(f"{top}-not").take()
    found = {info.name: info for info in side.locks(f"{top}/")}
    assert set(found) == {f"{top}/{name}" for name in "abcd"}
    for name, one in held.items():
        assert one is not None
        assert [holder.token for holder in found[name].holders] == [one.czxid]
    assert found[f"{top}/d"].kind == "rw"


@pytest.mark.gate
def test_a_hold_of_java_s_is_broken_by_its_token_only(java: Curator, side: Python, path: str) -> None:
    held = java.mutex(path).take()
    assert held is not None
    waits = side.takes(side.client().lock(path))
    side.in_queue(path, 1)
    with pytest.raises(dibs.NotHeld):
        side.do(lambda: side.onlooker.break_(path, token=held.czxid + 1_000_000))
    assert not waits.done()
    side.do(lambda: side.onlooker.break_(path, token=held.czxid))
    hold = waits.result(PATIENCE)
    assert [node.czxid for node in java.nodes(path)] == [hold.token]


@pytest.mark.gate
def test_python_asks_java_to_let_go(java: Curator, side: Python, path: str) -> None:
    theirs = java.mutex(path)
    theirs.revocable()
    assert theirs.take()
    waits = side.takes(side.client().lock(path))
    side.in_queue(path, 1)
    assert not theirs.asked(within=0)
    side.do(side.client().lock(path).revoke)
    assert theirs.asked()
    assert not waits.done(), "it is a request"
    theirs.give()
    assert not waits.result(PATIENCE).revoke_requested.is_set()


@each(LOCK, WRITE, READ, LOCK)
def test_java_asks_python_to_let_go(java: Curator, side: Python, path: str, kind: Kind) -> None:
    hold = side.take(kind.ours(side.client(), path))
    (node,) = java.nodes(path)
    waits = kind.theirs(java, path).begin(word="write" if kind.word else "")
    side.in_queue(path, 1)
    assert not hold.revoke_requested.is_set()
    java.revoke(f"{path}/{node.name}")
    side.do(lambda: hold.revoke_requested.wait(PATIENCE))
    assert hold.revoke_requested.is_set()
    hold.check()
    assert side.inspect(path).holders[0].token == hold.token, "whatever now stands in its node"
    side.do(hold.release)
    assert waits.result(PATIENCE)


def tree(java: Curator, path: str) -> list[str]:
    return [f"{place}/{node.name}" for place in (path, f"{path}/locks", f"{path}/leases") for node in java.nodes(place)]


@each(*KINDS, argument="theirs")
def test_another_kind_than_java_s_is_refused_and_changes_nothing(
    java: Curator, side: Python, path: str, theirs: Kind
) -> None:
    handle = theirs.theirs(java, path)
    assert handle.take(word=theirs.word)
    before = tree(java, path)
    tidied = [node for node in before if node != f"{path}/locks"]  # the server removes a container that is empty
    others = [kind for kind in (LOCK, WRITE, READ, SEMAPHORE, ELECTION) if kind.shape != theirs.shape]
    for ours in others:
        for asks in (side.tries, side.take):
            with pytest.raises(dibs.Mismatch, match=path):
                asks(ours.ours(side.client(), path))
            assert tree(java, path) in (before, tidied)
    handle.give(theirs.word)
    side.do(side.take(others[0].ours(side.client(), path)).release)


@each(*[kind for kind in KINDS if kind.shape != LOCK.shape], argument="theirs")
def test_java_that_joins_with_another_kind_is_noticed(java: Curator, side: Python, path: str, theirs: Kind) -> None:
    """Java does not check kinds, so it gets in beside us; the next claim of ours is refused."""
    side.take(LOCK.ours(side.client(), path))
    theirs.theirs(java, path).begin(1, word=theirs.word)
    until(lambda: len([node for node in tree(java, path) if "/_c_" in node]) > 1, PATIENCE, "Java's nodes")
    with pytest.raises(dibs.Mismatch, match=path):
        side.take(LOCK.ours(side.client(), path))


@pytest.mark.gate
@each(LOCK, ELECTION)
def test_java_s_namespace_is_the_first_part_of_the_path(java: Curator, side: Python, path: str, kind: Kind) -> None:
    lock = java.mutex("/a", namespace=path.strip("/")) if kind is LOCK else java.latch("/a", "x", namespace=path[1:])
    assert lock.take()
    assert side.tries(kind.ours(side.client(), f"{path}/a")) is None
    assert side.tries(kind.ours(side.client(below=path), "/a")) is None
    assert side.take(kind.ours(side.client(namespace="x"), f"{path}/a")), "another namespace"
    lock.give()
    assert side.take(kind.ours(side.client(), f"{path}/a"), timeout=PATIENCE)


@pytest.mark.gate
def test_a_name_in_python_s_namespace_is_a_path_for_java(java: Curator, side: Python, path: str) -> None:
    name = path.strip("/").replace("/", ":")
    hold = side.take(side.client(namespace="dibs").lock(name))
    assert java.mutex(f"/dibs/{name}").take(0) is None
    assert java.mutex(f"/{name}", namespace="dibs").take(0) is None
    side.do(hold.release)
    assert java.mutex(f"/{name}", namespace="dibs").take()
    assert side.tries(side.client(namespace="dibs").lock(name)) is None
    bare = name.replace(":", "-")
    assert java.mutex(f"/{bare}").take()
    assert side.tries(side.client().lock(bare)) is None, "a bare name is below the root"
