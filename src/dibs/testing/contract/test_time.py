"""Leases: renewal, expiry, broken locks, requests to release. These tests measure no durations."""

# ruff: noqa: PT012  (the tests are about a `with` that an error ends)

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import dibs
from dibs.core.queue import FAIR, FOREIGN, LEASES, RECORDS
from dibs.testing.contract.harness import World, eventually, passed
from dibs.testing.contract.worlds import above_the_store, every_form, needs, on, timed, without


@timed
@every_form
async def test_renewal_keeps_holds_of_every_kind_beyond_their_lease(world: World) -> None:
    client, other = world.client(lease=world.lasting), world.client()
    ana, bob = world.actors("ana", "bob")
    kinds = world.mutexes()
    holds = [await ana(lambda kind=kind: kinds[kind](client, kind).acquire()) for kind in kinds]
    await passed(1.5 * world.lasting)
    for hold in holds:
        hold.check()
        assert 0 < hold.remaining <= world.lasting * 0.9
        assert await bob(lambda kind=hold.name: kinds[kind](other, kind).acquire(timeout=0)) is None
        await ana(hold.release)


@timed
@on("aio")
async def test_renewal_does_not_need_the_users_loop(world: World) -> None:
    client, ana = world.client(lease=world.lasting), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    world.stand_still(1.5 * world.lasting)  # blocks the event loop of the client
    hold.check()


@timed
@every_form
@needs(FAIR, RECORDS)
async def test_a_waiter_is_kept_beyond_its_lease(world: World) -> None:
    client = world.client(lease=world.lasting)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: client.lock("a").acquire())
    await world.in_queue(client, "a", 1)
    before = (await world.inspect(client, "a")).waiters[0].token
    await passed(1.5 * world.lasting)
    assert (await world.inspect(client, "a")).waiters[0].token == before
    await ana(hold.release)
    assert (await pending).token == before


@timed
@needs(FAIR, LEASES)
@without(FOREIGN)
async def test_a_waiter_is_kept_at_5_s_or_its_lease(world: World) -> None:
    ana, bob = world.actors("ana", "bob")
    for name, lease, waiting in (("a", 30, 5), ("b", 4, 4)):
        client = world.client(lease=lease)
        hold = await ana(lambda client=client, name=name: client.lock(name).acquire())
        pending = bob.start(lambda client=client, name=name: client.lock(name).acquire())
        await world.in_queue(client, name, 1)
        assert 0 < (await world.inspect(client, name)).waiters[0].remaining <= waiting
        await ana(hold.release)
        assert await pending


@needs(FAIR, LEASES)
async def test_a_hold_learned_by_message_gets_its_full_lease(world: World) -> None:
    client = world.client(lease=30)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: client.lock("a").acquire())
    await world.in_queue(client, "a", 1)
    await ana(hold.release)
    theirs = await pending
    theirs.check()
    await eventually(lambda: theirs.remaining > 20)  # the watchdog renews before half of the waiting lease is over


