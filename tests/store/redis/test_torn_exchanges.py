"""An exception that a signal's handler raises amid an exchange: the connection is given up, so that no answer is ever
taken for another's; whoever had asked asks again, and whoever waits looks.

The functions that send and read are struck at each of their lines (see strikes.py). The event loop goes on after a
handler raised in it: asyncio calls its exception handler.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
import redis

import dibs
import dibs.aio
from dibs.backends.common.aio_connections import AioPool
from dibs.backends.redis.aio_connection import RedisAioConnection as Stream
from dibs.backends.redis.subscriber import RedisSubscriber
from dibs.testing.contract.harness import World
from lab.faults import BlackHole
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from store.faults.kit import both_apis, eventually
from store.redis.strikes import Soft, Strike, line_of, lines_of, parts_of

TIME_OUT = 50.0
PUBSUB = "pubsub"
EVERY = pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
"""A sample of the lines in every run, all of them in the soak."""


@pytest.fixture
def other(server: Server) -> Iterator[dibs.Client]:
    """Whose answers nobody disturbs."""
    with dibs.connect(server.url()) as client:
        yield client


@asynccontextmanager
async def discovery(url: str) -> AsyncIterator[dibs.aio.Client]:
    """A client whose connections stand; what the loop is told of is not raised anywhere else."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: None)
    async with dibs.aio.connect(url, retry=TIME_OUT) as client:
        await (await client.lock(fresh_name()).acquire()).release()
        yield client


async def unless_struck(question: Awaitable[Any]) -> Any:
    """Who asked is who was interrupted: it has no answer."""
    with suppress(Soft):
        return await question


def stream_of(client: Any) -> Stream:
    """Its only one."""
    ((stream,),) = [pool.open for pool in client._core.opened._queue._executor._transport.pools.made.values()]
    assert isinstance(stream, Stream)
    return stream


async def let_go(stream: Stream) -> None:
    """What was given up is closed, by whoever comes by next."""
    await eventually(lambda: not stream.lost or stream.connection.sock.fileno() < 0)


class Questions:
    """Three at once, each of which has one right answer: a lock that is held, one that is free, and who holds it."""

    def __init__(self, client: Any, other: dibs.Client) -> None:
        self._client, self._other = client, other
        self._held, self._free = fresh_name(), fresh_name()
        self._hold = other.lock(self._held).acquire()
        questions = (
            client.lock(self._held).acquire(timeout=TIME_OUT),
            client.lock(self._free).acquire(timeout=TIME_OUT),
            client.inspect(self._held),
        )
        self._waiting, self.taking, self._looking = (
            asyncio.ensure_future(unless_struck(question)) for question in questions
        )

    async def check(self) -> None:
        """However it went, no answer is another's: nor that of who asks next."""
        assert self._hold is not None
        next_one = await self._client.lock(fresh_name()).acquire(timeout=TIME_OUT)
        taken, seen = await self.taking, await self._looking
        assert seen is None or [holder.token for holder in seen.holders] == [self._hold.token]
        if taken is not None:
            assert self._holders(self._free) == [taken.token]
            await taken.release()
        assert not self._waiting.done() or self._waiting.result() is None, "it is held by another one"
        self._hold.release()
        won = await self._waiting
        if won is not None:
            assert self._holders(self._held) == [won.token]
            await won.release()
        await next_one.release()

    def _holders(self, name: str) -> list[int]:
        return [holder.token for holder in self._other.inspect(name).holders]


@EVERY
@pytest.mark.parametrize(
    "function",
    [Stream.ask, Stream._enqueue, Stream._flush, Stream._send, Stream._readable, Stream._hand_out],
    ids=lambda one: one.__name__,
)
def test_struck_at_any_line(server: Server, other: dibs.Client, function: Callable[..., Any], every: int) -> None:
    async def play(line: int) -> bool:
        async with discovery(server.url()) as client, asyncio.timeout(TIME_OUT):
            stream = stream_of(client)
            with Strike(function, line) as strike:
                questions = Questions(client, other)
                await eventually(lambda: strike.struck or questions.taking.done())
            await questions.check()
            await let_go(stream)
            return strike.struck

    assert sum(asyncio.run(play(line)) for line in lines_of(function)[::every]) > 0, "it was struck nowhere"


@EVERY
def test_struck_while_it_closes(server: Server, other: dibs.Client, every: int) -> None:
    """The connection broke, and an interrupt comes on top: nobody who had asked waits for ever."""

    async def play(function: Callable[..., Any], line: int) -> bool:
        with Proxy((ports.HOST, server.port)) as proxy:
            async with discovery(f"redis://{ports.HOST}:{proxy.port}") as client, asyncio.timeout(TIME_OUT):
                before, stream = proxy.total(UP, "passed")[0], stream_of(client)
                proxy.add(BlackHole(), DOWN)
                questions = Questions(client, other)
                await eventually(lambda: proxy.total(UP, "passed")[0] > before)
                with Strike(function, line) as strike:
                    await asyncio.to_thread(proxy.reset)
                    await asyncio.to_thread(proxy.heal)
                    await eventually(lambda: strike.struck or questions.taking.done())
                await questions.check()
                await let_go(stream)
                return strike.struck

    places = [(part, line) for part in parts_of(Stream, "close") for line in lines_of(part)]
    assert sum(asyncio.run(play(*place)) for place in places[::every]) > 1, "it was struck nowhere"


