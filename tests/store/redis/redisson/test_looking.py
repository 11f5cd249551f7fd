"""Each side sees the counts, times and permits of the other, and can take a lock away."""

from __future__ import annotations

import pytest

import dibs
from lab.redisson import PATIENCE, Permits, Redisson
from lab.servers.supervisor import until
from store.redis.redisson.peers import FAIR, FENCED, LOCK, RLOCK, WRITE, Kind, Raw
from store.sides import Python

pytestmark = pytest.mark.gate


@pytest.mark.parametrize("kind", [RLOCK, FAIR, FENCED, WRITE], ids=str)
def test_python_sees_how_often_java_holds(java: Redisson, side: Python, raw: Raw, name: str, kind: Kind) -> None:
    theirs = kind.java(java, name)
    for _ in range(3):
        assert theirs.take()
    (holder,) = side.inspect(name).holders
    assert holder.info == {"holds": 3}
    assert holder.owner.removesuffix(":write") == theirs.handle.holder
    assert 15 < holder.remaining <= (90 if kind is WRITE else 30), (
        "Redisson adds up the times of a writer that re-enters"
    )
    theirs.give()
    assert side.inspect(name).holders[0].info == {"holds": 2}
    assert side.do(side.client().lock(name).locked) if kind is not WRITE else True
    theirs.give()
    theirs.give()
    assert side.inspect(name).holders == ()
    assert raw.left(name) == ([f"redisson_lock_token:{{{raw.key(name)}}}"] if kind is FENCED else [])


def test_java_sees_that_python_holds(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    theirs, lock = java.lock(name), side.client(owner="ana").rlock(name, owner="ana")
    assert not theirs.state().locked
    first, second = side.take(lock), side.take(lock)
    assert list(raw.holders(name).values()) == [2]
    state = theirs.state()
    assert (state.locked, state.held_by_me, state.holds) == (True, False, 0)
    assert 25_000 < state.ttl_ms <= 30_000
    with pytest.raises(Exception, match="IllegalMonitorState"):
        theirs.give()
    side.do(second.release)
    assert list(raw.holders(name).values()) == [1]
    assert theirs.state().locked
    side.do(first.release)
    assert theirs.state() == (False, False, 0, -2)
    assert raw.left(name) == []


@pytest.mark.parametrize("has_lease", [False, True], ids=["semaphore", "permits"])
def test_permits_are_counted_alike(java: Redisson, side: Python, name: str, has_lease: bool) -> None:
    options = {"renew": False, "lease": 20} if has_lease else {}
    theirs, ours = (java.permits if has_lease else java.semaphore)(name), side.client().semaphore(name, 5, **options)
    assert theirs.set_permits(5)
    hold = side.do(lambda: ours.acquire(2))
    assert theirs.available() == 3
    held = theirs.take(3)
    assert held is not None
    assert side.tries(ours) is None
    waits = side.begin(lambda: ours.acquire(2, timeout=PATIENCE))
    if isinstance(theirs, Permits):
        assert (theirs.total(), theirs.acquired()) == (5, 5)
        assert {holder.owner for holder in side.inspect(name).holders} > set(held.ids)
        theirs.give(held.ids)
    else:
        theirs.give(3)
    second = waits.result(PATIENCE)
    assert theirs.available() == 1
    side.do(hold.release)
    side.do(second.release)
    assert theirs.available() == 5


def test_thousands_of_permits_at_once(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    """More than a Lua script can pass to one command."""
    ours = side.client().semaphore(name, 20_000, renew=False, lease=20)
    hold = side.do(lambda: ours.acquire(20_000))
    assert java.permits(name).available() == 0
    side.do(hold.release)
    assert java.permits(name).available() == 20_000


def test_a_latch_counts_for_both(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    theirs, ours = java.latch(name), side.client().latch(name)
    side.do(lambda: ours.arm(3))
    assert not theirs.set_count(5)
    with pytest.raises(dibs.Conflict, match="3 to go"):
        side.do(lambda: ours.arm(2))
    theirs.count_down()
    assert (theirs.count(), side.do(ours.count)) == (2, 2)
    python, jvm = side.begin(lambda: ours.wait(PATIENCE)), java.latch(name).begin_wait(PATIENCE)
    channel = f"redisson_countdownlatch__channel__{{{raw.key(name)}}}"
    until(lambda: raw.listening(channel) == 2, PATIENCE, "both wait")
    side.do(ours.count_down)
    assert [python.done(), jvm.done()] == [False, False]
    side.do(ours.count_down)
    assert python.result(PATIENCE) is jvm.result(PATIENCE) is True
    assert (theirs.count(), side.do(ours.count)) == (0, 0)
    assert theirs.set_count(1)
    waits = side.begin(lambda: ours.wait(PATIENCE))
    until(lambda: raw.listening(channel) == 1, PATIENCE, "Python waits")
    theirs.count_down()
    assert waits.result(PATIENCE) is True
    assert raw.left(name) == []


@pytest.mark.parametrize("kind", [LOCK, FAIR, WRITE], ids=str)
def test_java_forces_a_hold_of_python(java: Redisson, side: Python, name: str, kind: Kind) -> None:
    hold = side.take(kind.ours(side.client(), name))
    waits = side.takes(kind.ours(side.client(lease=1.5), name)) if kind is not FAIR else None
    assert kind.theirs(java, name).force()  # type: ignore[union-attr]  # a lock
    if waits is not None:
        side.do(waits.result(PATIENCE).release)
    with pytest.raises(dibs.LockLost) as lost:
        side.do(hold.release)
    assert lost.value.reason == "broken"


@pytest.mark.parametrize("kind", [LOCK, FAIR, FENCED, WRITE], ids=str)
def test_python_breaks_a_hold_of_java(java: Redisson, side: Python, name: str, kind: Kind) -> None:
    theirs, client = kind.java(java, name), side.client()
    assert theirs.take()
    (holder,) = side.inspect(name).holders
    waits = kind.java(java, name).begin()
    with pytest.raises(dibs.NotHeld):
        side.do(lambda: client.break_(name, holder=f"{holder.owner}0"))
    with pytest.raises(dibs.Unsupported):
        side.do(lambda: client.break_(name, token=1))
    side.do(lambda: client.break_(name, holder=holder.owner))
    assert waits.result(PATIENCE) is not None, "the next one is told"
    with pytest.raises(Exception, match="IllegalMonitorState"):
        theirs.give()
