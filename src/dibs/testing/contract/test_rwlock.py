"""The read-write lock: readers share, a writer excludes; which side an owner may add to the one that it holds."""

from __future__ import annotations

import pytest

import dibs
from dibs.core.queue import FAIR, FOREIGN, RW
from dibs.testing.contract.harness import World
from dibs.testing.contract.worlds import above_the_store, every_form, needs, without

pytestmark = needs(RW)


@above_the_store
async def test_it_has_a_name_and_two_sides(world: World) -> None:
    rw, ana = world.client().rwlock("a"), world.actor("ana")
    assert rw.name == rw.read.name == rw.write.name == "a"
    async with ana.entering(rw.read) as hold:
        assert hold.mode == "shared"
    async with ana.entering(rw.write) as hold:
        assert hold.mode == "exclusive"


async def test_readers_share(world: World) -> None:
    one, other = world.client().rwlock("a"), world.client().rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    assert await ana(lambda: one.read.acquire(timeout=0))
    assert await bob(lambda: one.read.acquire(timeout=0))
    assert await cy(lambda: other.read.acquire(timeout=0))


async def test_a_writer_excludes_readers(world: World) -> None:
    rw = world.client().rwlock("a")
    ana, bob = world.actors("ana", "bob")
    hold = await ana(rw.write.acquire)
    assert await bob(lambda: rw.read.acquire(timeout=0)) is None
    await ana(hold.release)
    assert await bob(lambda: rw.read.acquire(timeout=0))


