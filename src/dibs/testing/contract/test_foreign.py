"""Stores in the format of another library: what they refuse, and what they do in a way of their own."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, cast

import pytest

import dibs
from dibs.core.queue import FENCED_MUTEX, FOREIGN, LATCHES, PERMITS, RW, TRY, UNFAIR, NamesHolders
from dibs.core.rule import RW_CAPACITY
from dibs.runtime.threads import step
from dibs.testing.contract.harness import World
from dibs.testing.contract.seats import Seat
from dibs.testing.contract.worlds import needs

pytestmark = needs(FOREIGN)


async def test_only_a_lock_that_asks_for_tokens_has_them(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    fenced = await ana(lambda: client.lock("a", fenced=True).acquire())
    assert isinstance(fenced.token, int)
    for lock in (client.lock("b", fenced=False), client.lock("c", fair=True)):
        hold = await ana(lock.acquire)
        with pytest.raises(dibs.Unsupported, match="fenced=True") as caught:
            _ = hold.token
        assert (caught.value.name, caught.value.store) == (hold.name, client._core.shown)
        await ana(hold.release)


@needs(RW, PERMITS)
async def test_what_the_format_has_not_is_refused_when_it_is_made(world: World) -> None:
    client = world.client()
    refused: list[Callable[[], Any]] = [
        lambda: client.lock("a", fair=True, fenced=True),
        lambda: client.rwlock("a", fair=True),
        lambda: client.semaphore("a", 3, fair=True),
        lambda: client.semaphore("a", 3, lease=20),
        lambda: client.striped("a", 3),
        lambda: client.election("a").lead(),
    ]
    for make in refused:
        with pytest.raises(dibs.Unsupported) as caught:
            make()
        assert caught.value.store == client._core.shown


async def test_a_holder_cannot_be_asked_to_release(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    with pytest.raises(dibs.Unsupported):
        await ana(lambda: client.lock("a").revoke())
    hold.check()


async def test_a_holder_is_broken_by_its_id(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    (holder,) = (await world.inspect(client, "a")).holders
    wrong: list[dict[str, Any]] = [{"token": hold.token}, {"token": hold.token, "holder": holder.owner}]
    for named in wrong:
        with pytest.raises(dibs.Unsupported, match="holder="):
            await ana(lambda named=named: client.break_("a", **named))
    with pytest.raises(dibs.NotHeld):
        await ana(lambda: client.break_("a", holder=holder.owner[:-1]))
    hold.check()
    await ana(lambda: client.break_("a", holder=holder.owner))
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)


async def test_the_store_counts_the_holds_of_an_owner(world: World) -> None:
    client, ana = world.client(), world.actor("ana")

    async def count() -> Any:
        (holder,) = (await world.inspect(client, "a")).holders
        return holder.info.get("holds", 1)

    holds = []
    for n in range(1, 4):
        holds.append(await ana(lambda: client.rlock("a").acquire()))
        assert await count() == n
    for n in (2, 1):
        await ana(holds.pop().release)
        assert await count() == n
    await ana(holds.pop().release)
    await world.free(client, "a")


@needs(LATCHES, PERMITS)
async def test_a_name_is_of_one_kind(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.lock("lock").acquire())
    await ana(lambda: client.semaphore("semaphore", 3).acquire())
    await ana(lambda: client.latch("latch").arm(3))
    for attempt in (
        lambda: client.semaphore("lock", 3).acquire(timeout=0),
        lambda: client.latch("lock").arm(1),
        lambda: client.latch("lock").count_down(),
        client.rwlock("lock").read.acquire,
        lambda: client.lock("semaphore").acquire(timeout=0),
        lambda: client.lock("latch").acquire(timeout=0),
    ):
        with pytest.raises(dibs.Mismatch):
            await ana(attempt)
    assert await ana(client.latch("latch").count) == 3


@needs(PERMITS)
async def test_a_semaphore_keeps_its_size_when_it_is_free(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for name, options in (("a", {}), ("b", {"renew": False})):
        async with ana.entering(client.semaphore(name, 3, **options)):
            pass
        with pytest.raises(dibs.Mismatch, match="3 permits, not 2"):
            await ana(lambda name=name, options=options: client.semaphore(name, 2, **options).acquire())


async def test_a_lock_without_order_does_not_pass_those_in_the_queue(world: World) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: client.lock("a", fair=True).acquire())
    pending = bob.start(lambda: client.lock("a", fair=True).acquire())
    await world.in_queue(client, "a", 1)
    with pytest.raises(dibs.Mismatch, match="fair=True"):
        await cy(lambda: client.lock("a").acquire(timeout=0))
    await ana(hold.release)
    assert await pending


OPTIONS: dict[str, dict[str, Any]] = {"mutex": {}, "rw": {"kind": "rw", "capacity": RW_CAPACITY}}


def holds(seat: Seat) -> list[Any]:
    """How often each holder holds."""
    return [holder.info.get("holds", 1) for holder in step(seat.queue.inspect("a", seat.soon)).holders]


@pytest.mark.parametrize("kind", ["mutex", pytest.param("rw", marks=needs(RW))])
def test_amend_counts_and_is_idempotent(ana: Seat, bob: Seat, kind: str) -> None:
    claim, first = ana.joined(**OPTIONS[kind])
    for weight in (3, 2, 1):
        for _ in range(2):
            ana.amend(claim, weight)
            assert holds(bob) == [weight]
    again = ana.join(claim)
    assert again is not None
    assert again.holds
    assert ana.leave(claim)
    assert holds(bob) == []
    assert first.holds


@pytest.mark.parametrize("kind", ["mutex", pytest.param("rw", marks=needs(RW))])
def test_an_amendment_of_what_is_gone_changes_nothing(ana: Seat, bob: Seat, kind: str) -> None:
    gone, _ = ana.joined(**OPTIONS[kind])
    ana.leave(gone)
    ana.amend(gone, 2)
    assert ana.names() == []
    claim, standing = bob.joined(**OPTIONS[kind])
    forged = copy(claim)
    forged.id = bytes(16)
    for other in (gone, forged):
        bob.amend(other, 2)
        assert (holds(bob), bob.holders()) == ([1], [standing.ticket])


def test_an_id_that_is_not_a_holders_evicts_nobody(ana: Seat, bob: Seat) -> None:
    _, standing = ana.joined()
    (holder,) = step(ana.queue.inspect("a", ana.soon)).holders
    queue = cast("NamesHolders", bob.queue)
    for wrong in ("", "mode", holder.owner[:-1], f"{holder.owner}:write"):
        assert not step(queue.evict_holder("a", wrong, bob.soon))
    assert bob.holders() == [standing.ticket]
    assert not step(bob.queue.evict("a", standing.ticket, bob.soon)), "a ticket is no id"


def unfair(seat: Seat, count: int, **options: Any) -> list[Any]:
    """Claims that wait outside the queue."""
    claims = [seat.claim(**options) for _ in range(count)]
    for claim in claims:
        standing = seat.join(claim, UNFAIR)
        assert standing is not None
        assert not standing.holds
    return claims


@pytest.fixture
def cy(seats: Callable[[], Seat]) -> Seat:
    return seats()


def test_a_release_tells_one_waiter_of_each_client(ana: Seat, bob: Seat, cy: Seat) -> None:
    mine, _ = ana.joined(UNFAIR, kind=FENCED_MUTEX)
    first, second = unfair(bob, 2, kind=FENCED_MUTEX)
    (other,) = unfair(cy, 1, kind=FENCED_MUTEX)
    ana.leave(mine)
    assert [bob.hears(first), bob.told(second), cy.hears(other)] == [TRY, None, TRY]
    bob.leave(first)  # it was told, and gives up
    assert bob.hears(second) is TRY
    standing = bob.join(second, UNFAIR)
    assert standing is not None
    assert standing.holds


@needs(RW)
def test_a_writers_release_tells_one_reader_after_the_other(ana: Seat, bob: Seat) -> None:
    writer, _ = ana.joined(weight=RW_CAPACITY, **OPTIONS["rw"])
    readers = unfair(bob, 3, **OPTIONS["rw"])
    ana.leave(writer)
    for at, reader in enumerate(readers):
        assert [bob.hears(reader), *(bob.told(other) for other in readers[at + 1 :])] == [TRY, *[None] * (2 - at)]
        standing = bob.join(reader, UNFAIR)
        assert standing is not None
        assert standing.holds


@needs(PERMITS)
def test_a_release_of_permits_tells_one_after_the_other(ana: Seat, bob: Seat) -> None:
    options: dict[str, Any] = {"kind": "semaphore", "capacity": 2}
    mine, _ = ana.joined(weight=2, **options)
    waiting = unfair(bob, 3, **options)
    ana.leave(mine)
    holding = []
    for claim in waiting:
        assert bob.hears(claim) is TRY
        standing = bob.join(claim, UNFAIR)
        assert standing is not None
        holding.append(standing.holds)
    assert holding == [True, True, False]
