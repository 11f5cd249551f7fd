"""Elections: one client leads by holding a lock of its own kind; all clients can see and follow the leader."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.core.queue import ELECTION, FAIR, FOREIGN, LEASES, PERMITS, RECORDS
from dibs.runtime.threads import step
from dibs.testing.contract.harness import Actor, World, eventually, passed
from dibs.testing.contract.seats import Seat, meanwhile
from dibs.testing.contract.worlds import above_the_store, every_form, needs, on, timed, without

pytestmark = [needs(FAIR), without(FOREIGN)]


class Follower:
    """Steps through a `watch()` on an actor of its own."""

    def __init__(self, actor: Actor, election: Any) -> None:
        self._actor = actor
        changes = election.watch()
        self._advance: Callable[[], Any] = getattr(changes, "__anext__", None) or changes.__next__

    async def next(self) -> int:
        """The token of the next leader; 0: nobody leads."""
        return token_of(await self._actor(self._advance))

    def begin(self) -> Any:
        return self._actor.start(self._advance)

    async def until(self, token: int) -> list[int]:
        """The tokens that it sees, up to that leader's."""
        seen = [await self.next()]
        while seen[-1] != token:
            seen.append(await self.next())
        return seen


def token_of(leader: dibs.Participant | None) -> int:
    return 0 if leader is None else leader.token


def following(world: World, election: Any, name: str = "follower") -> Follower:
    return Follower(world.actor(name), election)


async def leads(actor: Actor, election: Any, timeout: float = 60) -> Any:
    hold = await actor(lambda: election.lead().acquire(timeout=timeout))
    assert hold is not None
    return hold


# Leading


async def test_one_leads_and_all_see_who(world: World) -> None:
    client, other = world.client(owner="ana's"), world.client()
    election, ana = client.election("a"), world.actor("ana")
    assert election.name == "a"
    assert repr(election).endswith(f'Election "a" on {client._core.shown}>')
    assert await world(election.leader) is None
    async with ana.entering(election.lead()) as hold:
        leader = await world(other.election("a").leader)
        assert isinstance(leader, dibs.Participant)
        assert (leader.owner, leader.token, leader.pid) == ("ana's", hold.token, os.getpid())
        assert await world(lambda: other.election("a").lead().acquire(timeout=0)) is None
    assert await world(other.election("a").leader) is None


@above_the_store
@needs(RECORDS)
async def test_a_leader_is_shown_with_all_it_says_of_itself(world: World) -> None:
    client, ana = world.client(info={"app": "shop"}), world.actor("ana")
    await leads(ana, client.election("a", info={"job": 1}))
    leader = await world(client.election("a").leader)
    assert (leader.thread, dict(leader.info)) == ("ana", {"app": "shop", "job": 1})


@above_the_store
async def test_an_election_is_a_kind_of_its_own(world: World) -> None:
    client, ana = world.client(), world.actor("ana")
    hold = await leads(ana, client.election("a"))
    info = await world.inspect(client, "a")
    assert (info.kind, info.capacity) == ("election", 1)
    assert [holder.token for holder in info.holders] == [hold.token]
    assert hold.mode == "exclusive"


@above_the_store
@pytest.mark.parametrize("kind", ["lock", pytest.param("semaphore", marks=needs(PERMITS))])
async def test_a_lock_does_not_meddle_with_an_election(world: World, kind: str) -> None:
    client, other = world.client(), world.client()
    ana = world.actor("ana")
    sizes = (1,) if kind == "semaphore" else ()
    hold = await leads(ana, client.election("a"))
    with pytest.raises(dibs.Mismatch, match="election"):
        await world(lambda: getattr(other, kind)("a", *sizes).acquire(timeout=0))
    hold.check()
    await ana(hold.release)
    held = await ana(lambda: getattr(other, kind)("a", *sizes).acquire(timeout=60))
    for question in (lambda: client.election("a").lead().acquire(timeout=0), client.election("a").leader):
        with pytest.raises(dibs.Mismatch) as caught:
            await world(question)
        assert (caught.value.name, caught.value.store) == ("a", client._core.shown)
    with pytest.raises(dibs.Mismatch):
        await following(world, client.election("a")).next()
    held.check()
    await ana(held.release)
    assert await world(client.election("a").leader) is None


