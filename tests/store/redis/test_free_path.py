"""`take_now` and `leave_now`: one write, one poll, one read. What they cannot answer is left to `join` and `leave`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.redis.connection import RedisConnection
from dibs.backends.redis.free_path import FreePath
from dibs.backends.redis.scripts import Command
from dibs.core.queue import NOWHERE, QUEUE, UNFAIR, YOURS
from dibs.core.rule import Claim, Prepared, Standing
from dibs.errors import Mismatch, StoreError, StoreUnavailable
from dibs.testing.contract.seats import Seat
from lab.servers.supervisor import Server
from store.redis.hashes import Raw
from store.redis.strikes import Soft, Strike, lines_of


def prepared(seat: Seat, like: Claim | None = None, **options: Any) -> Claim:
    """A claim as the core makes it; `like`: one of the same lock object."""
    claim = seat.claim(name="dibs:a", **options)
    claim.prepared = Prepared() if like is None else like.prepared
    return claim


def warm(seat: Seat) -> None:
    """There is a subscription, and a connection that nobody uses."""
    claim, _ = seat.joined(name="dibs:a")
    seat.leave(claim)


def taken(seat: Seat, claim: Claim) -> Standing:
    standing = seat.queue.take_now(claim, QUEUE, seat.soon)
    assert isinstance(standing, Standing)
    return standing


def idle(seat: Seat) -> list[RedisConnection]:
    queue: Any = seat.queue
    return [connection for pool in queue._executor._transport.pools.made.values() for connection in pool.idle]


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.resume()


def test_a_pair(seats: Callable[[], Seat], raw: Raw) -> None:
    """It means what `join` and `leave` mean, for those who come by these, too."""
    ana, bob = seats(), seats()
    warm(ana)
    warm(bob)
    claim = prepared(ana)
    standing = taken(ana, claim)
    assert (standing.holds, standing.left, standing.revoked) == (True, claim.lease, False)
    assert claim.asked
    assert claim.ticket == standing.ticket == raw.queue().head().top
    again = ana.join(claim)
    assert again is not None
    assert (again.ticket, again.holds) == (standing.ticket, True)
    waiter = prepared(bob)
    waiting = taken(bob, waiter)
    assert not waiting.holds
    assert waiting.ticket > standing.ticket
    again = bob.join(waiter)
    assert again is not None
    assert (again.ticket, again.holds) == (waiting.ticket, False)
    assert len(raw.queue().check()) == 2
    tries = bob.queue.take_now(prepared(bob, waiter), NOWHERE, bob.soon)
    assert isinstance(tries, Standing)
    assert (tries.ticket, tries.holds) == (0, False)
    assert ana.queue.leave_now(claim, ana.soon) is True
    assert bob.hears(waiter) is YOURS
    assert ana.queue.leave_now(claim, ana.soon) is False
    raw.queue().check()
    assert bob.queue.leave_now(waiter, bob.soon) is True
    assert taken(ana, prepared(ana, claim)).ticket > waiting.ticket


def test_nothing_is_sent_where_something_is_missing(seat: Seat, raw: Raw) -> None:
    """A connection, a subscription, what is packed already, a place to wait outside."""
    claim = prepared(seat)
    assert seat.queue.take_now(claim, QUEUE, seat.soon) is None
    assert seat.queue.leave_now(claim, seat.soon) is None
    warm(seat)
    assert seat.queue.take_now(claim, UNFAIR, seat.soon) is None
    claim.prepared = None
    assert seat.queue.take_now(claim, QUEUE, seat.soon) is None
    assert seat.queue.leave_now(claim, seat.soon) is None
    assert not claim.asked
    assert seat.holders("dibs:a") == []


def test_a_refusal_is_left_to_the_general_path(seat: Seat, raw: Raw) -> None:
    """Nothing was changed by it. The connection goes on."""
    warm(seat)
    claim = prepared(seat)
    raw.client.script_flush()
    assert seat.queue.take_now(claim, QUEUE, seat.soon) is None
    assert len(idle(seat)) == 1
    standing = seat.join(claim)
    assert standing is not None
    assert standing.holds
    raw.client.script_flush()
    assert seat.queue.leave_now(claim, seat.soon) is None
    assert seat.leave(claim)


def test_a_damaged_head_is_left_to_the_general_path(seat: Seat, raw: Raw) -> None:
    warm(seat)
    raw.queue().write("h", b"2" + b"x" * 42)
    claim = prepared(seat)
    assert seat.queue.take_now(claim, QUEUE, seat.soon) is None
    with pytest.raises(StoreError, match="damaged"):
        seat.join(claim)


def test_an_answer_that_does_not_come(server: Server) -> None:
    """The outcome is unknown. The connection is closed: its next answer would be taken for another's."""
    seat = Seat(server.url())
    try:
        warm(seat)
        claim = prepared(seat)
        (connection,) = idle(seat)
        with stopped(server), pytest.raises(StoreUnavailable, match="in time"):
            seat.queue.take_now(claim, QUEUE, seat.now())
        assert connection.sock.fileno() == -1
        assert idle(seat) == []
        assert claim.asked
        standing = seat.join(claim)
        assert standing is not None
        assert standing.holds
        (connection,) = idle(seat)
        with stopped(server), pytest.raises(StoreUnavailable, match="in time"):
            seat.queue.leave_now(claim, seat.now())
        assert connection.sock.fileno() == -1
        seat.leave(claim)
        assert seat.holders("dibs:a") == []
    finally:
        seat.close()


