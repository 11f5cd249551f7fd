"""One path, Java and Python: equal listings, revocation both ways, breaking, kinds that do not go together, places."""

from __future__ import annotations

import pytest

import dibs
from lab.curator import PATIENCE, Curator
from lab.servers.supervisor import Server, until
from store.zookeeper.sharing.sides import (
    ELECTION,
    FACES,
    KINDS,
    LOCK,
    RLOCK,
    SEMAPHORE,
    SEMAPHORE_MUTEX,
    WRITE,
    Kind,
    Python,
)

READ = Kind("read", lambda client, path: client.rwlock(path).read, lambda java, path: java.read_write(path), "read")
SHAPES = {LOCK: "mutex", RLOCK: "mutex", READ: "rw", WRITE: "rw", ELECTION: "election"}
"""Kinds of one shape share a path; those that are not here are semaphores, a semaphore mutex being one of size 1."""


def shape(kind: Kind) -> str:
    return SHAPES.get(kind, "semaphore")


STRANGERS = [
    pytest.param(face, theirs, ours, id=f"{face}-{theirs}-{ours}")
    for face in FACES
    for theirs in KINDS
    for ours in (*KINDS, READ)
    if theirs is not RLOCK and shape(theirs) != shape(ours) and (face == "blocking" or theirs is LOCK)
]


def tokens(info: dibs.LockInfo) -> list[int]:
    return [one.token for one in (*info.holders, *info.waiters)]


def transactions(java: Curator, path: str, nodes: list[str]) -> list[int]:
    """Of nodes as Java lists them."""
    made = {f"{path}/{node.name}": node.czxid for node in java.nodes(path)}
    return [made[node] for node in nodes]


# Listings.


def test_both_list_the_same_mutex_in_the_same_order(java: Curator, side: Python, path: str) -> None:
    onlooker = java.mutex(path)
    assert java.mutex(path).take()
    for waiting in (1, 3):
        side.takes(side.client().lock(path))
        side.in_line(path, waiting)
        java.mutex(path).begin(PATIENCE)
        side.in_line(path, waiting + 1)
    info = side.inspect(path)
    assert (info.kind, info.capacity, len(info.holders), len(info.waiters)) == ("mutex", 1, 1, 4)
    assert tokens(info) == transactions(java, path, onlooker.participants())


def test_both_list_the_same_readers_and_writers(java: Curator, side: Python, path: str) -> None:
    onlooker = java.read_write(path)
    assert java.read_write(path).take(word="read")
    assert side.take(side.client().rwlock(path).read)
    java.read_write(path).begin(PATIENCE, word="write")
    side.in_line(path, 1)
    side.takes(side.client().rwlock(path).write)
    side.in_line(path, 2)
    side.takes(side.client().rwlock(path).read)
    side.in_line(path, 3)
    info = side.inspect(path)
    assert (info.kind, len(info.holders), len(info.waiters)) == ("rw", 2, 3)
    assert [one.token for one in info.holders] == transactions(java, path, onlooker.participants("read"))[:2]
    assert tokens(info) == sorted(
        transactions(java, path, onlooker.participants("read") + onlooker.participants("write"))
    )
    readers = [one.token for one in (*info.holders, *info.waiters) if one.weight == 1]
    assert readers == transactions(java, path, onlooker.participants("read"))


def test_both_list_the_same_permits(java: Curator, side: Python, path: str) -> None:
    theirs = java.semaphore(path, 4)
    held = theirs.take(word="1")
    assert held is not None
    hold = side.take(side.client().semaphore(path, 4), n=3)
    side.takes(side.client().semaphore(path, 4))
    side.in_line(path, 1)
    info = side.inspect(path)
    assert (info.kind, info.capacity) == ("semaphore", 4)
    assert [(one.token, one.weight) for one in info.holders] == [(held.czxid, 1), (hold.token, 3)]
    leases = java.nodes(f"{path}/leases")
    assert sorted(theirs.participants()) == sorted(node.name for node in leases)
    assert len(leases) == sum(one.weight for one in info.holders)