@needs(FAIR)
async def test_who_came_first_leads_next(world: World) -> None:
    clients = [world.client() for _ in range(4)]
    first = await leads(world.actor("first"), clients[0].election("a"))
    pending = []
    for n, one in enumerate(clients):
        pending.append(world.actor(f"contender {n}").start(lambda one=one: one.election("a").lead().acquire()))
        await world.in_queue(clients[0], "a", n + 1)
    await world(first.release)
    last = first.token
    for one in pending:
        hold = await one
        assert hold.token > last
        assert token_of(await world(clients[0].election("a").leader)) == hold.token
        last = hold.token
        await world(hold.release)


@timed
@above_the_store
async def test_the_options_of_a_lock_are_those_of_an_election(world: World) -> None:
    client = world.client(lease=world.short, owner="the client")
    lease, max_hold = world.short + 0.1, world.short - 0.1
    ana, bob = world.actors("ana", "bob")
    lost: list[Any] = []
    options = {"lease": lease, "max_hold": max_hold, "owner": "ana's", "on_lost": lost.append}
    hold = await leads(ana, client.election("a", **options))
    assert hold.remaining <= max_hold
    leader = await bob(client.election("a").leader)
    assert leader.owner == "ana's"
    assert leader.remaining <= lease
    with pytest.raises(dibs.AcquireTimeout):
        async with bob.entering(client.election("a", timeout=0).lead()):
            pass
    assert await ana(lambda: hold.lost.wait(60))
    await eventually(lambda: lost)
    assert [(one.name, one.token) for one in lost] == [("a", hold.token)]


@above_the_store
async def test_options_are_checked_when_it_is_made(world: World) -> None:
    client = world.client()
    bad: list[dict[str, Any]] = [{"lease": 0.1}, {"timeout": -1}, {"renew": 1}, {"max_hold": "1"}, {"colour": 1}]
    for options in bad:
        with pytest.raises((ValueError, TypeError)):
            client.election("a", **options)


@timed
@above_the_store
async def test_the_loop_of_a_leader_survives_a_loss(world: World) -> None:
    """The documented loop: `while True: try: with election.lead() as hold: ... except LockLost: continue`."""
    client, ana = world.client(lease=world.short), world.actor("ana")
    election = client.election("a")
    tokens: list[int] = []
    while len(tokens) < 2:
        try:
            async with ana.entering(election.lead()) as hold:
                tokens.append(hold.token)
                await world(lambda: client.break_("a", token=tokens[-1]))
                await eventually(hold.lost.is_set)
        except dibs.LockLost:
            continue
    assert tokens == sorted(set(tokens))
    assert await world(election.leader) is None


# Following


@every_form
async def test_a_follower_sees_who_leads_now_and_then_each_change(world: World) -> None:
    """With `retry=600` a client would poll only after minutes: the change must wake it, or the store polls sooner."""
    client = world.client(retry=600)
    ana, follower = world.actor("ana"), following(world, client.election("a"))
    assert await follower.next() == 0
    for other in (world.client(), world.client(), client):
        pending = follower.begin()
        hold = await leads(ana, other.election("a"))
        assert token_of(await pending) == hold.token
        assert await following(world, client.election("a"), "a later one").next() == hold.token
        pending = follower.begin()
        await ana(hold.release)
        assert await pending is None


@timed
@needs(LEASES)
def test_a_leader_whose_lease_expired_is_seen_to_be_gone(ana: Seat, bob: Seat) -> None:
    """The leader's lease expires: it is neither renewed nor released, and no other client uses the lock."""
    _, leads = ana.joined(kind=ELECTION, lease=ana.brief)
    key, end = bob.runtime.fresh_id(), bob.now() + 50
    bob.me.inbox.expect(key)

    def follow() -> None:
        while bob.holders() == [leads.ticket]:
            step(bob.queue.await_change("a", leads.ticket, key, end))

    meanwhile(follow)
    assert bob.now() < end
    meanwhile(lambda: step(bob.queue.await_change("a", leads.ticket, key, end)))
    assert bob.now() < end, "a change before the wait must end it at once"


@needs(FAIR)
async def test_the_next_in_the_queue_is_seen_to_lead(world: World) -> None:
    client, other, onlooker = world.client(), world.client(), world.client(retry=600)
    ana, bob = world.actors("ana", "bob")
    first = await leads(ana, client.election("a"))
    follower = following(world, onlooker.election("a"))
    assert await follower.next() == first.token
    waiting = bob.start(lambda: other.election("a").lead().acquire())
    await world.in_queue(onlooker, "a", 1)
    await ana(first.release)
    second = await waiting
    assert await follower.until(second.token) in ([second.token], [0, second.token])