@timed
@every_form
async def test_a_hold_that_is_not_renewed_ends_by_itself(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", lease=world.short, renew=False).acquire())
    assert 0 < hold.remaining <= world.short * 0.9
    pending = bob.start(lambda: client.lock("a").acquire())
    assert await ana(lambda: hold.lost.wait(60))
    assert hold.remaining == 0
    with pytest.raises(dibs.LockLost, match="renew=False") as caught:
        hold.check()
    assert caught.value.reason == hold.lost_reason == "expired"
    assert not await ana(client.lock("a").owned)
    assert await pending


@needs(FAIR, LEASES)
async def test_a_hold_that_is_not_renewed_counts_its_lease_from_the_grant(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: client.lock("a", lease=20, renew=False).acquire())
    await world.in_queue(client, "a", 1)
    await ana(hold.release)
    assert (await pending).remaining > 10  # not the 5 s of its lease while it waited


@above_the_store
async def test_max_hold_ends_as_lost(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a", max_hold=0.3).acquire())
    assert hold.remaining <= 0.3
    assert hold.lost_reason is None
    pending = bob.start(lambda: client.lock("a").acquire())
    assert await ana(lambda: hold.lost.wait(60))
    with pytest.raises(dibs.LockLost, match=r"max_hold=0\.3") as caught:
        await ana(hold.release)
    assert caught.value.reason == hold.lost_reason == "max_hold"
    assert await pending


@above_the_store
async def test_max_hold_of_one_hold_spares_the_others_of_its_owner(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    lasting = await ana(lambda: client.rlock("a").acquire())
    short = await ana(lambda: client.rlock("a", max_hold=0.2).acquire())
    assert await ana(lambda: short.lost.wait(60))
    lasting.check()
    assert await ana(client.rlock("a").owned)


@timed
@every_form
async def test_what_is_taken_away_is_lost(world: World) -> None:
    client, other = world.client(lease=world.short), world.client()
    ana, bob = world.actors("ana", "bob")
    kinds = world.mutexes()
    holds = [await ana(lambda kind=kind: kinds[kind](client, kind).acquire()) for kind in kinds]
    for hold in holds:
        await world.break_(other, hold)
        assert await bob(lambda kind=hold.name: kinds[kind](other, kind).acquire(timeout=0))
    for hold in holds:
        await eventually(hold.lost.is_set)
        assert hold.remaining == 0
        assert "lost" in repr(hold)
        assert not await ana(kinds[hold.name](client, hold.name).owned)
        with pytest.raises(dibs.LockLost) as caught:
            hold.check()
        assert caught.value.name == hold.name
        assert str(world.token(hold) or 0) in str(caught.value)


@timed
@above_the_store
async def test_leaving_a_with_whose_hold_is_lost_raises(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    with pytest.raises(dibs.LockLost):
        async with ana.entering(client.lock("a")) as hold:
            await world.break_(client, hold)
            await eventually(hold.lost.is_set)


@timed
@above_the_store
async def test_waiting_for_the_loss_ends_with_it(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    assert not await ana(lambda: hold.lost.wait(0.01))
    pending = ana.start(hold.lost.wait)
    await world.break_(client, hold)
    assert await pending


@above_the_store
async def test_waiting_for_the_loss_of_a_released_hold_ends(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(hold.lost.wait)
    await ana(hold.release)
    assert not await pending


@timed
@above_the_store
async def test_on_lost_is_called_once_for_what_was_lost(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    called: list[tuple[Any, threading.Thread]] = []

    def tell(lost: Any) -> None:
        called.append((lost, threading.current_thread()))
        raise ZeroDivisionError("in on_lost")

    released = await ana(lambda: client.lock("released", on_lost=tell).acquire())
    await ana(released.release)
    kept = await ana(lambda: client.lock("kept", on_lost=tell).acquire())
    hold = await ana(lambda: client.lock("a", on_lost=tell).acquire())
    with caplog.at_level(logging.ERROR, "dibs"):
        await world.break_(client, hold)
        await eventually(lambda: [record for record in caplog.records if record.exc_info])
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    await passed(world.short)
    kept.check()
    ((lost, where),) = called
    assert (lost.name, lost.token, lost.lost.is_set()) == ("a", hold.token, True)
    assert (where is threading.current_thread()) == (world.api == "aio")  # in its event loop, else in another thread


@timed
async def test_break_with_another_token_changes_nothing(world: World) -> None:
    client, ana = world.client(lease=world.short), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    (holder,) = (await world.inspect(client, "a")).holders
    for token in (hold.token + 1, hold.token - 1, 0, -1, 2**62):
        other = holder._replace(token=token, owner=f"x:{token}")
        with pytest.raises(dibs.NotHeld) as caught:
            await world(lambda other=other: client.break_("a", **world.named(other)))
        assert caught.value.name == "a"
        assert caught.value.info is not None
        assert [holder.token for holder in caught.value.info.holders] == [hold.token]
    with pytest.raises(dibs.NotHeld):
        await world(lambda: client.break_("free", **world.named(holder._replace(token=1))))
    await passed(world.short)
    hold.check()


@needs(FAIR)
async def test_break_removes_holders_only(world: World) -> None:
    client = world.client()
    ana, bob, cy = world.actors("ana", "bob", "cy")
    await ana(lambda: client.lock("a").acquire())
    for n, actor in enumerate((bob, cy)):
        actor.start(lambda: client.lock("a").acquire())
        await world.in_queue(client, "a", n + 1)
    waiters = (await world.inspect(client, "a")).waiters
    for waiter in waiters:
        with pytest.raises(dibs.NotHeld):
            await world(lambda waiter=waiter: client.break_("a", **world.named(waiter)))
    seen = (await world.inspect(client, "a")).waiters
    assert [world.named(waiter) for waiter in seen] == [world.named(waiter) for waiter in waiters]


@above_the_store
async def test_break_wants_a_token(world: World) -> None:
    client = world.client()
    option, wrong = ("holder", (1, 1.0, None)) if world.is_foreign else ("token", ("1", 1.0, None, True))
    for value in wrong:
        with pytest.raises(TypeError):
            await world(lambda value=value: client.break_("a", **{option: value}))


@timed
@every_form
@without(FOREIGN)
async def test_revoke_is_a_request(world: World) -> None:
    client, other = world.client(lease=world.lasting), world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = ana.start(hold.revoke_requested.wait)
    await bob(lambda: other.lock("a").revoke())
    assert await pending
    assert hold.revoke_requested.is_set()
    hold.check()
    assert await bob(lambda: other.lock("a").acquire(timeout=0)) is None
    await ana(hold.release)


@timed
@above_the_store
@pytest.mark.parametrize("end", ["release", "break"])
async def test_waiting_for_a_revoke_ends_with_the_hold(world: World, end: str) -> None:
    client = world.client(lease=world.short)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(hold.revoke_requested.wait)
    await (ana(hold.release) if end == "release" else world.break_(client, hold))
    assert not await pending


@timed
@above_the_store
@without(FOREIGN)
async def test_revoke_concerns_the_holder_of_that_moment(world: World) -> None:
    client = world.client(lease=world.short)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    await bob(lambda: client.lock("a").revoke())
    await ana(hold.release)
    theirs = await bob(lambda: client.lock("a").acquire())
    await passed(world.short)
    assert not theirs.revoke_requested.is_set()
    await world(lambda: client.lock("free").revoke())
    await world.free(client, "free")