def test_struck_while_it_counts_the_time(server: Server) -> None:
    """Of a server that says nothing: who asked hears in time that it is over."""

    async def play(line: int) -> bool:
        with Proxy((ports.HOST, server.port)) as proxy:
            async with discovery(f"redis://{ports.HOST}:{proxy.port}") as client, asyncio.timeout(TIME_OUT):
                proxy.add(BlackHole(), DOWN)
                with Strike(Stream._tick, line) as strike, pytest.raises((dibs.StoreUnavailable, Soft)):
                    await client.lock(fresh_name()).acquire(timeout=0)
                await asyncio.to_thread(proxy.heal)
                return strike.struck

    assert sum(asyncio.run(play(line)) for line in lines_of(Stream._tick)[::6]) > 0, "it was struck nowhere"


@pytest.mark.parametrize("words", ["self.loop.add_writer", "self._rest = data[sent:]", "self.loop.remove_writer"])
def test_struck_amid_more_than_the_socket_takes(server: Server, other: dibs.Client, words: str) -> None:
    """What could not be sent at once is neither forgotten nor sent twice: each later answer would be another's."""
    names = [fresh_name() for _ in range(7)]
    tokens = [other.lock(name).acquire().token for name in names]

    async def play() -> None:
        async with discovery(server.url()) as client, asyncio.timeout(TIME_OUT):
            stream_of(client).connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            asked: list[asyncio.Future[Any]] = []

            async def ask() -> None:
                """By turns of each, and each has another answer."""
                asked.append(asyncio.ensure_future(unless_struck(client.inspect(names[len(asked) % 7]))))
                for _ in range(3):  # so that it goes out by itself
                    await asyncio.sleep(0)

            server.stop()
            try:
                full = line_of(Stream._send, "self.loop.add_writer")
                with Strike(Stream._send, line_of(Stream._send, words), behind=full) as strike:
                    while not strike.is_behind:
                        await ask()
                    server.resume()
                    await eventually(lambda: strike.struck)
            finally:
                server.resume()
            for _ in range(10):
                await ask()
            for number, info in enumerate(await asyncio.gather(*asked)):
                assert info is None or [one.token for one in info.holders] == [tokens[number % 7]]

    asyncio.run(play())


def subscriptions(server: Server) -> set[str]:
    """The connections of those who listen there, by their ids."""
    with closing(redis.Redis(port=server.port)) as raw:
        return {one["id"] for one in raw.client_list(_type=PUBSUB)}


@pytest.mark.parametrize("words", ["answers.feed(received)", "self._parse(reply, found)"])
@both_apis
async def test_struck_while_it_listens(world: World, server: Server, words: str) -> None:
    """What was said is lost with the connection: there is another one soon, and whom it was said to looks."""
    line = line_of(RedisSubscriber._read, words)
    client, other = world.client(server.url()), world.client(server.url())
    names = [fresh_name() for _ in range(2)]
    eve, ana, bob = world.actors("eve", "ana", "bob")
    holds = [await eve(lambda name=name: other.lock(name).acquire()) for name in names]
    armed = Strike(RedisSubscriber._read, line)

    def leading() -> Any:
        """The first who waits reads for all; in asyncio the loop does, in whose thread this is too."""
        armed.__enter__()
        try:
            return client.lock(names[0]).acquire(timeout=TIME_OUT)
        finally:
            if world.api == "blocking":
                armed.__exit__()

    before = subscriptions(server)
    first = ana.start(leading)
    try:
        await world.in_queue(other, names[0], 1)
        second = bob.start(lambda: client.lock(names[1]).acquire(timeout=TIME_OUT))
        await world.in_queue(other, names[1], 1)
        mine = subscriptions(server) - before
        await eve(holds[1].release)
        won = await second
    finally:
        armed.__exit__()
    assert armed.struck
    assert (await world.inspect(other, names[1])).holders[0].token == won.token
    await eventually(lambda: mine and not mine & subscriptions(server))
    await bob(won.release)
    with suppress(Soft):
        await eve(holds[0].release)
        await ana((await first).release)


def test_an_interrupt_between_two_loops_closes_no_client(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connections of the earlier loop are closed just then."""
    client, name, struck = dibs.aio.connect(server.url()), fresh_name(), list[AioPool]()
    close = AioPool.close

    def interrupted(pool: AioPool) -> None:
        if not struck:
            struck.append(pool)
            raise Soft
        close(pool)

    async def pair() -> None:
        async with client.lock(name, timeout=TIME_OUT):
            pass

    asyncio.run(pair())
    monkeypatch.setattr(AioPool, "close", interrupted)
    with suppress(Soft):
        asyncio.run(pair())
    assert struck
    asyncio.run(pair())
    asyncio.run(client.close())