def test_both_list_the_same_candidates(java: Curator, side: Python, path: str) -> None:
    one, two = java.latch(path, "one"), java.latch(path, "two")
    assert one.take()
    side.takes(side.client().election(path).lead())
    side.in_line(path, 1)
    assert two.take(0.05) is None
    side.in_line(path, 2)
    info = side.inspect(path)
    assert info.kind == "election"
    nodes = java.nodes(path)
    assert tokens(info) == [node.czxid for node in nodes]
    assert one.participants() == [java.data(f"{path}/{node.name}") for node in nodes]
    assert (one.participants()[0], one.participants()[2]) == ("one", "two")


@pytest.mark.parametrize("kind", [*KINDS, READ], ids=str)
def test_a_hold_of_java_s_is_shown(java: Curator, side: Python, path: str, kind: Kind) -> None:
    client = side.client(**kind.options)
    free = side.inspect(path, client)
    assert (free.holders, free.waiters) == ((), ())
    theirs = kind.theirs(java, path)
    assert theirs.take(word=kind.word)
    info = side.inspect(path, client)
    assert info.name == path
    (holder,) = info.holders
    assert info.waiters == ()
    places = (path, f"{path}/leases")
    assert holder.token in {node.czxid for place in places for node in java.nodes(place)}
    assert holder.label.isprintable()
    assert side.do(kind.ours(client, path).locked)
    theirs.give(kind.word)
    until(lambda: side.inspect(path, client).holders == (), PATIENCE, "it is free")  # LeaderLatch does not wait


@pytest.mark.parametrize("kind", [SEMAPHORE, SEMAPHORE_MUTEX], ids=str)
def test_java_waiting_for_a_permit_is_one_that_waits(java: Curator, side: Python, path: str, kind: Kind) -> None:
    """It stands in both directories meanwhile."""
    hold = side.take(kind.ours(side.client(**kind.options), path))
    kind.theirs(java, path).begin(PATIENCE, word=kind.word)
    until(lambda: len(java.nodes(f"{path}/leases")) == 2, PATIENCE, "Java waits")
    assert len(java.nodes(f"{path}/locks")) == 1
    info = side.inspect(path)
    assert ([one.token for one in info.holders], len(info.waiters)) == ([hold.token], 1)


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


# Taking away.


def test_a_hold_of_java_s_is_broken_by_its_token_only(java: Curator, side: Python, path: str) -> None:
    held = java.mutex(path).take()
    assert held is not None
    waits = side.takes(side.client().lock(path))
    side.in_line(path, 1)
    with pytest.raises(dibs.NotHeld):
        side.do(lambda: side.onlooker.break_(path, token=held.czxid + 1_000_000))
    assert not waits.done()
    side.do(lambda: side.onlooker.break_(path, token=held.czxid))
    hold = waits.result(PATIENCE)
    assert [node.czxid for node in java.nodes(path)] == [hold.token]


def test_python_asks_java_to_let_go(java: Curator, side: Python, path: str) -> None:
    theirs = java.mutex(path)
    theirs.revocable()
    assert theirs.take()
    lock = side.client().lock(path)
    waits = side.takes(lock)
    side.in_line(path, 1)
    assert not theirs.asked(within=0)
    side.do(side.client().lock(path).revoke)
    assert theirs.asked()
    assert not waits.done(), "it is a request"
    theirs.give()
    hold = waits.result(PATIENCE)
    assert not hold.revoke_requested.is_set()


@pytest.mark.parametrize("kind", [LOCK, RLOCK, WRITE, READ], ids=str)
def test_java_asks_python_to_let_go(java: Curator, side: Python, path: str, kind: Kind) -> None:
    hold = side.take(kind.ours(side.client(), path))
    (node,) = java.nodes(path)
    waits = kind.theirs(java, path).begin(word="write" if kind.word else "")
    side.in_line(path, 1)
    assert not hold.revoke_requested.is_set()
    java.revoke(f"{path}/{node.name}")
    side.do(lambda: hold.revoke_requested.wait(PATIENCE))
    assert hold.revoke_requested.is_set()
    hold.check()
    assert side.inspect(path).holders[0].token == hold.token, "whatever now stands in its node"
    side.do(hold.release)
    assert waits.result(PATIENCE)


