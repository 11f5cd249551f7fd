"""How a hold or a wait ends other than by a release: a killed holder, a lease, a timeout, a cancellation, a close."""

from __future__ import annotations

import asyncio
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
    """Another Python process, which holds."""
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
    """Its watchdog had renewed it for longer than the lease, until then."""
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
    """When the time is over that a waiter without a timeout has: here a second, on either side."""
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


@pytest.mark.parametrize("options", [{}, {"fenced": True}, {"fair": True}], ids=["plain", "fenced", "fair"])
def test_a_lease_of_python_ends(java: Redisson, side: Python, name: str, options: dict[str, bool]) -> None:
    hold = side.take(side.client().lock(name, lease=SHORT, renew=False, **options))
    theirs = {"fair": java.fair, "fenced": java.fenced}.get(next(iter(options), ""), java.lock)(name)
    assert 0 < theirs.state().ttl_ms <= SHORT * 1000
    assert theirs.take() is not None
    assert hold.lost.is_set(), "its own deadline came before Java had the lock"
    assert hold.lost_reason == "expired"
    theirs.give()


def test_a_permit_of_python_ends(java: Redisson, side: Python, name: str) -> None:
    hold = side.take(side.client().semaphore(name, 1, renew=False, lease=SHORT))
    theirs = java.permits(name)
    assert theirs.take(timeout=0) is None
    held = theirs.take(lease=20)
    assert held is not None
    assert hold.lost.is_set()
    assert side.tries(side.client().semaphore(name, 1, renew=False)) is None
    theirs.give(held.ids)


def test_a_permit_of_java_ends(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    theirs = java.permits(name)
    assert theirs.set_permits(1)
    assert theirs.take(lease=SHORT) is not None
    side.do(side.take(side.client().semaphore(name, 1, renew=False)).release)
    assert (theirs.available(), theirs.total()) == (1, 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_wait_that_times_out_leaves_nothing(java: Redisson, side: Python, raw: Raw, name: str, kind: Kind) -> None:
    if kind is SEMAPHORE or kind is PERMITS:
        kind.theirs(java, name).set_permits(1)  # type: ignore[union-attr]  # a semaphore
    theirs, client = kind.java(java, name), side.client()
    assert theirs.take()
    before = raw.left(name)
    assert side.take(kind.ours(client, name), timeout=0.3) is None
    if kind is FAIR:
        until(lambda: raw.queue(name) == [], PATIENCE, "nobody is in the queue")
    else:
        until(lambda: raw.listening(kind.channel % raw.key(name)) == 0, PATIENCE, "nobody listens")
    left = [key for key in raw.left(name) if kind is not SEMAPHORE or "latch" not in key]  # its mark stays for 20 s
    assert left == before
    assert kind.java(java, name).take(0.3) is None
    theirs.give()
    side.do(side.take(kind.ours(client, name)).release)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("side", ["aio"], indirect=True)
def test_a_wait_that_is_cancelled_leaves_nothing(java: Redisson, side: Python, raw: Raw, name: str, kind: Kind) -> None:
    if kind is SEMAPHORE or kind is PERMITS:
        kind.theirs(java, name).set_permits(1)  # type: ignore[union-attr]  # a semaphore
    theirs, client = kind.java(java, name), side.client()
    assert theirs.take()
    before = raw.left(name)
    waits = side.takes(kind.ours(client, name))
    raw.wait_for(kind, name, 1)
    waits.cancel()
    if kind is FAIR:
        until(lambda: raw.queue(name) == [], PATIENCE, "nobody is in the queue")
    else:
        until(lambda: raw.listening(kind.channel % raw.key(name)) == 0, PATIENCE, "nobody listens")
    theirs.give()
    until(lambda: [key for key in raw.left(name) if "latch" not in key] == [
        key for key in before if "latch" not in key and not key.endswith(":timeout")
    ], PATIENCE, "only what stays is there")  # fmt: skip
    assert theirs.take(PATIENCE), "nobody else has it"
    theirs.give()


@pytest.mark.parametrize("kind", [LOCK, WRITE], ids=str)
def test_java_is_interrupted_and_the_next_one_is_served(
    java: Redisson, side: Python, raw: Raw, name: str, kind: Kind
) -> None:
    hold, theirs = side.take(kind.ours(side.client(), name)), kind.java(java, name)
    waits = theirs.begin()
    raw.wait_for(kind, name, 1)
    stays = side.takes(kind.ours(side.client(), name))
    raw.wait_for(kind, name, 2)
    theirs.handle.interrupt()
    with pytest.raises(Exception, match="Interrupted"):
        waits.result(PATIENCE)
    side.do(hold.release)
    side.do(stays.result(PATIENCE).release)
    assert raw.left(name) == []


def test_java_gives_up_and_the_next_one_is_served(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    hold = side.take(FAIR.ours(side.client(), name))
    gives_up = FAIR.java(java, name).begin(0.5)
    raw.wait_for(FAIR, name, 1)
    stays = side.takes(FAIR.ours(side.client(), name))
    raw.wait_for(FAIR, name, 2)
    assert gives_up.result(PATIENCE) is None
    raw.wait_for(FAIR, name, 1)
    side.do(hold.release)
    side.do(stays.result(PATIENCE).release)


@pytest.mark.parametrize("side", ["aio"], indirect=True)
def test_python_gives_up_and_the_next_one_is_served(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    """Also if it was told a moment before that it is its turn."""
    theirs = FAIR.java(java, name)
    assert theirs.take()
    gives_up = side.takes(FAIR.ours(side.client(), name))
    raw.wait_for(FAIR, name, 1)
    stays = FAIR.java(java, name)
    waits = stays.begin()
    channel = f"redisson_lock__channel:{{{raw.key(name)}}}:{stays.handle.holder}"
    until(lambda: raw.listening(channel) == 1, PATIENCE, "Java waits for its turn")

    async def at_once() -> None:
        theirs.give()
        gives_up.cancel()
        await asyncio.sleep(0)

    side.do(at_once)
    assert stays.held(waits), "it was told"
    stays.give()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_client_that_closes_gives_everything_back(
    java: Redisson, side: Python, raw: Raw, name: str, kind: Kind
) -> None:
    client, other = side.client(), side.client()
    hold = side.take(kind.ours(client, name))
    theirs = kind.java(java, name)
    waits = theirs.begin()
    raw.wait_for(kind, name, 1)
    theirs.sleeps()
    side.do(client.close)
    assert hold.lost_reason == "closed"
    assert theirs.held(waits)
    ended = side.takes(kind.ours(other, name))
    raw.wait_for(kind, name, 1)
    side.do(other.close)
    with pytest.raises(dibs.Closed):
        ended.result(PATIENCE)
    if kind is FAIR:
        until(lambda: raw.queue(name) == [], PATIENCE, "nobody is in the queue")
    theirs.give()


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
