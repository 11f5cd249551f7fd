"""A busy name of another kind or layout is refused, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dibs
from lab.redisson import Redisson
from store.redis.redisson.peers import FAIR, KINDS, LOCK, PERMITS, RLOCK, SEMAPHORE, WRITE, Kind, Raw
from store.sides import Python

MADE_BY_JAVA: dict[str, Callable[[Redisson, str], Any]] = {
    "lock": Redisson.lock,
    "write": Redisson.write,
    "permits": Redisson.permits,
}
REFUSED = [
    ("lock", WRITE), ("lock", SEMAPHORE), ("lock", PERMITS),
    ("write", LOCK), ("write", FAIR), ("write", SEMAPHORE), ("write", PERMITS),
    ("permits", LOCK), ("permits", FAIR), ("permits", WRITE), ("permits", SEMAPHORE),
]  # fmt: skip


@pytest.mark.parametrize(("made", "kind"), REFUSED, ids=str)
def test_another_kind_of_java(java: Redisson, side: Python, raw: Raw, name: str, made: str, kind: Kind) -> None:
    theirs = MADE_BY_JAVA[made](java, name)
    if made == "permits":
        theirs.set_permits(1)
    assert theirs.take() is not None
    before = raw.client.dump(raw.key(name)), raw.left(name)
    with pytest.raises(dibs.Mismatch, match="the name is in use as"):
        side.take(kind.ours(side.client(), name), timeout=1)
    assert (raw.client.dump(raw.key(name)), [key for key in raw.left(name) if "latch" not in key]) == before


@pytest.mark.parametrize("kind", [LOCK, RLOCK], ids=str)
def test_a_plain_lock_does_not_overtake_a_fair_one(
    java: Redisson, side: Python, raw: Raw, name: str, kind: Kind
) -> None:
    held = side.take(FAIR.ours(side.client(), name))
    waits = FAIR.java(java, name)
    begun = waits.begin()
    raw.wait_for(FAIR, name, 1)
    with pytest.raises(dibs.Mismatch, match="fair=True"):
        side.take(kind.ours(side.client(), name), timeout=1)
    side.do(held.release)
    assert waits.held(begun)
    waits.give()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_queue_of_the_other_layout(side: Python, raw: Raw, name: str, kind: Kind) -> None:
    """Of dibs' own layout: a key that a program could share by mistake."""
    with dibs.connect(side.url.replace("layout=redisson&", ""), namespace="") as own, own.lock(name):
        key = f"{name}|line"
        before = raw.client.hgetall(raw.key(key))
        with pytest.raises(dibs.Mismatch, match="dibs' own layout"):
            side.take(kind.ours(side.client(), key), timeout=1)
        assert raw.client.hgetall(raw.key(key)) == before
        assert side.inspect(key).holders == ()


@pytest.mark.parametrize("kind", ["lock", "write"])
def test_a_latch_on_the_name_of_a_lock(java: Redisson, side: Python, name: str, kind: str) -> None:
    assert MADE_BY_JAVA[kind](java, name).take() is not None
    latch = side.client().latch(name)
    for ask in (latch.count, lambda: latch.arm(1), latch.count_down, lambda: latch.wait(1)):
        with pytest.raises(dibs.Mismatch, match="in use as a lock"):
            side.do(ask)


def test_names_of_any_form(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    for odd in (f"{{tag}}{name}", f"{name}}}{{", f"schlüssel 锁 {name}", f"{name}-{'h' * 40}", name.ljust(500, "x")):
        hold = side.take(side.client().lock(odd))
        theirs = java.lock(odd)
        assert theirs.take(0) is None
        side.do(hold.release)
        assert theirs.take(0) is not None
        assert side.tries(side.client().lock(odd)) is None
        theirs.give()


@pytest.mark.parametrize("kind", ["lock", "write"])
def test_the_other_layout_refuses_a_lock_of_java(java: Redisson, side: Python, raw: Raw, name: str, kind: str) -> None:
    assert MADE_BY_JAVA[kind](java, f"{name}|line").take() is not None
    before = raw.client.dump(raw.key(f"{name}|line"))
    with (
        dibs.connect(side.url.replace("layout=redisson&", ""), namespace="") as own,
        pytest.raises((dibs.Mismatch, dibs.StoreError)),
    ):
        own.lock(name).acquire(timeout=1)
    assert raw.client.dump(raw.key(f"{name}|line")) == before


def test_another_size_of_permits(java: Redisson, side: Python, name: str) -> None:
    assert java.permits(name).set_permits(3)
    with pytest.raises(dibs.Mismatch, match="has 3 permits, not 2"):
        side.take(side.client().semaphore(name, 2, renew=False), timeout=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.rwlock("a", fair=True),
        lambda client: client.semaphore("a", 2, fair=True),
        lambda client: client.semaphore("a", 2, lease=5),
        lambda client: client.lock("a", fair=True, fenced=True),
        lambda client: client.rwlock("a", fenced=True),
        lambda client: client.semaphore("a", 2, fenced=True),
        lambda client: client.election("a"),
        lambda client: client.striped("a", 3),
    ],
)
def test_what_the_format_cannot_do_is_refused_when_it_is_made(make: Callable[[Any], Any]) -> None:
    with dibs.connect("redis://127.0.0.1:1", layout="redisson") as client, pytest.raises(dibs.Unsupported) as refused:
        make(client)
    assert refused.value.step
    assert "redis://127.0.0.1:1" in str(refused.value)
