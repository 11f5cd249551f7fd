"""Several locks as one: all or none, one deadline, one global order, duplicates merged."""

# ruff: noqa: PT012  (the tests are about a `with` that an error ends)

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR, FOREIGN, LEASES, PERMITS, RW
from dibs.testing.contract.harness import Actor, World, eventually, lasted
from dibs.testing.contract.worlds import above_the_store, needs, timed, without

pytestmark = above_the_store


async def test_it_holds_all(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: world.multi(client.lock("a"), client.lock("b")).acquire())
    hold.check()
    assert (20 if LEASES in client._core.store.capabilities else 0) < hold.remaining <= 27
    assert hold.token is None
    assert all(isinstance(part.token, int) for part in hold.holds)
    for name in ("a", "b"):
        assert await bob(lambda name=name: client.lock(name).acquire(timeout=0)) is None
    await ana(hold.release)
    for name in ("a", "b"):
        assert await bob(lambda name=name: client.lock(name).acquire(timeout=0))


async def test_all_or_none(world: World) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    await ana(lambda: client.lock("b").acquire())
    lost: list[object] = []
    members = [client.lock(name, on_lost=lost.append) for name in ("a", "b", "c")]
    assert await bob(lambda: world.multi(*members).acquire(timeout=0)) is None
    for name in ("a", "c"):
        assert await cy(lambda name=name: client.lock(name).acquire(timeout=0))
    assert not lost, "what was never held was not lost"