@needs(FAIR)
async def test_a_writer_waits_for_all_readers(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    first, second = await ana(rw.read.acquire), await bob(rw.read.acquire)
    pending = cy.start(rw.write.acquire)
    await world.in_queue(client, "a", 1)
    await ana(first.release)
    assert world.is_foreign or len((await world.inspect(client, "a")).waiters) == 1
    assert not pending.done()
    await bob(second.release)
    assert await pending


@needs(FAIR)
async def test_readers_that_wait_behind_a_writer_come_in_together(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(rw.write.acquire)
    pending = [actor.start(rw.read.acquire) for actor in (bob, cy)]
    await world.in_queue(client, "a", 2)
    await ana(hold.release)
    for reader in pending:
        (await reader).check()


@every_form
@needs(FAIR)
@without(FOREIGN)
async def test_a_reader_waits_behind_a_waiting_writer(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(rw.read.acquire)
    writer = bob.start(rw.write.acquire)
    await world.in_queue(client, "a", 1)
    assert await cy(lambda: rw.read.acquire(timeout=0)) is None
    reader = cy.start(rw.read.acquire)
    await world.in_queue(client, "a", 2)
    await ana(hold.release)
    written = await writer
    assert not reader.done()
    await bob(written.release)
    assert await reader


@above_the_store
@needs(FAIR)
async def test_a_reader_that_re_enters_does_not_wait_behind_a_writer(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob = world.actors("ana", "bob")
    await ana(rw.read.acquire)
    bob.start(rw.write.acquire)
    await world.in_queue(client, "a", 1)
    assert await ana(lambda: rw.read.acquire(timeout=0))


@above_the_store
async def test_a_writer_re_enters(world: World) -> None:
    rw, ana = world.client().rwlock("a"), world.actor("ana")
    first = await ana(rw.write.acquire)
    second = await ana(lambda: rw.write.acquire(timeout=0))
    assert world.token(second) == world.token(first)


@above_the_store
async def test_a_writer_may_take_read(world: World) -> None:
    rw = world.client().rwlock("a")
    ana, bob = world.actors("ana", "bob")
    written = await ana(rw.write.acquire)
    read = await ana(lambda: rw.read.acquire(timeout=0))
    assert (written.mode, read.mode) == ("exclusive", "shared")
    assert await bob(lambda: rw.read.acquire(timeout=0)) is None
    await ana(read.release)
    assert await bob(lambda: rw.read.acquire(timeout=0)) is None


async def test_a_write_given_back_while_its_read_is_held_becomes_that_read(world: World) -> None:
    rw, others = world.client().rwlock("a"), world.client().rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    written = await ana(rw.write.acquire)
    read = await ana(rw.read.acquire)
    await ana(written.release)
    read.check()
    assert await cy(lambda: others.write.acquire(timeout=0)) is None
    assert await bob(lambda: others.read.acquire(timeout=0))
    assert read.mode == "shared"


@above_the_store
@needs(FAIR)
async def test_a_write_that_becomes_a_read_wakes_readers(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    written = await ana(rw.write.acquire)
    read = await ana(rw.read.acquire)
    pending = bob.start(rw.read.acquire)
    await world.in_queue(client, "a", 1)
    writer = cy.start(rw.write.acquire)
    await world.in_queue(client, "a", 2)
    await ana(written.release)
    assert await pending
    assert not writer.done()
    read.check()


@needs(FAIR)
async def test_downgrade_lets_readers_in(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob = world.actors("ana", "bob")
    hold = await ana(rw.write.acquire)
    pending = bob.start(rw.read.acquire)
    await world.in_queue(client, "a", 1)
    token = world.token(hold)
    await ana(hold.downgrade)
    assert await pending
    assert (hold.mode, world.token(hold)) == ("shared", token)
    hold.check()
    await ana(hold.release)


@above_the_store
async def test_downgrading_twice_changes_nothing(world: World) -> None:
    rw = world.client().rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    hold = await ana(rw.write.acquire)
    await ana(hold.downgrade)
    await ana(hold.downgrade)
    assert await cy(lambda: rw.write.acquire(timeout=0)) is None
    assert await bob(lambda: rw.read.acquire(timeout=0))


@above_the_store
async def test_one_of_two_writes_downgraded_still_excludes(world: World) -> None:
    rw = world.client().rwlock("a")
    ana, bob = world.actors("ana", "bob")
    first = await ana(rw.write.acquire)
    await ana(rw.write.acquire)
    await ana(first.downgrade)
    assert await bob(lambda: rw.read.acquire(timeout=0)) is None


@above_the_store
async def test_only_a_read_write_hold_can_be_downgraded(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    with pytest.raises(dibs.Unsupported):
        await ana(hold.downgrade)
    hold.check()


@above_the_store
async def test_downgrading_what_was_given_back_is_refused(world: World) -> None:
    rw, ana = world.client().rwlock("a"), world.actor("ana")
    hold = await ana(rw.write.acquire)
    await ana(hold.release)
    with pytest.raises(dibs.LockLost):
        await ana(hold.downgrade)


@above_the_store
async def test_read_to_write_is_a_deadlock_and_says_so(world: World) -> None:
    rw, ana = world.client().rwlock("a"), world.actor("ana")
    hold = await ana(rw.read.acquire)
    with pytest.raises(dibs.Deadlock) as caught:
        await ana(rw.write.acquire)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.name == "a"
    hold.check()
    await ana(hold.release)
    assert await ana(lambda: rw.write.acquire(timeout=0))


@above_the_store
async def test_write_after_downgrade_is_a_deadlock(world: World) -> None:
    rw, ana = world.client().rwlock("a"), world.actor("ana")
    hold = await ana(rw.write.acquire)
    await ana(hold.downgrade)
    with pytest.raises(dibs.Deadlock):
        await ana(rw.write.acquire)


@above_the_store
async def test_another_owners_write_beside_ones_read_waits(world: World) -> None:
    rw = world.client().rwlock("a")
    ana, bob = world.actors("ana", "bob")
    await ana(rw.read.acquire)
    assert await bob(lambda: rw.write.acquire(timeout=0)) is None


@above_the_store
async def test_owned_counts_either_side(world: World) -> None:
    rw = world.client().rwlock("a")
    ana, bob = world.actors("ana", "bob")
    await ana(rw.read.acquire)
    assert await ana(rw.read.owned)
    assert not await bob(rw.read.owned)


@needs(FAIR)
@without(FOREIGN)
async def test_onlookers_see_both_modes(world: World) -> None:
    client = world.client()
    rw = client.rwlock("a")
    ana, bob, cy = world.actors("ana", "bob", "cy")
    await ana(rw.read.acquire)
    await bob(rw.read.acquire)
    cy.start(rw.write.acquire)
    await world.in_queue(client, "a", 1)
    info = await world.inspect(client, "a")
    assert info.kind == "rw"
    assert [holder.weight for holder in info.holders] == [1, 1]
    assert info.waiters[0].weight == info.capacity
