"""How many connections a client has, whoever waits; and that a connection that died, a cancelled task, a second loop
and a fork each cost no more than they must."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

import dibs
import dibs.aio
from dibs.backends.common import connections as pools
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.redis.address import Address
from dibs.backends.redis.aio_connection import AioServers
from dibs.backends.redis.connection import RedisConnection
from dibs.backends.redis.scripts import Command
from dibs.backends.redis.servers import IDLE, Dialler, Servers
from dibs.errors import StoreUnavailable
from dibs.runtime.aio import AioRuntime
from dibs.runtime.threads import boottime, step
from dibs.testing.contract.harness import World, eventually
from dibs.url import parse
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.witness import apis_of
from process.children import until

both_apis = apis_of("redis", "redis://127.0.0.1:1")
SOON = 50.0
WATCHDOGS = 2
"""Connections of a client's watchdog: of its own, to keep, and to give back."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    with Server(Redis("enable-debug-command yes")) as made:
        yield made


@pytest.fixture
def raw(server: Server) -> Iterator[Any]:
    """Alone there, when the test begins."""
    with closing(redis.Redis(port=server.port, protocol=2)) as client:
        until(lambda: connections(client) == {}, what="those of earlier tests are gone")
        yield client


def connections(raw: Any) -> dict[str, int]:
    """Of others than us, by what they are for."""
    own = str(raw.client_id())
    kinds = Counter("messages" if one["sub"] != "0" else "commands" for one in raw.client_list() if one["id"] != own)
    return dict(kinds)


def address(server: Server) -> Address:
    return Address.of(parse(server.url()))


def endpoint(server: Server) -> tuple[str, int]:
    return ("127.0.0.1", server.port)


@both_apis
async def test_one_subscription_however_many_wait(world: World, server: Server, raw: Any) -> None:
    """And those who wait hold no connection."""
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


