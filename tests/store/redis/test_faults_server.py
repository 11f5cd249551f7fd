"""One server that is killed, restarted with its data and without, stopped, emptied; its subscriptions, its scripts.

What it kept it honours, also after a restart. What it lost it gives to the next one: holders overlap then, which is
counted here, and a fence that lives elsewhere refuses the older of them, because tokens rise all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.checkers import judge
from lab.crowd import Crowd
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from process.children import until
from store.redis.faulty import Relay, after, both_faces, give_up, left, loaded, specs, warm

LEASE = 2.0
LONG = 40.0
TIME_OUT = 14.0
MANY = 50
WITHIN = 20.0


@pytest.fixture(scope="module")
def keeping() -> Iterator[Server]:
    """Every write is on the disk before it is answered."""
    require("redis")
    with Server(Redis(persist="always")) as made:
        yield made


@pytest.fixture(scope="module")
def forgetting() -> Iterator[Server]:
    require("redis")
    with Server(Redis()) as made:
        yield made


@both_faces
async def test_killed_and_back_with_its_data(world: World, keeping: Server, name: str) -> None:
    """The hold goes on, the waiter keeps its place, tokens go on."""
    relay = Relay(world, name, keeping.url(), LONG)
    await relay.begin(TIME_OUT)
    await asyncio.to_thread(keeping.restart)
    await eventually(relay.witness.watching(lambda: stands(world, relay.other, name, relay.hold.token)))
    await relay.end()


async def stands(world: World, client: Any, name: str, token: int) -> bool:
    try:
        info = await world.inspect(client, name)
    except dibs.StoreUnavailable:
        return False
    return [holder.token for holder in info.holders] == [token]


def killed_and_empty(server: Server) -> None:
    server.restart(wipe=True)


def flushed(server: Server) -> None:
    assert server.ask("FLUSHALL") == "OK"


@pytest.mark.parametrize("harm", [killed_and_empty, flushed], ids=lambda harm: harm.__name__)
@both_faces
async def test_everything_is_forgotten(
    world: World, forgetting: Server, name: str, harm: Callable[[Server], None]
) -> None:
    """The next one gets the lock beside the holder, with a higher token; the holder learns of it at its next renewal,
    and the fence, which is elsewhere, refuses it."""
    client, other = world.client(forgetting.url(), lease=LONG / 4), world.client(forgetting.url(), lease=LONG / 4)
    fence = world.client("memory://").fence(name)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    await ana(lambda: fence.admit(hold.token))
    await asyncio.to_thread(harm, forgetting)
    won = await bob(witness.take(other.lock(name), timeout=TIME_OUT))
    assert won.token > hold.token, "tokens rise though nobody remembers the last one"
    witness.look()
    assert not hold.lost.is_set(), "nobody can have told it yet"
    await bob(lambda: fence.admit(won.token))
    with pytest.raises(dibs.StaleToken):
        await ana(lambda: fence.admit(hold.token))
    await eventually(witness.watching(hold.lost.is_set))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await bob(witness.give(won))
    guilty = witness.verdict().guilty
    print(f"figure: {harm.__name__}: {guilty['overlap']} overlap, the fence refused the older holder")
    assert {kind: count for kind, count in guilty.items() if count} == {"overlap": 1, "taken": 1}


@both_faces
async def test_stopped_for_three_seconds(world: World, forgetting: Server, name: str) -> None:
    """A lease that is long enough bridges it; whoever asks meanwhile waits for the answer."""
    client, other = world.client(forgetting.url(), lease=12), world.client(forgetting.url(), lease=12)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=LONG))
    await world.in_line(other, name, 1)
    await asyncio.to_thread(forgetting.stop)
    try:
        await after(witness, 3)
        hold.check()
        leaving = ana.start(witness.give(hold))
    finally:
        forgetting.resume()
    await leaving
    won = await pending
    assert won.token > hold.token
    await bob(witness.give(won))
    await world.free(other, name)
    witness.acquit()


@both_faces
async def test_stopped_for_longer_than_the_lease(world: World, forgetting: Server, name: str) -> None:
    """The holder's own deadline passes; once the server goes on the next one is served, and never both."""
    client, other = world.client(forgetting.url(), lease=1), world.client(forgetting.url(), lease=1)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    await asyncio.to_thread(forgetting.stop)
    try:
        await eventually(witness.watching(hold.lost.is_set))
        await after(witness, 0.5)
        assert not pending.done()
    finally:
        forgetting.resume()
    await eventually(witness.watching(pending.done))
    won = await pending
    assert won.token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await give_up(world, witness, bob, won)
    await world.free(other, name)
    witness.acquit()


