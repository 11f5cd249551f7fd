"""The number of connections of a client, also while callers wait. A connection that died or is silent costs no more
than it must."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from dibs.backends.common import connections as pools
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.redis.address import Address
from dibs.backends.redis.connection import RedisConnection
from dibs.backends.redis.scripts import Command
from dibs.backends.redis.servers import IDLE, Dialler, Servers
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import boottime, step
from dibs.testing.contract.harness import World, eventually
from dibs.url import parse
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from process.children import until
from store.faults.kit import both_apis

SOON = 50.0
WATCHDOGS = 2
"""Connections of a client's watchdog: to renew, and to release."""


@pytest.fixture
def raw(server: Server) -> Iterator[Any]:
    with closing(redis.Redis(port=server.port, protocol=2)) as client:
        until(lambda: connections(client) == {}, what="those of earlier tests are gone")
        yield client


def connections(raw: Any) -> dict[str, int]:
    """The connections of others, by purpose."""
    own = str(raw.client_id())
    kinds = Counter("messages" if one["sub"] != "0" else "commands" for one in raw.client_list() if one["id"] != own)
    return dict(kinds)


def address(server: Server) -> Address:
    return Address.of(parse(server.url()))


def endpoint(server: Server) -> tuple[str, int]:
    return ("127.0.0.1", server.port)


@both_apis
async def test_one_subscription_however_many_wait(world: World, server: Server, raw: Any) -> None:
    """And waiters hold no connection."""
    crowd = 30
    client = world.client(server.url())
    hold = await world(lambda: client.lock("a").acquire())
    waiting = [world.actor(f"waiter {number}") for number in range(crowd)]
    pending = [
        actor.start(lambda number=number: client.lock("a", fair=None if number % 2 else False).acquire(timeout=50))
        for number, actor in enumerate(waiting)
    ]
    await world.in_queue(client, "a", crowd // 2)
    await eventually(lambda: connections(raw).get("commands", 0) <= IDLE + WATCHDOGS)
    assert connections(raw)["messages"] == 1
    await world(hold.release)
    await asyncio.gather(*(_given_back(actor, one) for actor, one in zip(waiting, pending, strict=True)))
    await world.free(client, "a")
    assert connections(raw)["messages"] == 1
    if world.api == "aio":
        assert connections(raw)["commands"] <= 1 + WATCHDOGS, "all tasks share one"


async def _given_back(actor: Any, pending: Any) -> None:
    hold = await pending
    await actor(hold.release)


def dialler(server: Server) -> Dialler:
    trip = RoundTrip()
    return Dialler(address(server), boottime, lambda endpoint: trip)


def pool_of(server: Server) -> Servers:
    return Servers(dialler(server))


def exchange(pool: Servers, server: Server, *words: str) -> Any:
    return step(pool.exchange(endpoint(server), [Command(*words)], boottime() + SOON))[0]


@pytest.mark.parametrize("trusted", [0.0, 1e9], ids=["looked at", "trusted"])
def test_an_idle_connection_that_died(
    server: Server, raw: Any, monkeypatch: pytest.MonkeyPatch, trusted: float
) -> None:
    """It is noticed before use. After a recent use it costs a reply, whose outcome is then unknown."""
    monkeypatch.setattr(pools, "TRUSTED", trusted)
    with closing(pool_of(server)) as pool:
        assert exchange(pool, server, "ECHO", "one") == b"one"
        assert raw.client_kill_filter(_type="normal", skipme=True) == 1
        if trusted:
            with pytest.raises(StoreUnavailable):
                exchange(pool, server, "ECHO", "two")
        assert exchange(pool, server, "ECHO", "three") == b"three"
        assert connections(raw) == {"commands": 1}


def test_an_exchange_that_ends_early_closes_its_connection(
    server: Server, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(pool_of(server)) as pool:
        exchange(pool, server, "PING")
        with monkeypatch.context() as patched:

            def interrupted(self: RedisConnection, patience: float) -> bytes:
                raise KeyboardInterrupt

            patched.setattr(RedisConnection, "_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                step(
                    pool.exchange(endpoint(server), [Command("ECHO", "one"), Command("ECHO", "two")], boottime() + SOON)
                )
        assert exchange(pool, server, "ECHO", "three") == b"three"
        until(lambda: connections(raw) == {"commands": 1}, what="the other one is closed")


@pytest.mark.gate
def test_a_server_that_is_silent_delays_nobody_elses_answer(server: Server, raw: Any) -> None:
    """All requests are sent before any reply is read."""
    with Server(Redis()) as other, closing(pool_of(server)) as pool:
        there = endpoint(other)
        for one in (endpoint(server), there):
            step(pool.exchange(one, [Command("PING")], boottime() + SOON))
        other.stop()
        parts = {there: [Command("PING")], endpoint(server): [Command("ECHO", "well")]}
        found = step(pool.exchange_all(parts, boottime() + 1.0))
        other.resume()
        assert found[endpoint(server)] == [b"well"]
        assert isinstance(found[there], StoreUnavailable)


def test_the_clock_of_the_server_is_not_thought_to_be_ahead_of_what_it_is(server: Server, raw: Any) -> None:
    """`by` is rounded early: an offset that is too large would let a late join in."""
    link = dialler(server).to(endpoint(server))(boottime() + SOON, pools.not_watched)
    try:
        for _ in range(20):
            link.exchange([Command("EVAL", "local t = redis.call('TIME') return {t[1] * 1000000 + t[2]}", 0)],
                          boottime() + SOON)  # fmt: skip
            local, seconds = boottime(), raw.time()
            assert local + link.offset <= seconds[0] + seconds[1] / 1e6
            assert local + link.offset > seconds[0] + seconds[1] / 1e6 - SOON
    finally:
        link.close()
