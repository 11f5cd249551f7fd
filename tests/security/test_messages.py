"""Forged messages in Redis (case 23): whoever may publish grants nobody anything, and causes few looks, if any.

Who knows the id of a claim can read the queue, and who can do that could as well write it: nothing is gained by it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from dibs.testing.contract.harness import World, eventually
from lab.servers import shared_redis
from lab.witness import apis_of
from store.redis.hashes import Raw

both_apis = apis_of("redis", "redis://127.0.0.1:1")
pytestmark = pytest.mark.gate
FLOOD = 15_000
"""Messages; ten thousand a second is what an idle machine hears of them."""
AT_ONCE = 100
MOST_LOOKS = 20.0
"""A second, of one who waits in the queue. Undisturbed it is one every few seconds."""
FEW = 20
"""Messages for each look of who wants to hear of changes to a name: it looks again only when it has."""
FORGED: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda client: b"",
    "one letter": lambda client: b"y",
    "a truncated letter": lambda client: client[:15] + b"y",
    "a letter and a half": lambda client: os.urandom(16) + b"y" + os.urandom(8),
    "somebody who does not wait": lambda client: os.urandom(16) + b"y",
    "nobody": lambda client: bytes(16) + b"y",
    "the client itself": lambda client: client + b"\0",
    "words of the protocol": lambda client: b"+OK\r\n*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n",
    "fifty letters": lambda client: os.urandom(17) * 50,
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_redis.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, url.partition("prefix=")[2])


def looks(raw: Raw) -> int:
    """How many scripts the server has run."""
    stats = raw.client.info("commandstats")
    return sum(int(told["calls"]) for name, told in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval"))


def flood(raw: Raw, channel: str | bytes, message: bytes, count: int = FLOOD) -> tuple[float, float]:
    """Publish it so often, for at least half a second; how many a second, and how many looks a second beside."""
    script = "for _ = 1, ARGV[2] do redis.call('PUBLISH', KEYS[1], ARGV[1]) end"
    before, begun, sent, asked = looks(raw), time.monotonic(), 0, 0
    while sent < count or time.monotonic() - begun < 0.5:
        raw.client.eval(script, 1, channel, message, AT_ONCE)
        sent, asked = sent + AT_ONCE, asked + 1
        assert time.monotonic() - begun < 30, "the server is too busy"
    seconds = time.monotonic() - begun
    return sent / seconds, (looks(raw) - before - asked) / seconds


@both_apis
async def test_forged_letters_to_a_client_that_waits(world: World, url: str, raw: Raw) -> None:
    holding, client = world.client(url), world.client(url)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: holding.lock("a").acquire())
    waiting = bob.start(lambda: client.lock("a").acquire())
    await world.in_queue(holding, "a", 1)
    mine = client._core.me.id
    for case, forge in FORGED.items():
        count = FLOOD if case == "somebody who does not wait" else 1000
        rate, looked = await asyncio.to_thread(flood, raw, raw.channel(mine), forge(mine), count)
        print(f"figure: {case}: {rate:.0f} messages a second to a client, {looked:.1f} looks a second")
        assert not waiting.done(), f"a forged message granted: {case}"
        assert looked < MOST_LOOKS, case
    hold.check()
    await ana(hold.release)
    await eventually(waiting.done, within=30)  # it has all of them to read first
    got = await waiting
    assert got.token > hold.token
    await bob(got.release)


@both_apis
async def test_forged_changes_of_a_name(world: World, url: str, raw: Raw) -> None:
    """An unfair waiter looks again after a pause: a forged message grants nothing, and the rate of looks is bounded."""
    holding, client = world.client(url), world.client(url)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: holding.lock("a").acquire())
    waiting = bob.start(lambda: client.lock("a", fair=False).acquire())
    await eventually(lambda: raw.client.pubsub_numsub(raw.queue().key)[0][1] == 1)
    rate, looked = await asyncio.to_thread(flood, raw, raw.queue().key, b"y" * 17)
    print(f"figure: {rate:.0f} messages a second about a name, {looked:.0f} looks a second of one outside")
    assert not waiting.done(), "a forged message granted"
    assert looked < rate / FEW
    hold.check()
    await ana(hold.release)
    await bob((await waiting).release)


@both_apis
async def test_forged_changes_of_a_latch(world: World, url: str, raw: Raw) -> None:
    client = world.client(url)
    ana, bob = world.actors("ana", "bob")
    await ana(lambda: client.latch("a").arm(1))
    waiting = bob.start(lambda: client.latch("a").wait())
    key = f"{raw.prefix}dibs:a|latch"
    await eventually(lambda: raw.client.pubsub_numsub(key)[0][1] == 1)
    rate, looked = await asyncio.to_thread(flood, raw, key, b"open")
    print(f"figure: {rate:.0f} messages a second about a latch, {looked:.0f} scripts a second")
    assert not waiting.done(), "a forged message opened the latch"
    await ana(lambda: client.latch("a").count_down())
    assert await waiting is True
