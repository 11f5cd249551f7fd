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
        side.take(kind.ours(side.client(), name))
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
        side.take(kind.ours(side.client(), name))
    side.do(held.release)
    assert waits.held(begun)
    waits.give()


def test_a_queue_of_the_other_layout(side: Python, raw: Raw, name: str) -> None:
    """dibs' own layout: a program could share its key by mistake."""
    with dibs.connect(side.url.replace("layout=redisson&", ""), namespace="") as own, own.lock(name):
        key = f"{name}|line"
        before = raw.client.hgetall(raw.key(key))
        for kind in KINDS:
            with pytest.raises(dibs.Mismatch, match="dibs' own layout"):
                side.take(kind.ours(side.client(), key))
            assert raw.client.hgetall(raw.key(key)) == before, kind
        assert side.inspect(key).holders == ()


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
        own.lock(name).acquire(timeout=60)
    assert raw.client.dump(raw.key(f"{name}|line")) == before


def test_only_plain_locks_are_fenced() -> None:
    with dibs.connect("redis://127.0.0.1:1", layout="redisson") as client:
        for make in (client.rwlock, lambda name, **options: client.semaphore(name, 2, **options)):
            with pytest.raises(dibs.Unsupported, match=r"redis://127\.0\.0\.1:1") as refused:
                make("a", fenced=True)
            assert refused.value.step
