"""`take_now` and `leave_now`: one write, one poll, one read. `join` and `leave` do what they cannot."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing, suppress
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
from store.redis.kit import PatientSeat
from store.redis.strikes import Soft, Strike, lines_of


def prepared(seat: Seat, like: Claim | None = None, **options: Any) -> Claim:
    """A claim as the core makes it; `like`: another claim of the same lock object."""
    claim = seat.claim(name="dibs:a", **options)
    claim.prepared = Prepared() if like is None else like.prepared
    return claim


def warm(seat: Seat) -> None:
    claim, _ = seat.joined(name="dibs:a")
    seat.leave(claim)


def taken(seat: Seat, claim: Claim) -> Standing:
    standing = seat.queue.take_now(claim, QUEUE, seat.soon)
    assert isinstance(standing, Standing)
    return standing


def holds(standing: Standing | None) -> bool:
    return standing is not None and standing.holds


def idle(seat: Seat) -> list[RedisConnection]:
    queue: Any = seat.queue
    return [connection for pool in queue._executor._transport.pools.made.values() for connection in pool.idle]


def test_a_pair(seats: Callable[[], Seat], raw: Raw) -> None:
    """They mean the same as `join` and `leave`."""
    ana, bob = seats(), seats()
    warm(ana)
    warm(bob)
    claim = prepared(ana)
    standing = taken(ana, claim)
    assert (standing.holds, standing.left, standing.revoked) == (True, claim.lease, False)
    assert claim.asked
    assert claim.ticket == standing.ticket == raw.queue().head().top
    again = ana.join(claim)
    assert (again and again.ticket, holds(again)) == (standing.ticket, True)
    waiter = prepared(bob)
    waiting = taken(bob, waiter)
    assert not waiting.holds
    assert waiting.ticket > standing.ticket
    again = bob.join(waiter)
    assert (again and again.ticket, holds(again)) == (waiting.ticket, False)
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
    warm(seat)
    claim = prepared(seat)
    raw.client.script_flush()
    assert seat.queue.take_now(claim, QUEUE, seat.soon) is None
    assert len(idle(seat)) == 1
    assert holds(seat.join(claim))
    raw.client.script_flush()
    assert seat.queue.leave_now(claim, seat.soon) is None
    assert seat.leave(claim)
    raw.queue().write("h", b"2" + b"x" * 42)
    claim = prepared(seat)
    assert seat.queue.take_now(claim, QUEUE, seat.soon) is None
    with pytest.raises(StoreError, match="damaged"):
        seat.join(claim)


def test_an_answer_that_does_not_come(server: Server) -> None:
    """The connection is closed: its next reply would be taken for another's."""
    with closing(PatientSeat(server.url())) as seat:
        warm(seat)
        claim = prepared(seat)
        for verb, again in (
            (lambda: seat.queue.take_now(claim, QUEUE, seat.now()), seat.join),
            (lambda: seat.queue.leave_now(claim, seat.now()), seat.leave),
        ):
            (connection,) = idle(seat)
            server.stop()
            try:
                with pytest.raises(StoreUnavailable, match="in time"):
                    verb()
            finally:
                server.resume()
            assert connection.sock.fileno() == -1
            assert idle(seat) == []
            assert claim.asked
            again(claim)
        assert seat.holders("dibs:a") == []


def test_an_interrupt_at_any_line_closes_the_connection(seat: Seat) -> None:
    """Unless nothing was sent, or all was read: the next request gets its own reply."""
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


def test_a_pair_in_asyncio(url: str, raw: Raw) -> None:
    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            await (await client.lock("a").acquire()).release()
            opened: Any = client._core.opened
            queue, now = opened._queue, opened._runtime.now
            soon = now() + 60

            def claim(name: str, kind: str = "mutex", capacity: int = 1) -> Claim:
                return Claim(os.urandom(16), name, kind, capacity, 1, 60.0, 60.0, soon, b"c" * 16, "{}",
                             prepared=Prepared())  # fmt: skip

            claims = [claim(f"dibs:{number}") for number in range(9)]
            futures = [queue.take_now(one, QUEUE, soon) for one in claims]
            futures[3].cancel()
            for one, future in zip(claims, futures, strict=True):
                if not future.cancelled():
                    assert (await future).ticket == one.ticket
            with pytest.raises(Mismatch):
                await queue.take_now(claim("dibs:1", "semaphore", 2), QUEUE, soon)
            raw.client.script_flush()
            assert await queue.leave_now(claims[0], soon) is None
            assert await queue.leave(claims[0], True, soon)
            found = await asyncio.gather(*(queue.leave_now(one, soon) for one in claims))
            assert found == [False] + [True] * 8

    asyncio.run(play())
