"""`inspect` and `locks`: what they show, and that namespaces are separate."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime, timedelta

import dibs
from dibs.core.queue import FAIR, FOREIGN, LEASES, PERMITS, RECORDS
from dibs.testing.contract.harness import World, eventually, passed
from dibs.testing.contract.worlds import every_form, needs, timed, without


async def test_a_free_name_has_no_holders(world: World) -> None:
    info = await world.inspect(world.client(), "a")
    assert isinstance(info, dibs.LockInfo)
    assert (info.name, info.holders, info.waiters) == ("a", (), ())


@every_form
async def test_a_holder_is_shown(world: World) -> None:
    client, ana = world.client(lease=10), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    info = await world.inspect(client, "a")
    assert (info.name, info.kind, info.capacity, info.waiters) == ("a", "mutex", 1, ())
    (holder,) = info.holders
    assert isinstance(holder, dibs.Participant)
    if not world.is_foreign:
        assert holder.owner == hold.owner
        assert (holder.host, holder.pid) == (platform.node(), os.getpid())
        assert holder.since.utcoffset() == timedelta(0)
        assert abs(holder.since - datetime.now(UTC)) < timedelta(seconds=10)
    assert (holder.token, holder.weight, dict(holder.info)) == (hold.token, 1, {})
    assert 0 < holder.remaining <= 10


@every_form
@needs(FAIR)
async def test_waiters_are_shown_in_order(world: World) -> None:
    client, other = world.client(owner="here"), world.client(owner="there")
    await world.actor("ana")(lambda: client.lock("a").acquire())
    for n, (name, who) in enumerate([("bob", other), ("cy", client), ("dan", other)]):
        world.actor(name).start(lambda who=who: who.lock("a").acquire())
        await world.in_queue(client, "a", n + 1)
    info = await world.inspect(client, "a")
    if world.is_foreign:  # an id begins with that of its client
        here, there = (one.owner.partition(":")[0] for one in (*info.holders, info.waiters[0]))
        assert [waiter.owner.partition(":")[0] for waiter in info.waiters] == [there, here, there]
        assert here != there
    else:
        assert [waiter.owner for waiter in info.waiters] == ["there", "here", "there"]
    if RECORDS in client._core.store.capabilities:
        (holder,) = info.holders
        assert [one.thread for one in (holder, *info.waiters)] == ["ana", "bob", "cy", "dan"]
        tokens = [one.token for one in (holder, *info.waiters)]
        assert tokens == sorted(set(tokens))


def instant(world: World, participant: dibs.Participant) -> float:
    """Its `since`, on the clock of the store."""
    return world.now() - (datetime.now(UTC) - participant.since).total_seconds()


@timed
@needs(FAIR)
@without(FOREIGN)
async def test_since_is_when_it_came_to_hold(world: World) -> None:
    client = world.client()
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock("a").acquire())
    pending = bob.start(lambda: client.lock("a").acquire())
    await world.in_queue(client, "a", 1)
    asked = instant(world, (await world.inspect(client, "a")).waiters[0])
    await passed(0.5)
    await ana(hold.release)
    await pending

    async def told() -> bool:
        return instant(world, (await world.inspect(client, "a")).holders[0]) > asked + 0.3

    await eventually(told)  # a renewal tells the store that it holds


@needs(RECORDS)
async def test_info_of_client_and_lock_are_merged(world: World) -> None:
    client, ana = world.client(info={"app": "shop", "job": 1}), world.actor("ana")
    await ana(lambda: client.lock("a", info={"job": 2, "note": "é\u202e"}).acquire())
    await ana(lambda: client.lock("b").acquire())
    assert dict((await world.inspect(client, "a")).holders[0].info) == {"app": "shop", "job": 2, "note": "é\u202e"}
    assert dict((await world.inspect(client, "b")).holders[0].info) == {"app": "shop", "job": 1}


@timed
async def test_what_expired_is_not_shown(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    await ana(lambda: client.lock("a", lease=0.5, renew=False).acquire())
    await world.free(client, "a")


async def test_looking_changes_nothing(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await ana(lambda: client.lock("a").acquire())
    first = await world.inspect(client, "a")
    second = await world.inspect(client, "a")
    assert [holder.token for holder in first.holders] == [holder.token for holder in second.holders]
    if LEASES in client._core.store.capabilities:
        assert second.holders[0].remaining <= first.holders[0].remaining
    hold.check()


@needs(PERMITS)
async def test_locks_lists_what_is_busy(world: World) -> None:
    client, other = world.client(), world.client()
    ana = world.actor("ana")
    assert await world.locks(client) == []
    hold = await ana(lambda: client.lock("a").acquire())
    await ana(lambda: other.semaphore("b", 3, **world.shown_permits).acquire())
    listed = await world.locks(client)
    assert sorted((info.name, info.kind, len(info.holders)) for info in listed) == [
        ("a", "mutex", 1),
        ("b", "semaphore", 1),
    ]
    await ana(hold.release)
    assert [info.name for info in await world.locks(client)] == ["b"]


async def test_locks_with_a_prefix(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    for name in ("invoice:1", "invoice:2", "order:1", "x-invoice:1"):
        await ana(lambda name=name: client.lock(name).acquire())
    assert sorted(info.name for info in await world.locks(client, "invoice:")) == ["invoice:1", "invoice:2"]
    assert [info.name for info in await world.locks(client, "order:1")] == ["order:1"]
    assert await world.locks(client, "INVOICE") == []
    assert await world.locks(client, "nothing") == []


SIGNS = ("*", "?", "%", "_", "[a]", "\\", "'", '"', "é", "^", ".*", "{a}", "\\%", "#", ":")


async def test_a_prefix_means_itself(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    names = ["a", "ab", "b", *(f"{sign}-1" for sign in SIGNS)]
    for name in names:
        await ana(lambda name=name: client.lock(name).acquire())
    for sign in SIGNS:
        listed = [info.name for info in await world.locks(client, sign)]
        assert sorted(listed) == sorted(name for name in names if name.startswith(sign))


@every_form
async def test_many_locks_are_all_listed(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    names = [f"n{number:04}" for number in range(150)]
    for name in names:
        await ana(lambda name=name: client.lock(name).acquire())
    assert sorted(info.name for info in await world.locks(client)) == names


async def test_namespaces_do_not_see_each_other(world: World) -> None:
    one, other, default = world.client(namespace="one"), world.client(namespace="other"), world.client()
    ana = world.actor("ana")
    assert await ana(lambda: one.lock("a").acquire(timeout=0))
    assert await ana(lambda: world.client(namespace="one").lock("a").acquire(timeout=0)) is None
    assert await ana(lambda: other.lock("a").acquire(timeout=0))
    assert await ana(lambda: default.lock("a").acquire(timeout=0))
    for client in (one, other) if world.is_foreign else (one, other, default):
        assert [(info.name, len(info.holders)) for info in await world.locks(client)] == [("a", 1)]


async def test_a_namespace_and_a_name_never_run_into_each_other(world: World) -> None:
    ana = world.actor("ana")
    pairs = [("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("a%", "3Ab:c"), ("a:", "b:c"), ("", "x:y")]
    pairs += [("a/b", "c"), ("a%2Fb", "c"), ("a", "b/c"), ("/a", "c"), ("a", "/c"), ("a", "%2Fc")]
    for namespace, name in pairs:
        client = world.client(namespace=namespace)
        assert await ana(lambda client=client, name=name: client.lock(name).acquire(timeout=0)), (namespace, name)


async def test_the_empty_namespace_leaves_the_name_as_written(world: World) -> None:
    bare, ana = world.client(namespace=""), world.actor("ana")
    await ana(lambda: bare.lock("a").acquire())
    assert [info.name for info in await world.locks(bare)] == ["a"]
    assert (await world.inspect(bare, "a")).holders
    assert world.is_foreign or not (await world.inspect(world.client(), "a")).holders
