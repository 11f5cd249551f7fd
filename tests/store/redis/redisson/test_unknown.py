"""A reply that is lost: the request is asked again, and takes effect once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

import dibs
from lab import splitters
from lab.faults import Cut, Refuse, at_message
from lab.proxy import DOWN, Proxy
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


def _lose_the_next_reply(proxy: Proxy) -> None:
    """Of a script. The connection ends with it."""
    lost: list[bytes] = []

    def match(message: bytes) -> bool:
        if lost or message.startswith((b"+", b"-", b"*2", b"*3")):  # greetings, the time, subscriptions
            return False
        lost.append(message)
        return True

    proxy.add(Cut(at_message(match=match)), DOWN)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_reply_to_an_acquire(far: Python, proxy: Proxy, here: Raw, name: str, kind: Kind) -> None:
    client = far.client(lease=60)
    lock = kind.ours(client, name)
    far.do(far.take(lock).release)
    _lose_the_next_reply(proxy)
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


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_reply_to_a_release(far: Python, proxy: Proxy, here: Raw, name: str, kind: Kind) -> None:
    """Nothing is given back twice, and the holder is not told that it had lost it."""
    client = far.client(lease=60)
    lock = kind.ours(client, name)
    hold = far.take(lock)
    _lose_the_next_reply(proxy)
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
    _lose_the_next_reply(proxy)
    with pytest.raises(dibs.LockLost):
        far.do(hold.release)


def test_a_latch_is_counted_down_once(far: Python, proxy: Proxy, here: Raw, name: str) -> None:
    latch = far.client().latch(name)
    far.do(lambda: latch.arm(3))
    _lose_the_next_reply(proxy)
    far.do(latch.count_down)
    assert far.do(latch.count) == 2
    far.do(lambda: latch.count_down(2))
    _lose_the_next_reply(proxy)
    far.do(lambda: latch.arm(1))
    assert far.do(latch.count) == 1


@pytest.mark.parametrize("far", ["aio"], indirect=True)
def test_an_acquire_that_is_cancelled_while_its_reply_is_lost(far: Python, proxy: Proxy, here: Raw, name: str) -> None:
    """The request took effect, and nobody is there for the hold: it is given back."""
    for kind in KINDS:
        lock = kind.ours(far.client(lease=60), f"{name}-{kind}")
        far.do(far.take(lock).release)
        cut_off = proxy.add(Refuse())  # it cannot ask again
        _lose_the_next_reply(proxy)
        taken = far.takes(lock)
        until(lambda kind=kind: not _free(here, kind, f"{name}-{kind}"), PATIENCE, f"{kind} is taken")
        assert taken.cancel()
        proxy.remove(cut_off)
        until(lambda kind=kind: _free(here, kind, f"{name}-{kind}"), PATIENCE, f"{kind} is free again")