@both_faces
async def test_its_subscriptions_are_killed_while_many_wait(world: World, forgetting: Server, name: str) -> None:
    """Whoever was freed meanwhile is found by a look, a third of a waiting lease later at most; and soon messages wake
    again: many hand-overs take less than one such third."""
    client, other = world.client(forgetting.url(), lease=LONG), world.client(forgetting.url(), lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    waits: list[float] = []

    async def wait(number: int) -> None:
        actor = world.actor(f"waiter {number}")
        won = await actor(witness.take(other.lock(name), timeout=LONG))
        waits.append(clock())
        await actor(witness.give(won))

    waiters = [asyncio.ensure_future(wait(number)) for number in range(MANY)]
    await world.in_line(client, name, MANY)
    assert int(forgetting.ask("CLIENT", "KILL", "TYPE", "pubsub")) >= 1
    await ana(witness.give(hold))
    freed = clock()
    await asyncio.wait_for(asyncio.gather(*waiters), TIME_OUT)
    first, rest = waits[0] - freed, waits[-1] - waits[0]
    print(f"figure: {MANY} waiters without a subscription: the first had it after {first:.2f} s, the rest {rest:.2f} s")
    assert first < 5 / 3 + 3, "a look at the latest, on a machine that others use too"
    assert rest < 10, f"messages, not {MANY} looks of {5 / 3:.1f} s each"
    witness.acquit()


@both_faces
async def test_messages_wake_again_after_the_subscription_was_killed(
    world: World, forgetting: Server, name: str
) -> None:
    """Once it is made anew, a hand-over is much quicker than any look."""
    client, other = world.client(forgetting.url(), lease=LONG), world.client(forgetting.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await warm(world, other, name)
    subscribed = forgetting.ask("PUBSUB", "CHANNELS", "dibs:client:*")
    assert int(forgetting.ask("CLIENT", "KILL", "TYPE", "pubsub")) >= 1
    hold = await ana(lambda: client.lock(name).acquire())
    quickest = LONG
    for _ in range(3):  # the quickest of some: one may meet a busy machine
        pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
        await world.in_line(client, name, 1)
        await eventually(lambda: set(subscribed.split()) <= set(forgetting.ask("PUBSUB", "CHANNELS").split()))
        await ana(hold.release)
        freed = clock()
        won = await pending
        quickest = min(quickest, clock() - freed)
        await bob(won.release)
        hold = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await ana(hold.release)
    assert quickest < 0.5, "by a message"


def test_its_scripts_are_flushed_under_load(forgetting: Server, tmp_path: Path) -> None:
    with Crowd(specs(forgetting.url(), tmp_path, LEASE)) as crowd:
        for _ in range(20):
            loaded(crowd, 10)
            assert forgetting.ask("SCRIPT", "FLUSH") == "OK"
            crowd.fault("script flush")
        crowd.heal()
        crowd.quiet(WITHIN)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=WITHIN, fenced=fenced, left=left(forgetting.url()))
    assert not verdict.violations, verdict.text()
    assert history.faults["script flush"] == 20


def killed_often(server: Server) -> None:
    for _ in range(3):
        server.restart()


def stopped_past_the_lease(server: Server) -> None:
    server.stop()
    begun = clock()
    until(lambda: clock() > begun + 1.5 * LEASE, what="the time that it stands still")
    server.resume()


@pytest.mark.parametrize("harm", [killed_often, stopped_past_the_lease], ids=lambda harm: harm.__name__)
def test_under_load(keeping: Server, tmp_path: Path, harm: Callable[[Server], None]) -> None:
    """Threads and tasks of three processes: with all it acknowledged on its disk nothing is violated."""
    with Crowd(specs(keeping.url(), tmp_path, LEASE)) as crowd:
        loaded(crowd)
        harm(keeping)
        crowd.heal()
        crowd.quiet(WITHIN)
        loaded(crowd)
        crowd.end()
        history, fenced = crowd.history(), crowd.fenced()
    verdict = judge(history, within=WITHIN, fenced=fenced, left=left(keeping.url()))
    print(f"figure: {harm.__name__}: {history.hand_overs} hand-overs, all served {verdict.recovery:.2f} s after")
    assert not verdict.violations, verdict.text()
