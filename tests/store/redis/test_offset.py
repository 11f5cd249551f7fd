"""The server's clock as a connection knows it. An answer that was read late says little about it, and must not make
what is asked next come too late; and what must be remembered on any account does not depend on it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import dibs.aio
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat

LEASE = 4.0
LATE = 1.2 * LEASE


def idle(queue: Any) -> list[Any]:
    """The connections of a queue that nobody uses now."""
    return [connection for pool in queue._executor._transport.pools.made.values() for connection in pool.idle]


def test_an_answer_that_was_read_late_makes_no_join_void(url: str) -> None:
    """The user's own code kept the loop busy for longer than a claim may be on its way."""

    async def play() -> None:
        async with dibs.aio.connect(url, lease=LEASE) as client:
            await (await client.lock("warm").acquire()).release()
            await client.inspect("other")  # from now on the server knows what is asked below
            ((stream,),) = [pool.open for pool in client._core.opened._queue._executor._transport.pools.made.values()]
            looking = asyncio.ensure_future(client.inspect("other"))
            while not stream._slots or stream._out:
                assert not looking.done(), "it was answered before it could be late"
                await asyncio.sleep(0)
            time.sleep(LATE)  # which blocks the loop
            await looking
            hold = await client.lock("free").acquire(timeout=0)
            assert hold is not None
            await hold.release()

    asyncio.run(play())


def test_an_unanswered_leave_is_remembered_whatever_its_connection_knows(seat: Seat) -> None:
    """Else the join that it overtook would stand there as a ghost."""
    claim = seat.claim("dibs:a", lease=30.0)
    step(seat.queue.inspect("dibs:a", seat.soon))
    step(seat.other_queue.inspect("dibs:a", seat.soon))
    (link,) = idle(seat.other_queue)
    link.offset -= 3600.0
    step(seat.other_queue.leave(claim, False, seat.soon))
    assert seat.join(claim) is None
    assert seat.holders("dibs:a") == []


def test_what_is_known_of_the_clock_only_gets_better(seat: Seat) -> None:
    """A late answer says less; one that shows that the clock was set back says more."""
    step(seat.queue.inspect("dibs:a", seat.soon))
    (link,) = idle(seat.queue)
    known, now = link.offset, seat.now()
    there = now + known
    link.sent_at = now - 6
    link.note([int((there - 5) * 1e6)])
    assert link.offset == pytest.approx(known, abs=1e-5)
    link.note([int((there - 50) * 1e6)])
    assert link.offset == pytest.approx(known - 44, abs=0.1)
