"""Operations of the store, one by one: many claims released in one round trip, a late copy of a join, a lost reply to
an eviction, and the server's clock as a connection knows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.redis.scripts import EVICT
from dibs.core.queue import YOURS
from dibs.core.rule import Claim
from dibs.errors import StoreError
from dibs.runtime.threads import step
from dibs.testing.contract.harness import World
from dibs.testing.contract.seats import Seat
from lab import suite
from lab.faults import Cut, Latency, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.witness import First, fresh_name
from store.faults.kit import both_apis
from store.redis.hashes import Raw
from store.redis.kit import PatientSeat, through

MANY = 500


def leave_all(seat: Seat, *leaving: tuple[Claim, bool], within: float = 30.0) -> list[StoreError | None]:
    queue: Any = seat.queue
    found: list[StoreError | None] = step(queue.leave_all(leaving, seat.now() + within))
    return found


@pytest.mark.gate
def test_many_in_one_exchange(server: Server, proxy: Proxy) -> None:
    """The server is far and does not know the script: one by one it would take 50 s."""
    with closing(Seat(through(proxy))) as seat:
        claims = [seat.joined(name=f"name-{number}")[0] for number in range(MANY)]
        server.ask("SCRIPT", "FLUSH")
        latency = proxy.add(Latency(0.05))
        assert leave_all(seat, *((claim, True) for claim in claims), within=20) == [None] * MANY
        proxy.remove(latency)
        assert not seat.names()
        assert leave_all(seat, *((claim, True) for claim in claims)) == [None] * MANY, "done is done"
        assert leave_all(seat) == []


def test_one_that_is_refused_says_nothing_about_the_others(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"dibs:{name}")[0] for name in "abc"]
    raw.client.delete(raw.queue("dibs:b").key)
    raw.client.set(raw.queue("dibs:b").key, "foreign")
    first, second, third = leave_all(seat, *((claim, True) for claim in claims))
    assert (first, third) == (None, None)
    assert isinstance(second, StoreError)
    assert "damaged" in str(second)
    assert seat.holders("dibs:a") == seat.holders("dibs:c") == []


@pytest.mark.gate
def test_all_shards_of_a_cluster(tmp_path: Path) -> None:
    require("redis")
    with closing(PatientSeat(suite.cluster(tmp_path))) as seat:
        claims = [seat.joined(name=f"name-{number}")[0] for number in range(30)]
        waiters = [seat.joined(name=f"name-{number}")[0] for number in range(30)]
        assert leave_all(seat, *((claim, True) for claim in claims)) == [None] * 30
        assert [seat.hears(claim) for claim in waiters] == [YOURS] * 30
        assert leave_all(seat, *((claim, False) for claim in waiters)) == [None] * 30
        assert not seat.names()


def test_a_late_copy_of_its_join_does_not_stand_again(seats: Callable[[], Seat], raw: Raw) -> None:
    ana, bob = seats(), seats()
    claim, standing = ana.joined(name="dibs:a")
    _, behind = bob.joined(name="dibs:a")
    assert bob.evict(standing.ticket, "dibs:a")
    assert ana.join(claim) is None
    assert [record["TICKET"] for record in raw.queue().check()] == [behind.ticket]


@both_apis
async def test_who_broke_it_is_told_so_though_the_first_answer_was_lost(
    world: World, server: Server, proxy: Proxy
) -> None:
    name = fresh_name()
    client, other = world.client(f"redis://{ports.HOST}:{proxy.port}"), world.client(server.url())
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: other.lock(name).acquire())
    await world.inspect(client, name)
    asked = First(lambda message: f"dibs:{name}|line".encode() in message and EVICT.sha.encode() in message)
    proxy.add(Cut(at_message(match=lambda message: asked(message) and False)), UP)  # only looks
    answer = First(lambda message: asked.struck and message.startswith(b"*2\r\n:"))
    proxy.add(Cut(at_message(match=answer)), DOWN)
    await bob(lambda: client.break_(name, token=hold.token))
    assert answer.struck, "the first answer was lost"
    with pytest.raises(dibs.NotHeld):
        await bob(lambda: client.break_(name, token=hold.token))
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)


LEASE = 1.5
LATE = 1.2 * LEASE


def idle(queue: Any) -> list[Any]:
    return [connection for pool in queue._executor._transport.pools.made.values() for connection in pool.idle]


@pytest.mark.alone
def test_an_answer_that_was_read_late_makes_no_join_void(url: str) -> None:
    """The user's own code blocked the loop for longer than a join may be under way."""

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
    """Else the join that it overtook would leave a ghost."""
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
