"""A reply that is lost: the request is asked again, and takes effect once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dibs
from lab import splitters
from lab.faults import Cut, Refuse, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.redisson import PATIENCE
from lab.servers import ports, shared_redis
from lab.servers.supervisor import until
from store.redis.redisson.peers import FAIR, KINDS, LOCK, PERMITS, SEMAPHORE, WRITE, Kind, Raw
from store.sides import APIS, Python, python

COUNTERS = (SEMAPHORE, PERMITS)
EACH = [pytest.param(kind, marks=() if kind in (LOCK, SEMAPHORE) else pytest.mark.gate, id=str(kind)) for kind in KINDS]
"""The first tier has one lock and one counter."""


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy((ports.HOST, shared_redis.redis().port), splitter=splitters.resp) as made:
        yield made


@pytest.fixture(params=APIS)
def far(proxy: Proxy, apart: Raw, request: pytest.FixtureRequest) -> Iterator[Python]:
    with python(request.param, f"redis://{ports.HOST}:{proxy.port}/0?layout=redisson&prefix={apart.prefix}") as side:
        yield side


def _free(raw: Raw, kind: Kind, name: str) -> bool:
    if kind in COUNTERS:
        return bool(raw.client.get(raw.key(name)) == b"1")
    return not raw.client.exists(raw.key(name))


def _lose_the_next_reply(proxy: Proxy, *starts: bytes) -> None:
    """Drop the next reply that begins so, with its connection."""
    lost: list[bytes] = []

    def match(message: bytes) -> bool:
        if lost or not message.startswith(starts):
            return False
        lost.append(message)
        return True

    proxy.add(Cut(at_message(match=match)), DOWN)


HELD = (b"$16\r\n", b"*5\r\n:")
"""The start of a reply to an acquire."""
LEFT = (b":",)
CHANGED = (b"*2\r\n:", b"*3\r\n:")
"""The start of a reply to a change of a latch."""


@pytest.mark.parametrize("kind", EACH)
def test_the_reply_to_an_acquire(far: Python, proxy: Proxy, apart: Raw, name: str, kind: Kind) -> None:
    client = far.client(lease=60)
    lock = kind.ours(client, name)
    far.do(far.take(lock).release)
    _lose_the_next_reply(proxy, *HELD)
    hold = far.take(lock)
    hold.check()
    if kind in COUNTERS:
        assert apart.client.get(apart.key(name)) == b"0", "it was taken once"
    else:
        assert list(apart.holders(name).values()) == [1]
    assert far.tries(kind.ours(far.client(), name)) is None
    far.do(hold.release)
    assert _free(apart, kind, name)
    far.do(far.take(lock).release)
    assert _free(apart, kind, name)


@pytest.mark.gate
def test_the_reply_to_an_acquire_of_two_permits(far: Python, proxy: Proxy, apart: Raw, name: str) -> None:
    """There are enough for a second time."""
    semaphore = far.client(lease=60).semaphore(name, 5, renew=False)
    far.do(far.take(semaphore).release)
    _lose_the_next_reply(proxy, *HELD)
    hold = far.do(lambda: semaphore.acquire(2, timeout=PATIENCE))
    assert apart.client.get(apart.key(name)) == b"3"
    far.do(hold.release)
    assert apart.client.get(apart.key(name)) == b"5"


@pytest.mark.parametrize("kind", EACH)
def test_the_reply_to_a_release(far: Python, proxy: Proxy, apart: Raw, name: str, kind: Kind) -> None:
    """Nothing is released twice, and the holder does not see a loss."""
    client = far.client(lease=60)
    lock = kind.ours(client, name)
    hold = far.take(lock)
    _lose_the_next_reply(proxy, *LEFT)
    far.do(hold.release)
    assert _free(apart, kind, name)
    far.do(far.take(lock).release)
    assert _free(apart, kind, name)


@pytest.mark.gate
@pytest.mark.parametrize("kind", [LOCK, FAIR, WRITE], ids=str)
def test_a_release_that_is_not_answered_says_if_it_was_lost_before(
    far: Python, proxy: Proxy, apart: Raw, name: str, kind: Kind
) -> None:
    hold = far.take(kind.ours(far.client(lease=60), name))
    apart.client.delete(apart.key(name))
    _lose_the_next_reply(proxy, *LEFT)
    with pytest.raises(dibs.LockLost):
        far.do(hold.release)


@pytest.mark.gate
@pytest.mark.parametrize("kind", [LOCK, FAIR, WRITE], ids=str)
def test_a_holder_that_is_cut_off_loses_the_lock_before_another_gets_it(
    far: Python, proxy: Proxy, apart: Raw, name: str, kind: Kind
) -> None:
    url = f"{shared_redis.redis().url()}?layout=redisson&prefix={apart.prefix}"
    with python("blocking", url) as near:
        hold = far.take(kind.ours(far.client(lease=2), name))
        waits = near.takes(kind.ours(near.client(), name))
        apart.wait_for(kind, name, 1)
        proxy.add(Refuse())
        proxy.cut()
        ours = waits.result(PATIENCE)
        with pytest.raises(dibs.LockLost):
            hold.check()
        near.do(ours.release)


def test_a_latch_is_counted_down_once(far: Python, proxy: Proxy, apart: Raw, name: str) -> None:
    latch = far.client().latch(name)
    far.do(lambda: latch.arm(3))
    _lose_the_next_reply(proxy, *CHANGED)
    far.do(lambda: latch.count_down(2))
    assert far.do(latch.count) == 1
    far.do(latch.count_down)
    _lose_the_next_reply(proxy, *CHANGED)
    far.do(lambda: latch.arm(1))
    assert far.do(latch.count) == 1


@pytest.mark.gate
@pytest.mark.parametrize("far", ["aio"], indirect=True)
def test_an_acquire_that_is_cancelled_while_its_reply_is_lost(far: Python, proxy: Proxy, apart: Raw, name: str) -> None:
    """The request took effect without a caller: the hold is released."""
    for kind in KINDS:
        lock = kind.ours(far.client(lease=60), f"{name}-{kind}")
        far.do(far.take(lock).release)
        cut_off = proxy.add(Refuse())  # it cannot ask again
        _lose_the_next_reply(proxy, *HELD)
        taken = far.takes(lock)
        until(lambda kind=kind: not _free(apart, kind, f"{name}-{kind}"), PATIENCE, f"{kind} is taken")
        assert taken.cancel()
        proxy.remove(cut_off)
        until(lambda kind=kind: _free(apart, kind, f"{name}-{kind}"), PATIENCE, f"{kind} is free again")


@pytest.mark.gate
def test_a_late_copy_of_a_count_down_does_not_count(far: Python, proxy: Proxy, apart: Raw, name: str) -> None:
    latch = far.client().latch(name)
    far.do(lambda: latch.arm(3))
    late = proxy.hold(UP, at_message(match=lambda message: apart.key(name).encode() in message))
    far.do(latch.count_down)
    assert far.do(latch.count) == 2, "the second copy was answered"
    assert late.deliver() == 1
    assert far.do(latch.count) == 2


@pytest.mark.gate
def test_an_interrupt_after_a_release_gives_no_permit_back_twice(apart: Raw, name: str) -> None:
    """The interrupt comes after the reply: the watchdog releases again."""
    url = f"{shared_redis.redis().url()}?layout=redisson&prefix={apart.prefix}"
    for kind in COUNTERS:
        with dibs.connect(url) as client:
            lock = client.semaphore(f"{name}-{kind}", 2, renew=kind is SEMAPHORE)
            queue = client._core.registry  # opened by the first acquire
            hold = lock.acquire()
            assert hold is not None
            opened = queue.grantor._queue  # type: ignore[union-attr]
            leave = opened.leave

            async def interrupted(*words: Any, leave: Any = leave) -> bool:
                await leave(*words)
                raise KeyboardInterrupt

            opened.leave, opened.leave_now = interrupted, lambda *_: None
            with pytest.raises(KeyboardInterrupt):
                hold.release()
        assert apart.client.get(apart.key(f"{name}-{kind}")) == b"2"


@pytest.mark.gate
@pytest.mark.parametrize("far", ["aio"], indirect=True)
def test_a_waiter_that_was_told_and_is_cut_off_passes_it_on(far: Python, proxy: Proxy, apart: Raw, name: str) -> None:
    """The next waiter of the client does not wait for the lease."""
    near = dibs.connect(f"{shared_redis.redis().url()}?layout=redisson&prefix={apart.prefix}", lease=600)
    client = far.client(lease=600)
    channel = LOCK.channel % apart.key(name)
    with near:
        hold = near.lock(name).acquire()
        assert hold is not None
        waiting = []
        for count in (1, 2):
            waiting.append(far.begin(lambda: client.lock(name).acquire()))
            until(lambda count=count: len(_listeners(client, channel)) == count, PATIENCE, "it listens")
        first, second = waiting
        late = proxy.hold(UP, at_message(match=lambda message: apart.key(name).encode() in message))
        hold.release()
        late.await_held()
        assert first.cancel()
        far.do(second.result(PATIENCE).release)
        late.deliver()


@pytest.mark.gate
def test_a_fair_waiter_ends_its_subscription_when_it_holds(far: Python, apart: Raw, name: str) -> None:
    one, other = far.client(), far.client()
    for _ in range(3):
        hold = far.take(FAIR.ours(one, name))
        waits = far.takes(FAIR.ours(other, name))
        apart.wait_for(FAIR, name, 1)
        far.do(hold.release)
        far.do(waits.result(PATIENCE).release)
    until(lambda: not apart.client.pubsub_channels(f"*{apart.key(name)}*"), PATIENCE, "nobody listens")


def _listeners(client: Any, channel: str) -> list[bytes]:
    subscriber = client._core.store._resources.subscriber
    return [] if subscriber is None else subscriber.listeners(channel.encode())