# Kinds that do not go together.


@pytest.mark.parametrize(("side", "theirs", "ours"), STRANGERS, indirect=["side"])
def test_another_kind_than_java_s_is_refused(java: Curator, side: Python, path: str, theirs: Kind, ours: Kind) -> None:
    handle = theirs.theirs(java, path)
    assert handle.take(word=theirs.word)
    before = contenders(java, path)
    client = side.client(**ours.options)
    for asks in (side.tries, side.take):
        with pytest.raises(dibs.Mismatch, match=path):
            asks(ours.ours(client, path))
    assert contenders(java, path) == before
    handle.give(theirs.word)
    side.do(side.take(ours.ours(client, path)).release)


@pytest.mark.parametrize("theirs", [one for one in KINDS if shape(one) != shape(LOCK)], ids=str)
def test_java_that_came_with_another_kind_is_noticed(java: Curator, side: Python, path: str, theirs: Kind) -> None:
    """Java looks for nobody's kind: it is let in beside us, and the next of ours is not."""
    side.take(LOCK.ours(side.client(), path))
    handle = theirs.theirs(java, path)
    handle.begin(1, word=theirs.word)
    until(lambda: len(contenders(java, path)) > 1, PATIENCE, "Java's nodes")
    with pytest.raises(dibs.Mismatch, match=path):
        side.take(LOCK.ours(side.client(), path))


def contenders(java: Curator, path: str) -> list[str]:
    places = (path, f"{path}/locks", f"{path}/leases")
    return [node.name for place in places for node in java.nodes(place) if node.name.startswith("_c_")]


@pytest.mark.parametrize("theirs", [LOCK, ELECTION], ids=str)
def test_a_refused_semaphore_changes_nothing_for_java(java: Curator, side: Python, path: str, theirs: Kind) -> None:
    handle = theirs.theirs(java, path)
    assert handle.take()
    before = handle.participants()
    for asks in (side.tries, side.take):
        with pytest.raises(dibs.Mismatch, match=path):
            asks(side.client().semaphore(path, 2))
        assert handle.participants() == before


def test_a_refused_lock_changes_nothing_for_java_s_semaphore(java: Curator, side: Python, path: str) -> None:
    assert java.semaphore(path, 2).take(word="1")
    before = java.nodes(path)
    for asks in (side.tries, side.take):
        with pytest.raises(dibs.Mismatch, match=path):
            asks(side.client().lock(path))
        assert java.nodes(path) == before


# Places.


@pytest.mark.parametrize("kind", [LOCK, ELECTION], ids=str)
def test_java_s_namespace_is_the_first_part_of_the_path(
    server: Server, java: Curator, side: Python, path: str, kind: Kind
) -> None:
    lock = java.mutex("/a", namespace=path.strip("/")) if kind is LOCK else java.latch("/a", "x", namespace=path[1:])
    assert lock.take()
    assert side.tries(kind.ours(side.client(), f"{path}/a")) is None
    assert side.tries(kind.ours(side.client(below=path), "/a")) is None
    assert side.take(kind.ours(side.client(namespace="x"), f"{path}/a")), "elsewhere"
    lock.give()
    assert side.take(kind.ours(side.client(), f"{path}/a"), timeout=PATIENCE)


def test_a_name_in_python_s_namespace_is_a_path_for_java(java: Curator, side: Python, path: str) -> None:
    name = path.strip("/").replace("/", ":")
    hold = side.take(side.client(namespace="dibs").lock(name))
    assert java.mutex(f"/dibs/{name}").take(0) is None
    assert java.mutex(f"/{name}", namespace="dibs").take(0) is None
    side.do(hold.release)
    assert java.mutex(f"/{name}", namespace="dibs").take()
    assert side.tries(side.client(namespace="dibs").lock(name)) is None


def test_a_bare_name_is_below_the_root(java: Curator, side: Python, path: str) -> None:
    name = path.strip("/").replace("/", "-")
    assert java.mutex(f"/{name}").take()
    assert side.tries(side.client().lock(name)) is None
