"""An exception that a signal's handler raises amid an exchange: the connection is given up, so that no answer is ever
taken for another's; whoever had asked asks again, and whoever waits looks.

The functions that send and read are struck at each of their lines (see strikes.py). The event loop goes on after a
handler raised in it: asyncio calls its exception handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.common.aio_connections import AioPool
from dibs.backends.redis.aio_connection import RedisAioConnection as Stream
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from store.faults.kit import eventually
from store.redis.strikes import Soft, Strike, lines_of

TIME_OUT = 50.0


@pytest.fixture
def other(server: Server) -> Iterator[dibs.Client]:
    """A client that is not struck."""
    with dibs.connect(server.url()) as client:
        yield client


@asynccontextmanager
async def discovery(url: str) -> AsyncIterator[dibs.aio.Client]:
    """A connected client; errors in callbacks of the loop are ignored."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: None)
    async with dibs.aio.connect(url, retry=TIME_OUT) as client:
        await (await client.lock(fresh_name()).acquire()).release()
        yield client


async def unless_struck(question: Awaitable[Any]) -> Any:
    """None for the caller that was interrupted."""
    with suppress(Soft):
        return await question


def stream_of(client: Any) -> Stream:
    ((stream,),) = [pool.open for pool in client._core.opened._queue._executor._transport.pools.made.values()]
    assert isinstance(stream, Stream)
    return stream


async def let_go(stream: Stream) -> None:
    await eventually(lambda: not stream.lost or stream.connection.sock.fileno() < 0)


class Questions:
    """Three concurrent requests with known replies: a held lock, a free one, and an inspection."""

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
        """No reply is another's, nor that of the next request."""
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


@pytest.mark.gate
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
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


def test_an_interrupt_between_two_loops_closes_no_client(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
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
