"""Hostile values at the keys of Redis: a queue's head, its chain, cells. Hostile claims: test_claims.py."""

# ruff: noqa: PT017  (an attempt may be refused or not; how it is refused is fixed)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis

import dibs
from lab.servers import shared_redis
from security.hostile import HUGE, is_said_well, nothing_comes_of_it, others_are_served
from store.redis.hashes import SECOND, Raw, usual

pytestmark = pytest.mark.gate
TEXTS: dict[str, bytes] = {
    "no record": b"\xc1" * 400,
    "digits": b"1" * 400,
    "cut off": usual(1, ID=b"x" * 16)[:150],
    "2 MB": b"x" * HUGE,
}
_FREE = b"2" + b"0" * 16 + b"9" * 16 + b"9" * 10
HEADS: dict[str, bytes] = {
    "nothing": b"",
    "one sign": b"2",
    "the greatest last ticket": b"2" + b"9" * 42,
    "a last ticket of 2^53": b"2" + b"9007199254740992" + _FREE[17:],
    "a last ticket in letters": b"2" + b"high".ljust(16) + _FREE[17:],
    "a last ticket below nothing": b"2" + b"-922337203685477" + _FREE[17:],
    "a last ticket that sorts before all numbers": b"2" + b" " * 16 + _FREE[17:],
    "covered in letters": _FREE[:17] + b"z" * 16 + _FREE[33:],
    "an end of the key in letters": _FREE[:33] + b"long".ljust(10),
    "an end of the key without an end": _FREE,
    "one sign too few": _FREE[:-1],
    "one sign too many": _FREE + b" ",
    "a record that is cut off": _FREE + b"a" + b"x" * 150,
    "no record": _FREE + b"a",
    "no record behind the link": _FREE + b"q" + b"x" * 64,
    "something special that is cut off": _FREE + b"s" + b"0" * 30,
    "something special in letters": _FREE + b"s" + b"x" * 49,
    "tombstones without number": _FREE + b"s" + b"0" * 32 + b"9" * 16 + b"0",
    "more tombstones that are over than there are": _FREE + b"s" + b"0" * 16 + b"9".rjust(16, b"0") + b"0" * 17,
    "tombstones of nobody": _FREE + b"s" + b"0" * 32 + b"3".rjust(16, b"0") + b"0",
    "unfair waiters for ever": _FREE + b"s" + b"9" * 16 + b"0" * 33,
    "another layout": b"{}",
    "a layout of the future": b"3" + _FREE[1:],
    "the layout before this": b"1" + _FREE[1:],
    "2 MB": b"2" * HUGE,
}
HARMLESS = {
    "an end of the key without an end",
    "tombstones of nobody",
    "unfair waiters for ever",
}
"""A queue with that is used by one at a time all the same."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_redis.fresh(tmp_path)


@pytest.fixture
def hostile(url: str) -> Iterator[Raw]:
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, url.partition("prefix=")[2])


@pytest.fixture
def clients(url: str) -> Iterator[tuple[dibs.Client, dibs.Client]]:
    with dibs.connect(url, retry=1) as one, dibs.connect(url, retry=1) as other:
        yield one, other


def test_what_is_no_record(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """The error names the key."""
    queue = hostile.queue()
    for case, text in TEXTS.items():
        print(f"case: {case}")
        queue.plant()
        queue.change_head(record=text)
        said = nothing_comes_of_it(clients[0], url)
        assert len(said) >= 6
        answered = [one for one in said if "in time" not in one]  # a busy server takes a while to read a long one
        assert answered
        assert all(queue.key.decode() in one for one in answered)
        others_are_served(*clients)
        hostile.client.delete(queue.key)


def test_what_is_no_queue(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """The error names the key, and what stands there is left alone; a listing of all names is not ended by it."""
    key = hostile.queue().key
    plants: dict[str, Callable[[], object]] = {
        "string": lambda: hostile.client.set(key, "x"),
        "list": lambda: hostile.client.rpush(key, "x"),
        "set": lambda: hostile.client.sadd(key, "x"),
        "zset": lambda: hostile.client.zadd(key, {"x": 1}),
        "stream": lambda: hostile.client.xadd(key, {"x": 1}),
        "another's hash": lambda: hostile.client.hset(key, mapping={"first": "ana", "last": "bob"}),
    }
    for kind, plant in plants.items():
        print(f"case: {kind}")
        hostile.client.delete(key)  # a claim of the case before, given back late, leaves a tombstone
        plant()
        before = hostile.client.dump(key)
        said = nothing_comes_of_it(clients[0], url)
        assert all(key.decode() in text for text in said if "not held" not in text)
        assert hostile.client.dump(key) == before
        others_are_served(*clients)


@pytest.mark.parametrize("case", HEADS)
def test_a_hostile_queue_is_refused_or_used_by_one_at_a_time(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, case: str
) -> None:
    hostile.queue().write("h", HEADS[case])
    client, other = clients
    holds, errors = [], list[dibs.DibsError]()
    for one in (client, other, client):
        try:
            holds.append(one.lock("a").acquire(timeout=0.1))
        except dibs.DibsError as error:
            assert is_said_well(error, url), str(error)[:300]
            errors.append(error)
    got = [hold for hold in holds if hold is not None]
    assert len(got) <= 1, "two holders"
    assert errors or case in HARMLESS, "neither refused nor known to be harmless"
    assert all(hold.token > 0 for hold in got), "a token that no fence would take"
    others_are_served(client, other)


def test_a_circle_of_claims(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """A script that does not end would keep the server from everybody."""
    queue = hostile.queue()
    ids = [queue.plant(CAPACITY=100, KIND=b"semaphore") for _ in range(5)]
    queue.relink(ids[-1], ids[1])
    queue.change_head(last=b"x" * 16)
    said = nothing_comes_of_it(clients[0], url)
    assert any("damaged" in text for text in said)
    with suppress(dibs.DibsError):
        assert clients[0].semaphore("a", 100).acquire(timeout=0) is None
    others_are_served(*clients)


def test_a_crowd_of_planted_claims(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """Five thousand that have expired, more than Lua takes arguments: whoever comes sweeps them, and is served."""
    queue = hostile.queue()
    queue.plant_many(5000, SINCE=hostile.now() - 86_400 * SECOND)
    client, other = clients
    with client.lock("a", timeout=10) as hold:
        assert other.lock("a").acquire(timeout=0) is None
        hold.check()
    assert queue.check() == []


CELLS: list[dict[str, str]] = [
    {"value": "x"}, {"version": "1"}, {"value": "x", "version": "-1"}, {"value": "x", "version": "many"},
    {"value": "x" * HUGE, "version": "1"}, {"value": "9" * 400, "version": "1"}, {"value": "-1", "version": "1"},
    {"value": "1", "version": "1", "writes": "garbage"}, {"value": "1", "version": "9" * 30},
]  # fmt: skip


@pytest.mark.parametrize("space", ["latch", "cell", "fence"])
def test_hostile_values_of_cells(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, space: str) -> None:
    """An error that names the key or the thing, or a plain answer; nothing else."""
    client = clients[0]
    uses: dict[str, list[Callable[[], object]]] = {
        "latch": [lambda: client.latch("a").count(), lambda: client.latch("a").wait(timeout=0)],
        "cell": [lambda: client.cell("a").get(), lambda: client.cell("a").set(b"mine", 1)],
        "fence": [lambda: client.fence("a").admit(5), lambda: client.fence("a").admit(6, shared=True)],
    }
    key = f"{hostile.prefix}dibs:a|{space}"
    for fields in CELLS:
        hostile.client.delete(key)
        hostile.client.hset(key, mapping=fields)
        for use in uses[space]:
            try:
                use()
            except dibs.DibsError as error:
                assert is_said_well(error, url), str(error)[:300]
    assert client.latch("b").count() == 0


def test_a_fence_of_another_type_admits_nobody(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    hostile.client.set(f"{hostile.prefix}dibs:a|fence", "5")
    with pytest.raises(dibs.StoreError, match=r"\|fence"):
        clients[0].fence("a").admit(7)