def test_an_interrupt_at_any_line_closes_the_connection(seat: Seat) -> None:
    """Or nothing was sent, or all was read: what it is asked next gets its own answer."""
    struck = 0
    for function in (FreePath.take_now, FreePath.leave_now):
        for line in lines_of(function):
            warm(seat)
            claim = prepared(seat)
            (connection,) = idle(seat)
            with Strike(function, line) as strike, suppress(Soft):
                seat.queue.take_now(claim, QUEUE, seat.soon)
                seat.queue.leave_now(claim, seat.soon)
            if connection.sock.fileno() != -1:
                assert connection.exchange([Command("ECHO", "own")], seat.soon) == [b"own"], line
                if connection not in idle(seat):
                    connection.close()
            seat.leave(claim, answered=False)
            struck += strike.struck
    assert struck > 30


@asynccontextmanager
async def aio_line(url: str) -> AsyncIterator[Any]:
    async with dibs.aio.connect(url) as client:
        await (await client.lock("a").acquire()).release()
        yield client._core.opened


def test_a_pair_in_asyncio(url: str, raw: Raw) -> None:
    """What is sent is answered by a future; one that is cancelled leaves its answer behind."""

    async def play() -> None:
        async with aio_line(url) as opened:
            queue, now = opened._queue, opened._runtime.now
            claims = [
                Claim(
                    os.urandom(16), f"dibs:{n}", "mutex", 1, 1, 9.0, 5.0, now() + 5, b"c" * 16, "{}",
                    prepared=Prepared(),
                )
                for n in range(9)
            ]  # fmt: skip
            futures = [queue.take_now(claim, QUEUE, now() + 9) for claim in claims]
            futures[3].cancel()
            for claim, future in zip(claims, futures, strict=True):
                if not future.cancelled():
                    assert (await future).ticket == claim.ticket
            other = Claim(os.urandom(16), "dibs:1", "semaphore", 2, 1, 9.0, 5.0, now() + 5, b"c" * 16, "{}")
            other.prepared = Prepared()
            with pytest.raises(Mismatch):
                await queue.take_now(other, QUEUE, now() + 9)
            raw.client.script_flush()
            assert await queue.leave_now(claims[0], now() + 9) is None
            assert await queue.leave(claims[0], True, now() + 9)
            found = await asyncio.gather(*(queue.leave_now(claim, now() + 9) for claim in claims))
            assert found == [False] + [True] * 8

    asyncio.run(play())


def test_a_full_server_refuses_a_new_claim_on_the_general_path_too(server: Server) -> None:
    """The head says that an unfair waiter listens, and the floor need not be raised: the claim is the first write."""
    key, far = "dibs:a|line", f"{2**53 - 10**6:016d}"
    with dibs.connect(f"redis://127.0.0.1:{server.port}") as client:
        with client.lock("a"):
            pass
        head = server.ask("HGET", key, "h")
        assert len(head) == 43
        server.ask("HSET", key, "h", f"{head[:17]}{far}{head[33:]}s{far}{'0' * 33}")
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="OOM"):
            client.lock("a").acquire(timeout=0)
        server.ask("CONFIG", "SET", "maxmemory", "0")
        with client.lock("a", timeout=60) as hold:
            hold.check()