async def test_a_try_gives_none_while_busy(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    both = world.multi(client.lock("a"), client.lock("b"))
    arguments: list[dict[str, Any]] = [{"timeout": 0}, {"blocking": False}, {"timeout": 0, "blocking": False}]
    for given in arguments:
        hold = await ana(lambda given=given: both.acquire(**given))
        assert await bob(lambda given=given: both.acquire(**given)) is None
        await ana(hold.release)


@timed
async def test_one_deadline_for_all(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    for name in ("a", "b", "c"):
        await ana(lambda name=name: client.lock(name, renew=False, lease=0.5).acquire())
    # Each member alone becomes free within the timeout. A timeout per member would add up to more.
    await ana(lambda: client.lock("d").acquire())
    locks = [client.lock(name) for name in ("a", "b", "c", "d")]
    hold, seconds = await lasted(bob(lambda: world.multi(*locks, timeout=1.0).acquire()))
    assert hold is None
    assert seconds < 3.5


async def test_with_names_the_member_that_was_busy(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("b").acquire())
    with pytest.raises(dibs.AcquireTimeout) as caught:
        await bob.enter(world.multi(client.lock("a"), client.lock("b"), timeout=0.1))
    assert caught.value.name == "b"
    assert caught.value.info is not None
    assert caught.value.info.holders[0].token == hold.token
    await world.free(client, "a")


@needs(FAIR)
async def test_members_own_timeouts_do_not_count(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: world.multi(client.lock("a", timeout=0)).acquire())
    await world.in_queue(client, "a", 1)
    await ana(hold.release)
    assert await pending


@needs(PERMITS)
async def test_holds_come_in_argument_order(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    async with ana.entering(world.multi(client.lock("z"), client.rlock("a"), client.semaphore("m", 3))) as hold:
        assert [part.name for part in hold.holds] == ["z", "a", "m"]
        for part in hold.holds:
            part.check()


async def test_with_and_release_pair_as_for_a_lock(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    both = world.multi(client.lock("a"), client.lock("b"))
    async with ana.entering(both):
        assert await ana(both.owned)
        assert await ana(both.locked)
    assert not await ana(both.owned)
    assert not await ana(both.locked)
    await ana(both.acquire)
    await ana(both.release)
    with pytest.raises(dibs.NotHeld):
        await ana(both.release)


async def test_releasing_twice_does_nothing(world: World) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(lambda: world.multi(client.lock("a"), client.lock("b")).acquire())
    await ana(hold.release)
    assert await bob(lambda: client.lock("a").acquire(timeout=0))
    await ana(hold.release)
    assert await cy(lambda: client.lock("a").acquire(timeout=0)) is None


@timed
async def test_lost_when_any_is(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: world.multi(client.lock("a"), client.lock("b")).acquire())
    pending = ana.start(hold.lost.wait)
    await world.break_(client, hold.holds[1])
    assert await pending
    assert hold.lost.is_set()
    assert hold.remaining == 0
    with pytest.raises(dibs.LockLost) as caught:
        hold.check()
    assert caught.value.reason == hold.lost_reason == hold.holds[1].lost_reason
    hold.holds[0].check()
    assert hold.holds[0].lost_reason is None


@timed
async def test_leaving_with_a_lost_member_raises_and_gives_back_the_rest(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    with pytest.raises(dibs.LockLost):
        async with ana.entering(world.multi(client.lock("a"), client.lock("b"))) as hold:
            await world.break_(client, hold.holds[0])
            await eventually(hold.lost.is_set)
    await world.free(client, "b")


@timed
@needs(FAIR)
async def test_a_member_lost_meanwhile_is_taken_anew(world: World) -> None:
    client, other = world.client(lease=world.short), world.client()
    ana, bob = world.actors("ana", "bob")
    held = await bob(lambda: other.lock("b").acquire())
    pending = ana.start(lambda: world.multi(client.lock("a"), client.lock("b")).acquire())
    await world.in_queue(other, "b", 1)
    (holder,) = (await world.inspect(other, "a")).holders
    await bob(lambda: other.break_("a", **world.named(holder)))
    await eventually(lambda: "1 held or asked for" in repr(client))  # the client noticed the loss
    await bob(held.release)
    hold = await pending
    hold.check()
    assert {part.name for part in hold.holds} == {"a", "b"}
    assert len((await world.inspect(other, "a")).holders) == 1


Members = Callable[[Any], list[Any]]
MERGED: dict[str, tuple[Members, str, list[int]]] = {
    "the same lock twice": (lambda client: [client.lock("a")] * 2, "a", [1]),
    "two objects of one lock": (lambda client: [client.lock("a"), client.rlock("a")], "a", [1]),
    "permits add up": (lambda client: [client.semaphore("a", 5)] * 3, "a", [3]),
    "read and write": (lambda client: [client.rwlock("a").read, client.rwlock("a").write], "a", [1_000_000]),
    "write and read": (lambda client: [client.rwlock("a").write, client.rwlock("a").read], "a", [1_000_000]),
    "two keys of one stripe": (lambda client: [client.striped("s", 1).at(key) for key in "xy"], "s#0", [1]),
}


NEEDED = {
    "permits add up": [PERMITS],
    "read and write": [RW],
    "write and read": [RW],
    "two keys of one stripe": [PERMITS],
}


UNWANTED = {"permits add up": [FOREIGN], "two keys of one stripe": [FOREIGN]}
CASES = [pytest.param(case, marks=[needs(*NEEDED.get(case, [])), without(*UNWANTED.get(case, []))]) for case in MERGED]


@pytest.mark.parametrize("case", CASES)
async def test_equal_members_are_merged(world: World, case: str) -> None:
    make, name, weights = MERGED[case]
    client, ana = world.client(), world.actor("ana")
    members = make(client)
    async with ana.entering(world.multi(*members, timeout=60)) as hold:
        info = await world.inspect(client, name)
        assert [holder.weight for holder in info.holders] == weights
        assert len(hold.holds) == len(members)
        assert len({world.token(part) for part in hold.holds}) == 1
    await world.free(client, name)


@needs(PERMITS)
async def test_more_permits_than_there_are_is_an_error(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    with pytest.raises(ValueError, match="can never be granted"):
        await ana(lambda: world.multi(*[client.semaphore("a", 2)] * 3).acquire())


@needs(PERMITS)
async def test_one_name_in_two_sizes_is_a_mismatch(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for members in ([client.semaphore("a", 2), client.semaphore("a", 3)], [client.lock("a"), client.semaphore("a", 3)]):
        with pytest.raises(dibs.Mismatch):
            await ana(lambda members=members: world.multi(*members).acquire(timeout=0))
        await world.free(client, "a")


async def test_a_multi_of_multis_is_one(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    inner = world.multi(client.lock("b"), client.lock("a"))
    async with ana.entering(world.multi(inner, client.lock("c"))) as hold:
        assert [part.name for part in hold.holds] == ["b", "a", "c"]


async def test_from_different_clients(world: World) -> None:
    one, other, ana = world.client(), world.client(), world.actor("ana")
    async with ana.entering(world.multi(one.lock("a"), other.lock("b"), timeout=60)) as hold:
        hold.check()
        assert len((await world.inspect(one, "b")).holders) == 1


async def test_one_lock_through_two_clients_is_one_member(world: World) -> None:
    one, other, ana = world.client(), world.client(), world.actor("ana")
    async with ana.entering(world.multi(one.lock("a"), other.lock("a"), timeout=60)) as hold:
        assert len({part.token for part in hold.holds}) == 1


async def test_from_different_stores(world: World) -> None:
    one, other = world.client(), world.client(world.another_url())
    ana = world.actor("ana")
    async with ana.entering(world.multi(one.lock("a"), other.lock("a"), timeout=60)) as hold:
        assert len(hold.holds) == 2
        for client in (one, other):
            assert len((await world.inspect(client, "a")).holders) == 1
    for client in (one, other):
        await world.free(client, "a")


async def test_opposite_argument_orders_never_deadlock(world: World) -> None:
    one, other = world.client(), world.client()
    inside: list[str] = []

    async def work(actor: Actor, client: Any, names: str) -> None:
        both = world.multi(*(client.lock(name) for name in names), timeout=60)
        for _ in range(15):
            async with actor.entering(both):
                inside.append(actor.name)
                await asyncio.sleep(0)
                assert inside == [actor.name]
                inside.pop()

    ana, bob = world.actors("ana", "bob")
    await asyncio.gather(work(ana, one, "abc"), work(bob, other, "cba"))


@needs(RW)
async def test_it_needs_locks_of_its_api(world: World) -> None:
    with pytest.raises(ValueError, match="at least one"):
        world.multi()
    for wrong in ("a", None, world.client().rwlock("a"), world.client()):
        with pytest.raises(TypeError):
            world.multi(wrong)