async def test_after_several_changes_the_last_one_seen_is_the_true_one(world: World) -> None:
    client, other = world.client(retry=600), world.client()
    ana, follower = world.actor("ana"), following(world, client.election("a"))
    assert await follower.next() == 0
    for changes in (1, 2, 5):
        tokens = []
        for _ in range(changes):  # while the follower does something else
            hold = await leads(ana, other.election("a"))
            tokens.append(hold.token)
            if len(tokens) < changes:
                await ana(hold.release)
        assert (await follower.until(hold.token))[-1] == tokens[-1]
        pending = follower.begin()
        await ana(hold.release)
        assert await pending is None, "no earlier leader comes after the last one"


async def test_changes_that_race_with_the_follower_end_in_the_true_one(world: World) -> None:
    client, other = world.client(retry=600), world.client()
    ana, follower = world.actor("ana"), following(world, client.election("a"))

    async def change() -> int:
        for _ in range(12):
            await ana((await leads(ana, other.election("a"))).release)
        return int((await leads(ana, other.election("a", owner="the last"))).token)

    changing = asyncio.ensure_future(change())
    seen: list[dibs.Participant | None] = []
    while not (seen and seen[-1] is not None and seen[-1].owner == "the last"):
        seen.append(await follower.begin())
    assert token_of(seen[-1]) == await changing
    tokens = [leader.token for leader in seen if leader is not None]
    assert tokens == sorted(set(tokens)), "each leader once, in their order"


@timed
@pytest.mark.parametrize("way", ["broken", pytest.param("expired", marks=every_form), "max_hold"])
async def test_a_leader_that_is_lost_is_seen_to_be_gone(world: World, way: str) -> None:
    options: dict[str, Any] = {
        "broken": {},
        "expired": {"lease": world.short, "renew": False},
        "max_hold": {"max_hold": world.short},
    }[way]
    client, other = world.client(retry=600), world.client()
    ana, follower = world.actor("ana"), following(world, client.election("a"))
    hold = await leads(ana, other.election("a", **options))
    assert await follower.next() == hold.token
    pending = follower.begin()
    if way == "broken":
        await world(lambda: client.break_("a", token=hold.token))
    assert await pending is None
    with suppress(dibs.LockLost):
        await ana(hold.release)


@timed
async def test_a_renewed_leader_is_no_change(world: World) -> None:
    client, other = world.client(retry=600), world.client(lease=world.short)
    ana, follower = world.actor("ana"), following(world, client.election("a"))
    hold = await leads(ana, other.election("a"))
    assert await follower.next() == hold.token
    pending = follower.begin()
    await passed(1.4 * world.short)
    assert not pending.done()
    await ana(hold.release)
    assert await pending is None


@above_the_store
async def test_waiters_are_no_change(world: World) -> None:
    client, other = world.client(retry=600), world.client()
    ana, bob, follower = world.actor("ana"), world.actor("bob"), following(world, client.election("a"))
    hold = await leads(ana, other.election("a"))
    assert await follower.next() == hold.token
    pending = follower.begin()
    for _ in range(3):
        assert await bob(lambda: other.election("a").lead().acquire(timeout=0.05)) is None
    assert not pending.done()
    await ana(hold.release)
    assert await pending is None


async def test_many_followers_all_see(world: World) -> None:
    clients = [world.client(retry=600) for _ in range(3)]
    followers = [following(world, clients[n % 3].election("a"), f"follower {n}") for n in range(9)]
    assert [await follower.next() for follower in followers] == [0] * 9
    pending = [follower.begin() for follower in followers]
    hold = await leads(world.actor("ana"), clients[0].election("a"))
    assert [token_of(one) for one in await asyncio.gather(*pending)] == [hold.token] * 9


async def test_closing_the_client_ends_the_following(world: World) -> None:
    client = world.connect(retry=600)
    followers = [following(world, client.election("a"), f"follower {n}") for n in range(3)]
    assert [await follower.next() for follower in followers] == [0] * 3
    pending = [follower.begin() for follower in followers]
    await eventually(lambda: len(client._core._watching) == 3)
    await world(client.close)
    for one in pending:
        with pytest.raises(dibs.Closed):
            await one
    with pytest.raises(dibs.Closed):
        await world(client.election("a").leader)


@on("aio")
async def test_a_cancelled_follower_leaves_nothing(world: World) -> None:
    client, other = world.client(), world.client()
    changes = client.election("a").watch()
    assert await anext(changes) is None
    task = asyncio.ensure_future(anext(changes))
    await eventually(lambda: client._core._watching)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not client._core._watching
    hold = await other.election("a").lead().acquire()
    again = client.election("a").watch()
    assert token_of(await anext(again)) == hold.token
