"""A reply that is lost: the request is asked again, and takes effect once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

import dibs
from lab import splitters
from lab.faults import Cut, Refuse, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.redisson import PATIENCE
from lab.servers import ports, shared_redis
from lab.servers.shared import unique
from lab.servers.supervisor import until
from store.redis.redisson.peers import FAIR, KINDS, LOCK, PERMITS, SEMAPHORE, WRITE, Kind, Raw
from store.sides import APIS, Python, python

pytestmark = pytest.mark.slow
COUNTERS = (SEMAPHORE, PERMITS)


@pytest.fixture
def here() -> Iterator[Raw]:
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, f"{unique()}:")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy((ports.HOST, shared_redis.redis().port), splitter=splitters.resp) as made:
        yield made


@pytest.fixture(params=APIS)
def far(proxy: Proxy, here: Raw, request: pytest.FixtureRequest) -> Iterator[Python]:
    with python(request.param, f"redis://{ports.HOST}:{proxy.port}/0?layout=redisson&prefix={here.prefix}") as side:
        yield side


def _free(raw: Raw, kind: Kind, name: str) -> bool:
    if kind in COUNTERS:
        return bool(raw.client.get(raw.key(name)) == b"1")
    return not raw.client.exists(raw.key(name))


def _lose_the_next_reply(proxy: Proxy, *starts: bytes) -> None:
    """The next one that begins so. The connection ends with it."""
    lost: list[bytes] = []

    def match(message: bytes) -> bool:
        if lost or not message.startswith(starts):
            return False
        lost.append(message)
        return True

    proxy.add(Cut(at_message(match=match)), DOWN)


HELD = (b"$16\r\n", b"*5\r\n:")
"""How the reply to an acquire begins."""
LEFT = (b":",)
CHANGED = (b"*2\r\n:", b"*3\r\n:")
"""The same of a release, and of a change of a latch."""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_reply_to_an_acquire(far: Python, proxy: Proxy, here: Raw, name: str, kind: Kind) -> None:
    client = far.client(lease=60)
    lock = kind.ours(client, name)
    far.do(far.take(lock).release)
    _lose_the_next_reply(proxy, *HELD)
    hold = far.take(lock)
    hold.check()
    if kind in COUNTERS:
        assert here.client.get(here.key(name)) == b"0", "it was taken once"
    else:
        assert list(here.holders(name).values()) == [1]
    assert far.tries(kind.ours(far.client(), name)) is None
    far.do(hold.release)
    assert _free(here, kind, name)
    far.do(far.take(lock).release)
    assert _free(here, kind, name)


@pytest.mark.parametrize("renew", [True, False], ids=["semaphore", "permits"])
def test_the_reply_to_an_acquire_of_two_permits(far: Python, proxy: Proxy, here: Raw, name: str, renew: bool) -> None:
    """There are enough for a second time."""
    semaphore = far.client(lease=60).semaphore(name, 5, renew=renew)
    far.do(far.take(semaphore).release)
    _lose_the_next_reply(proxy, *HELD)
    hold = far.do(lambda: semaphore.acquire(2, timeout=PATIENCE))
    assert here.client.get(here.key(name)) == b"3"
    far.do(hold.release)
    assert here.client.get(here.key(name)) == b"5"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_reply_to_a_release(far: Python, proxy: Proxy, here: Raw, name: str, kind: Kind) -> None:
    """Nothing is given back twice, and the holder is not told that it had lost it."""
    client = far.client(lease=60)
    lock = kind.ours(client, name)
    hold = far.take(lock)
    _lose_the_next_reply(proxy, *LEFT)
    far.do(hold.release)
    assert _free(here, kind, name)
    far.do(far.take(lock).release)
    assert _free(here, kind, name)


@pytest.mark.parametrize("kind", [LOCK, FAIR, WRITE], ids=str)
def test_a_release_that_is_not_answered_says_if_it_was_lost_before(
    far: Python, proxy: Proxy, here: Raw, name: str, kind: Kind
) -> None:
    hold = far.take(kind.ours(far.client(lease=60), name))
    here.client.delete(here.key(name))
    _lose_the_next_reply(proxy, *LEFT)
    with pytest.raises(dibs.LockLost):
        far.do(hold.release)


@pytest.mark.parametrize("kind", [LOCK, FAIR, WRITE], ids=str)
def test_a_holder_that_is_cut_off_loses_the_lock_before_another_gets_it(
    far: Python, proxy: Proxy, here: Raw, name: str, kind: Kind
) -> None:
    url = f"{shared_redis.redis().url()}?layout=redisson&prefix={here.prefix}"
    with python("blocking", url) as near:
        hold = far.take(kind.ours(far.client(lease=2), name))
        waits = near.takes(kind.ours(near.client(), name))
        here.wait_for(kind, name, 1)
        proxy.add(Refuse())
        proxy.cut()
        ours = waits.result(PATIENCE)
        with pytest.raises(dibs.LockLost):
            hold.check()
        near.do(ours.release)


def test_a_latch_is_counted_down_once(far: Python, proxy: Proxy, here: Raw, name: str) -> None:
    latch = far.client().latch(name)
    far.do(lambda: latch.arm(3))
    _lose_the_next_reply(proxy, *CHANGED)
    far.do(latch.count_down)
    assert far.do(latch.count) == 2
    far.do(lambda: latch.count_down(2))
    _lose_the_next_reply(proxy, *CHANGED)
    far.do(lambda: latch.arm(1))
    assert far.do(latch.count) == 1


@pytest.mark.parametrize("far", ["aio"], indirect=True)
def test_an_acquire_that_is_cancelled_while_its_reply_is_lost(far: Python, proxy: Proxy, here: Raw, name: str) -> None:
    """The request took effect, and nobody is there for the hold: it is given back."""
    for kind in KINDS:
        lock = kind.ours(far.client(lease=60), f"{name}-{kind}")
        far.do(far.take(lock).release)
        cut_off = proxy.add(Refuse())  # it cannot ask again
        _lose_the_next_reply(proxy, *HELD)
        taken = far.takes(lock)
        until(lambda kind=kind: not _free(here, kind, f"{name}-{kind}"), PATIENCE, f"{kind} is taken")
        assert taken.cancel()
        proxy.remove(cut_off)
        until(lambda kind=kind: _free(here, kind, f"{name}-{kind}"), PATIENCE, f"{kind} is free again")


def test_a_late_copy_of_a_count_down_does_not_count(far: Python, proxy: Proxy, here: Raw, name: str) -> None:
    latch = far.client().latch(name)
    far.do(lambda: latch.arm(3))
    late = proxy.hold(UP, at_message(match=lambda message: here.key(name).encode() in message))
    far.do(latch.count_down)
    assert far.do(latch.count) == 2, "the second copy was answered"
    assert late.deliver() == 1
    assert far.do(latch.count) == 2


def test_an_interrupt_after_a_release_gives_no_permit_back_twice(here: Raw, name: str) -> None:
    """It strikes once the release was answered: the watchdog releases again."""
    url = f"{shared_redis.redis().url()}?layout=redisson&prefix={here.prefix}"
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
        assert here.client.get(here.key(f"{name}-{kind}")) == b"2"


@pytest.mark.parametrize("far", ["aio"], indirect=True)
def test_a_waiter_that_was_told_and_is_cut_off_passes_it_on(far: Python, proxy: Proxy, here: Raw, name: str) -> None:
    """Its request is lost, and it is cancelled. The next waiter of the client does not wait for the lease."""
    near = dibs.connect(f"{shared_redis.redis().url()}?layout=redisson&prefix={here.prefix}", lease=600)
    client = far.client(lease=600)
    channel = LOCK.channel % here.key(name)
    with near:
        hold = near.lock(name).acquire()
        assert hold is not None
        waiting = []
        for count in (1, 2):
            waiting.append(far.begin(lambda: client.lock(name).acquire()))
            until(lambda count=count: len(_listeners(client, channel)) == count, PATIENCE, "it listens")
        first, second = waiting
        late = proxy.hold(UP, at_message(match=lambda message: here.key(name).encode() in message))
        hold.release()
        late.await_held()
        assert first.cancel()
        far.do(second.result(PATIENCE).release)
        late.deliver()


def test_a_fair_waiter_ends_its_subscription_when_it_holds(far: Python, here: Raw, name: str) -> None:
    one, other = far.client(), far.client()
    for _ in range(3):
        hold = far.take(FAIR.ours(one, name))
        waits = far.takes(FAIR.ours(other, name))
        here.wait_for(FAIR, name, 1)
        far.do(hold.release)
        far.do(waits.result(PATIENCE).release)
    until(lambda: not here.client.pubsub_channels(f"*{here.key(name)}*"), PATIENCE, "nobody listens")


def _listeners(client: Any, channel: str) -> list[bytes]:
    subscriber = client._core.store._resources.subscriber
    return [] if subscriber is None else subscriber.listeners(channel.encode())
