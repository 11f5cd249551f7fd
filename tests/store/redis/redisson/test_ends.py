"""A hold or a wait ends without a release: a killed holder, a lease, a timeout, a cancellation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import dibs
from lab.redisson import PATIENCE, Redisson
from lab.servers import ports, shared_redis
from lab.servers.supervisor import until
from store.redis.redisson.peers import FAIR, FENCED, KINDS, LOCK, PERMITS, RLOCK, SEMAPHORE, WRITE, Kind, Raw
from store.sides import Python

pytestmark = pytest.mark.gate
LOCKS = (LOCK, RLOCK, FENCED, FAIR, WRITE)
"""Kinds whose hold ends with its lease."""
SHORT = 1.5
HOLDER = """
import sys, dibs
url, kind, name = sys.argv[1:]
client = dibs.connect(url, lease=2)
lock = {"rw": lambda: client.rwlock(name).write}.get(kind, lambda: client.lock(name, **{kind: True} if kind else {}))()
hold = lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""
WORDS = {LOCK: "", RLOCK: "", FENCED: "fenced", FAIR: "fair", WRITE: "rw"}


@contextmanager
def _holder(url: str, kind: Kind, name: str) -> Iterator[subprocess.Popen[str]]:
    """Another Python process that holds."""
    words = [sys.executable, "-c", HOLDER, url, WORDS[kind], name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("kind", [LOCK, FENCED, FAIR, WRITE], ids=str)
def test_java_gets_the_lock_of_a_killed_python(java: Redisson, url: str, raw: Raw, name: str, kind: Kind) -> None:
    with _holder(url, kind, name) as child:
        theirs = kind.java(java, name)
        waits = theirs.begin()
        raw.renewed(name, 2)  # for longer than its lease
        assert not waits.done()
        child.kill()
        assert theirs.held(waits) is not None
        theirs.give()


@pytest.mark.parametrize("side", ["blocking", "aio"], indirect=True)
def test_python_gets_the_lock_of_a_killed_java(side: Python, raw: Raw, name: str) -> None:
    where = f"{ports.HOST}:{shared_redis.redis().port}"
    with Redisson(where, prefix=raw.prefix, watchdog=SHORT, timeout=PATIENCE) as java:
        for kind in LOCKS:
            assert kind.java(java, f"{name}-{kind}").take()
        waiting = [side.takes(kind.ours(side.client(), f"{name}-{kind}")) for kind in LOCKS]
        raw.renewed(f"{name}-lock", 3)
        assert [one.done() for one in waiting] == [False] * len(LOCKS)
        java.kill()
        for one in waiting:
            side.do(one.result(PATIENCE).release)


@pytest.mark.parametrize("side", ["aio"], indirect=True)
def test_a_killed_waiter_of_a_fair_lock_is_passed_over(side: Python, raw: Raw, name: str) -> None:
    """After the time that a waiter without a timeout has: here a second."""
    where = f"{ports.HOST}:{shared_redis.redis().port}"
    client = side.client(below="&fair_wait=1", lease=2)
    with Redisson(where, prefix=raw.prefix, fair_wait=1, timeout=PATIENCE) as java:
        hold = side.take(FAIR.ours(client, name))
        dead = java.fair(name)
        dead.begin_take()
        raw.wait_for(FAIR, name, 1)
        java.kill()
    waits = side.begin(FAIR.ours(client, name).acquire)
    longest = 2 + 1 + 1  # the lease, and a second for each waiter

    def counts_the_same() -> bool:
        return any(raw.may_wait(name, holder) <= longest for holder in raw.queue(name) if holder != dead.holder)

    until(counts_the_same, PATIENCE, "Python waits, and counts as alive no longer")
    side.do(hold.release)
    side.do(waits.result(PATIENCE).release)


@pytest.mark.parametrize("kind", [LOCK, FENCED, FAIR, WRITE], ids=str)
def test_a_lease_of_java_ends(java: Redisson, side: Python, name: str, kind: Kind) -> None:
    theirs = kind.theirs(java, name)
    assert theirs.take(lease=SHORT) is not None  # type: ignore[call-arg]  # a lock
    assert 0 < side.inspect(name).holders[0].remaining <= SHORT
    side.do(side.take(kind.ours(side.client(), name)).release)
    if kind is not FAIR:  # Redisson says nothing there
        with pytest.raises(Exception, match="IllegalMonitorState"):
            theirs.give()


@pytest.mark.parametrize("kind", [LOCK, FENCED, FAIR, PERMITS], ids=str)
def test_a_lease_of_python_ends(java: Redisson, side: Python, name: str, kind: Kind) -> None:
    client, options = side.client(), {"renew": False, "lease": SHORT}
    hold = side.take(
        client.semaphore(name, 1, **options)
        if kind is PERMITS
        else client.lock(name, fenced=kind is FENCED, fair=kind is FAIR, **options)
    )
    theirs = kind.java(java, name)
    assert theirs.take(0) is None
    assert theirs.take() is not None
    assert hold.lost.is_set(), "its own deadline came before Java had the lock"
    assert hold.lost_reason == "expired"
    theirs.give()


def test_a_permit_of_java_ends(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    theirs = java.permits(name)
    assert theirs.set_permits(1)
    assert theirs.take(lease=SHORT) is not None
    side.do(side.take(side.client().semaphore(name, 1, renew=False)).release)
    assert (theirs.available(), theirs.total()) == (1, 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("end", ["timeout", "cancel"])
@pytest.mark.parametrize("side", ["aio"], indirect=True)
def test_a_wait_that_ends_leaves_nothing(
    java: Redisson, side: Python, raw: Raw, name: str, kind: Kind, end: str
) -> None:
    if kind in (SEMAPHORE, PERMITS):
        kind.theirs(java, name).set_permits(1)  # type: ignore[union-attr]  # a semaphore
    theirs, client = kind.java(java, name), side.client()
    assert theirs.take()
    before = _left(raw, name)
    if end == "timeout":
        assert side.take(kind.ours(client, name), timeout=0.3) is None
    else:
        waits = side.takes(kind.ours(client, name))
        raw.wait_for(kind, name, 1)
        waits.cancel()
    raw.wait_for(kind, name, 0)
    until(lambda: _left(raw, name) == before, PATIENCE, "only what stays is there")
    assert kind.java(java, name).take(0.3) is None
    theirs.give()
    assert theirs.take(PATIENCE), "nobody else has it"
    theirs.give()
    side.do(side.take(kind.ours(client, name)).release)


def _left(raw: Raw, name: str) -> list[str]:
    """Without the marks of a semaphore, which stay for 20 s."""
    return [key for key in raw.left(name) if "latch" not in key]


def test_a_holder_of_a_forced_lock_does_not_release_the_next_one(
    java: Redisson, side: Python, raw: Raw, name: str
) -> None:
    hold, theirs = side.take(side.client().lock(name)), java.lock(name)
    assert theirs.force()
    assert theirs.take(0) is not None
    with pytest.raises(dibs.LockLost):
        side.do(hold.release)
    assert list(raw.holders(name)) == [theirs.holder]
    theirs.give()