def test_idle_connections_are_few(server: Server, raw: Any) -> None:
    """However many threads asked at the same time."""
    with dibs.connect(server.url()) as client:
        barrier = threading.Barrier(25)

        def use(number: int) -> None:
            barrier.wait(SOON)
            for _ in range(3):
                with client.lock(f"n{number}", timeout=SOON):
                    """In its turn."""

        threads = [threading.Thread(target=use, args=(number,)) for number in range(25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        until(lambda: connections(raw)["commands"] <= IDLE + WATCHDOGS, what="few are kept")
    until(lambda: connections(raw) == {}, what="none is left")


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
    """It is noticed before it is used; one that was used a moment ago costs an answer, which is then unknown."""
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
    """The answer to an unfinished question is nobody's."""
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


def test_a_server_that_is_silent_delays_nobody_elses_answer(server: Server, raw: Any) -> None:
    """All are asked before any is listened to."""
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


class Discovery:
    """Connections to one server, in the loop that runs."""

    def __init__(self, server: Server) -> None:
        self.runtime = AioRuntime()
        self._endpoint = endpoint(server)
        self.streams = AioServers(dialler(server))

    async def echo(self, word: str) -> str:
        (reply,) = await self.streams.exchange(self._endpoint, [Command("ECHO", word)], boottime() + SOON)
        assert isinstance(reply, bytes)
        return reply.decode()

    async def ask(self, *words: str | int) -> Any:
        return (await self.streams.exchange(self._endpoint, [Command(*words)], boottime() + SOON))[0]


def test_cancelled_tasks_leave_the_order_of_answers_alone(server: Server, raw: Any) -> None:
    """Each of those who stay gets its own answer, whoever goes before it is answered."""

    async def main() -> None:
        discovery = Discovery(server)
        dice = random.Random(7)
        for round in range(8):
            sleeping = asyncio.create_task(discovery.ask("DEBUG", "SLEEP", "0.005"))
            tasks = {
                f"{round}.{number}": asyncio.create_task(discovery.echo(f"{round}.{number}")) for number in range(50)
            }
            await asyncio.sleep(0)
            gone = dice.sample(sorted(tasks), 25)
            if dice.random() < 0.5:
                await asyncio.sleep(0.001)
            for word in gone:
                tasks[word].cancel()
            for word, task in tasks.items():
                if word not in gone:
                    assert await task == word
            await sleeping
        assert connections(raw) == {"commands": 1}
        discovery.streams.close()

    asyncio.run(main())


def test_a_connection_that_is_lost_answers_nobody_and_is_made_anew(server: Server, raw: Any) -> None:
    async def main() -> None:
        discovery = Discovery(server)
        await discovery.echo("first")
        blocked = [asyncio.create_task(discovery.ask("BLPOP", "nothing", 0)) for _ in range(5)]
        await eventually(lambda: any(one["cmd"] == "blpop" for one in raw.client_list()))
        raw.client_kill_filter(_type="normal", skipme=True)
        for task in blocked:
            with pytest.raises(StoreUnavailable):
                await task
        assert await discovery.echo("second") == "second"
        assert connections(raw) == {"commands": 1}
        discovery.streams.close()

    asyncio.run(main())


def test_a_silent_server_is_given_up(server: Server, raw: Any) -> None:
    """The outcome is unknown to the caller; the next question goes out on another connection."""

    async def main() -> None:
        discovery = Discovery(server)
        await discovery.echo("first")
        with pytest.raises(StoreUnavailable, match="in time"):
            await discovery.ask("BLPOP", "nothing", 0)
        assert await discovery.echo("second") == "second"
        discovery.streams.close()

    asyncio.run(main())


def test_more_than_the_socket_takes_at_once(server: Server, raw: Any) -> None:
    async def main() -> None:
        discovery = Discovery(server)
        words = [f"{number}".rjust(20_000, "x") for number in range(200)]
        assert await asyncio.gather(*map(discovery.echo, words)) == words
        discovery.streams.close()

    asyncio.run(main())


def test_a_forked_child_has_connections_of_its_own(server: Server, raw: Any) -> None:
    """The parent's go on, with the answers that are theirs; somebody waits all the while."""
    with dibs.connect(server.url()) as client:
        hold = client.lock("a").acquire(timeout=SOON)
        assert hold is not None
        waiter: list[Any] = []
        thread = threading.Thread(target=lambda: waiter.append(client.lock("a").acquire(timeout=SOON)))
        thread.start()
        until(lambda: client.inspect("a").waiters, what="the waiter")
        before = {one["id"] for one in raw.client_list()}
        (heard, says), (awaits, goes_on) = os.pipe(), os.pipe()
        if (pid := os.fork()) == 0:
            status = 1
            try:
                with client.lock("b", timeout=SOON) as own:
                    os.write(says, b"held")
                    os.read(awaits, 1)
                    own.check()
                status = 0
            finally:
                os._exit(status)
        assert os.read(heard, 10) == b"held"
        assert {one["id"] for one in raw.client_list()} > before, "the child speaks through its parent's"
        os.write(goes_on, b"!")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for end in (heard, says, awaits, goes_on):
            os.close(end)
        for number in range(10):
            with client.lock(f"n{number}", timeout=SOON) as mine:
                mine.check()
        assert before <= {one["id"] for one in raw.client_list()}, "the child closed what is its parent's"
        hold.check()
        hold.release()
        thread.join(SOON)
        assert waiter
        waiter[0].release()


@pytest.mark.soak
def test_ten_thousand_wait(server: Server, raw: Any) -> None:
    """In one process: all stand, each is told, nobody needs a connection."""
    crowd = 10_000

    async def main() -> None:
        async with dibs.aio.connect(server.url(), lease=60) as client:
            hold = await client.lock("a").acquire()
            assert hold is not None
            served = 0

            async def wait() -> None:
                nonlocal served
                async with client.lock("a", timeout=50):
                    served += 1

            tasks = [asyncio.create_task(wait()) for _ in range(crowd)]
            await eventually(lambda: raw.hlen("dibs:a|line") > crowd)
            seen = connections(raw)
            assert seen["messages"] == 1
            assert seen.get("commands", 0) <= 1 + WATCHDOGS  # none was seen once, on a busy machine
            await hold.release()
            await asyncio.gather(*tasks)
            assert served == crowd

    asyncio.run(main())
