"""Bad input: each a clear, typed error before anything changed. Odd input that is allowed: a lock like any other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import product
from math import inf, nan
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import FACES, World

BAD_NAMES: dict[str, object] = {
    "empty": "",
    "blank": "   ",
    "blank in unicode": "\u2003\u3000",
    "513 bytes": "x" * 513,
    "1 MB": "x" * 2**20,
    "a command after a line break": "\r\nFLUSHALL\r\n",
    "a title for the terminal": "\x1b]0;owned\x07",
    "513 bytes of 172 characters": "€" * 171,
    "lone surrogate": "a\ud800b",
    "NUL": "a\x00b",
    "newline": "a\nb",
    "escape": "\x1b[2J",
    "delete": "a\x7f",
    "C1 control": "a\x85b",
    "line separator": "a\u2028b",
    "bytes": b"a",
    "int": 5,
    "None": None,
    "list": ["a"],
}
NAMING: dict[str, Callable[[Any, Any], Any]] = {
    "lock": lambda client, name: client.lock(name),
    "rlock": lambda client, name: client.rlock(name),
    "rwlock": lambda client, name: client.rwlock(name),
    "semaphore": lambda client, name: client.semaphore(name, 3),
    "striped": lambda client, name: client.striped(name, 3),
    "inspect": lambda client, name: client.inspect(name),
    "break_": lambda client, name: client.break_(name, token=1),
}
ODD_NAMES = [
    "x') ; DROP TABLE locks;--", "x\" OR 1=1 --", "../../etc/passwd", "/etc/passwd", ".", "..", "~", "a/b", "a//b",
    "🔒", "👨‍👩‍👧", "שלום", "\u202eevil", "é", "e\u0301", "%", "%s", "%3A", "*", "?", "[a-z]", "_",
    "\\", "\\\\", "'", '"', "`",
    "$(reboot)", "${HOME}", "{0}", "{name}", "a:b", "a#0", ":", "#", " a", "a ", "A", "a", "x" * 512, "x" * 511,
    "€" * 170, "CON", "null", "0", "-1", "--help", "\ufeffa", "a\u200bb", "\uff41",
    "zookeeper", "/a//b", "lock:*", "lock?[ab]", "{a}b{c}", "q", "q:1", "q#1", "q%3A1", ":memory:",
    "file:x?mode=memory", "__proto__", "<img src=x onerror=alert(1)>", "y" * 65, "z" * 193, "\U0001f512" * 128,
]  # fmt: skip
BAD_TIMES: list[object] = [nan, inf, -inf, -1, -0.001, timedelta(seconds=-1), True, "5", [], frozenset()]


@pytest.mark.parametrize("what", NAMING)
async def test_bad_names_are_refused_before_any_io(world: World, what: str) -> None:
    client = world.client()
    for case, name in BAD_NAMES.items():
        error = await refusal(world, lambda name=name: NAMING[what](client, name))
        assert isinstance(error, dibs.BadName), case
        assert isinstance(error, ValueError), case
        assert str(error).isprintable(), case
    assert not await world.locks(client)


async def refusal(world: World, ask: Callable[[], Any]) -> Exception | None:
    """What came of it: many cases are one test, which says itself which of them is wrong."""
    try:
        await world(ask)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", [name for name in BAD_NAMES.values() if name != ""])
def test_bad_namespaces_are_refused(face: str, name: object) -> None:
    with pytest.raises((dibs.BadName, ValueError)):
        FACES[face].connect("memory://", namespace=name)


async def test_odd_names_are_distinct_locks(world: World) -> None:
    client, other = world.client(), world.client()
    ana, bob = world.actors("ana", "bob")
    holds = []
    for name in ODD_NAMES:
        hold = await ana(lambda name=name: client.lock(name).acquire(timeout=0))
        assert hold is not None, f"{name!r} is not a lock of its own"
        holds.append(hold)
    for name, hold in zip(ODD_NAMES, holds, strict=True):
        assert await bob(lambda name=name: other.lock(name).acquire(timeout=0)) is None, name
        info = await world.inspect(other, name)
        assert (info.name, [holder.token for holder in info.holders]) == (name, [hold.token])
    assert sorted(info.name for info in await world.locks(other)) == sorted(ODD_NAMES)
    for hold in holds:
        await ana(hold.release)
    assert not await world.locks(other)


@pytest.mark.parametrize("name", ODD_NAMES[:8])
async def test_odd_names_are_prefixes_too(world: World, name: str) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.lock("innocent").acquire())
    assert await world.locks(client, name) == []
    await ana(lambda: client.lock(name).acquire())
    assert [info.name for info in await world.locks(client, name)] == [name]


async def test_odd_texts_beside_a_claim_are_shown_as_written(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for number, text in enumerate(ODD_NAMES):
        lock = client.lock(f"n{number}", owner=text, info={text: text})
        hold = await ana(lambda lock=lock: lock.acquire())
        (holder,) = (await world.inspect(client, f"n{number}")).holders
        assert (holder.owner, dict(holder.info), hold.owner) == (text, {text: text}, text)


LOCK_TIMES = ["timeout", "lease", "max_hold"]


@pytest.mark.parametrize("option", LOCK_TIMES)
async def test_bad_times_of_a_lock_are_refused(world: World, option: str) -> None:
    client = world.client()
    for make, value in product((client.lock, client.rlock, client.rwlock), BAD_TIMES):
        error = await refusal(world, lambda make=make, value=value: make("a", **{option: value}))
        assert isinstance(error, TypeError | ValueError), (make, value)
        assert option in str(error), (make, value)
    assert not await world.locks(client)


@pytest.mark.parametrize(("option", "value"), [("lease", 0), ("lease", 0.49), ("lease", timedelta(0)), ("max_hold", 0)])
async def test_times_that_are_too_short_are_refused(world: World, option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        world.client().lock("a", **{option: value})


async def test_bad_time_outs_of_acquire_are_refused(world: World) -> None:
    client = world.client()
    locks = (client.lock("a"), client.semaphore("b", 2), world.multi(client.lock("a"), client.lock("c")))
    for lock, value in product(locks, BAD_TIMES):
        error = await refusal(world, lambda lock=lock, value=value: lock.acquire(timeout=value))
        assert isinstance(error, TypeError | ValueError), (lock, value)
        assert "timeout" in str(error), (lock, value)
    assert not await world.locks(client)


@pytest.mark.parametrize("value", [None, 0, 1, "no"])
async def test_blocking_is_a_bool(world: World, value: object) -> None:
    client, ana = world.client(), world.actor("ana")
    with pytest.raises(TypeError, match="blocking"):
        await ana(lambda: client.lock("a").acquire(blocking=value))


async def test_blocking_and_a_time_out_exclude_each_other(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for timeout in (5, None):
        with pytest.raises(ValueError, match="blocking"):
            await ana(lambda timeout=timeout: client.lock("a").acquire(blocking=False, timeout=timeout))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("option", ["lease", "retry"])
@pytest.mark.parametrize("value", BAD_TIMES, ids=repr)
def test_bad_times_of_a_client_are_refused(face: str, option: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        FACES[face].connect("memory://", **{option: value})


@pytest.mark.parametrize("what", ["semaphore", "striped"])
@pytest.mark.parametrize("count", [0, -1, -(10**30), 10**30, 1_000_001])
async def test_counts_out_of_range_are_refused(world: World, what: str, count: int) -> None:
    with pytest.raises(ValueError, match="must be from 1 to"):
        getattr(world.client(), what)("a", count)


@pytest.mark.parametrize("what", ["semaphore", "striped"])
@pytest.mark.parametrize("count", [True, False, "3", 3.0, None, [3]])
async def test_counts_of_another_type_are_refused(world: World, what: str, count: object) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        getattr(world.client(), what)("a", count)


def nested(depth: int) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for _ in range(depth):
        info = {"a": info}
    return info


def circular() -> dict[str, Any]:
    info: dict[str, Any] = {}
    info["self"] = info
    return info


BAD_INFO: dict[str, Callable[[], object]] = {
    "an object": lambda: {"a": frozenset()},
    "bytes": lambda: {"a": b"x"},
    "a set": lambda: {"a": {1}},
    "too large": lambda: {"a": "x" * 20_000},
    "circular": circular,
    "too deep": lambda: nested(100_000),
    "a list": lambda: [1],
    "a str": lambda: "a",
    "keys that are no text": lambda: {1: 2},
}


@pytest.mark.parametrize("case", BAD_INFO)
async def test_bad_info_of_a_lock_is_refused(world: World, case: str) -> None:
    client, ana = world.client(), world.actor("ana")
    with pytest.raises((TypeError, ValueError), match="info"):
        await ana(lambda: client.lock("a", info=BAD_INFO[case]()).acquire(timeout=0))
    assert not await world.locks(client)
    assert await ana(lambda: client.lock("a").acquire(timeout=0))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("case", BAD_INFO)
def test_bad_info_of_a_client_is_refused(face: str, case: str) -> None:
    with pytest.raises((TypeError, ValueError), match="info"):
        FACES[face].connect("memory://", info=BAD_INFO[case]())


async def test_infos_that_are_too_large_together_are_refused(world: World) -> None:
    client, ana = world.client(info={"a": "x" * 10_000}), world.actor("ana")
    with pytest.raises(ValueError, match="info"):
        await ana(lambda: client.lock("a", info={"b": "x" * 10_000}).acquire(timeout=0))
    assert not await world.locks(client)


@pytest.mark.parametrize(("owner", "error"), [("", ValueError), ("  ", ValueError), (5, TypeError), (b"a", TypeError)])
async def test_bad_owners_are_refused(world: World, owner: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="owner"):
        world.client().rlock("a", owner=owner)
    with pytest.raises(error, match="owner"):
        world.connect(owner=owner)


async def test_an_owner_that_is_too_large_is_refused(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    with pytest.raises(ValueError, match="too large"):
        await ana(lambda: client.rlock("a", owner="x" * 20_000).acquire(timeout=0))
    assert not await world.locks(client)


async def test_unknown_options_are_refused(world: World) -> None:
    with pytest.raises(TypeError):
        world.client().lock("a", tiemout=5)
    with pytest.raises(TypeError, match="tiemout"):
        world.connect(tiemout=5)


BAD_URLS: dict[str, tuple[object, type[Exception]]] = {
    "an unknown scheme": ("gopher://host", ValueError),
    "no scheme": ("localhost:6379", ValueError),
    "a path": ("/var/lib/locks.db", ValueError),
    "empty scheme": ("://host", ValueError),
    "a broken port": ("redis://host:port", ValueError),
    "port 0": ("memory://name:0", ValueError),
    "a port too high": ("memory://name:99999", ValueError),
    "a port for memory": ("memory://name:6379", ValueError),
    "a newline": ("memory://a\nb", ValueError),
    "NUL": ("sqlite:///a\x00.db", ValueError),
    "sqlite without a path": ("sqlite://", ValueError),
    "sqlite with a host": ("sqlite://host/a.db", ValueError),
    "bytes": (b"memory://", TypeError),
    "a number": (5, TypeError),
    "redis without a host": ("redis://", ValueError),
    "redis with several": ("redis://h1,h2", ValueError),
    "redis, a database that is none": ("redis://h1/x", ValueError),
    "redis, its files in clear": ("redis://h1?ca=/etc/ca.pem", ValueError),
    "redis, the login in the query": ("redis://h1?password=s3cr3t", ValueError),
    "sentinels of no service": ("redis+sentinel://h1", ValueError),
    "a cluster with a database": ("redis+cluster://h1/0", ValueError),
    "a socket without a path": ("unix://", ValueError),
    "zookeeper without a host": ("zookeeper://", ValueError),
    "zookeeper, out of its chroot": ("zookeeper://h1,h2/app/../other", ValueError),
    "zookeeper with half a login": ("zookeeper://ana@h1", ValueError),
    "zookeeper, its files in clear": ("zookeeper://h1?ca=/etc/ca.pem", ValueError),
    "etcd, later": ("etcd://localhost/db", dibs.Unsupported),
    "a quorum of nobody": ([], ValueError),
    "a quorum with somebody twice": (["redis://a", "redis://b", "redis://a"], ValueError),
    "a quorum with files": (["redis://a", "sqlite:///a.db", "redis://b"], dibs.Unsupported),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("case", BAD_URLS)
def test_bad_urls_are_refused(face: str, case: str) -> None:
    url, error = BAD_URLS[case]
    with pytest.raises(error):
        FACES[face].connect(url)
