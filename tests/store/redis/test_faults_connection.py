"""The line to a server that serves, spoilt in every way a network can, while a claim joins, waits, is renewed, leaves.

Whatever is lost on the way: one claim stands once or not at all, a hold outlives its connections, nobody waits for a
lease where a message would have done, and nothing is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.backends.redis.ear import Ear
from dibs.core.deadline import WAITING_LEASE
from dibs.runtime.threads import ThreadWorker
from dibs.testing.contract.harness import World, eventually
from lab.faults import BlackHole, Cut, Drip, Refuse, Slam, after_bytes, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import First, Witness
from store.redis.faulty import after, alone, both_faces, give_up, in_its_place, through, warm

LEASE = 2.0
LONG = 40.0
"""A lease that does not run out in any of these tests."""
TIME_OUT = 14.0
"""Of an acquire that must succeed."""


Happened = Callable[[], bool]
"""Whether it has cost somebody something."""


def refused(proxy: Proxy) -> Happened:
    proxy.add(Refuse())
    proxy.reset()
    return lambda: not proxy.open_links


def slammed(proxy: Proxy) -> Happened:
    proxy.add(Slam())
    proxy.reset()
    return lambda: not proxy.open_links


def reset(proxy: Proxy) -> Happened:
    before = len(proxy.links)
    proxy.reset()
    return lambda: len(proxy.links) > before


def black_hole(proxy: Proxy) -> Happened:
    proxy.add(BlackHole())
    return lambda: proxy.total(UP, "dropped")[1] > 0


def half_open(proxy: Proxy) -> Happened:
    proxy.add(BlackHole(), DOWN)
    return lambda: proxy.total(DOWN, "dropped")[1] > 0


def slow_drip(proxy: Proxy) -> Happened:
    before = proxy.total(UP, "passed")[1]
    proxy.add(Drip(0.002))
    return lambda: proxy.total(UP, "passed")[1] > before + 50


def request_torn(proxy: Proxy) -> Happened:
    proxy.add(Cut(after_bytes(25)), UP)
    return lambda: proxy.total(UP, "dropped")[1] > 0


def answer_torn(proxy: Proxy) -> Happened:
    """What was asked is done, and nobody hears of it."""
    proxy.add(Cut(after_bytes(9)), DOWN)
    return lambda: proxy.total(DOWN, "dropped")[1] > 0


TROUBLES = [refused, slammed, reset, black_hole, half_open, slow_drip, request_torn, answer_torn]
Trouble = Callable[[Proxy], Happened]
EACH = pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.__name__)


@EACH
@both_faces
async def test_joining(world: World, server: Server, proxy: Proxy, name: str, trouble: Trouble) -> None:
    lease = 2 * LEASE  # a machine that stands still meanwhile does not end it
    client, other = world.client(through(proxy), lease=lease), world.client(server.url(), lease=lease)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name)
    happened = trouble(proxy)
    pending = ana.start(witness.take(client.lock(name), timeout=TIME_OUT))
    await eventually(happened)
    proxy.heal()
    hold = await pending
    await alone(world, other, name, hold)
    await after(witness, LEASE / 4)
    hold.check()
    await ana(witness.give(hold))
    await world.free(other, name)
    witness.acquit()


@EACH
@both_faces
async def test_waiting(world: World, server: Server, proxy: Proxy, name: str, trouble: Trouble) -> None:
    """It keeps its place, though its line was bad; and once it is well it need not wait for anybody's lease."""
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await warm(world, far, name)
    hold = await ana(witness.take(near.lock(name)))
    pending = bob.start(witness.take(far.lock(name), timeout=TIME_OUT))
    await world.in_line(near, name, 1)
    (waiter,) = (await world.inspect(near, name)).waiters
    begun = clock()
    happened = trouble(proxy)
    await eventually(happened)
    await ana(witness.give(hold))
    proxy.heal()
    won = await pending
    assert in_its_place(won, waiter, begun)
    await bob(witness.give(won))
    await world.free(near, name)
    witness.acquit()


@EACH
@both_faces
async def test_renewing(world: World, server: Server, proxy: Proxy, name: str, trouble: Trouble) -> None:
    lease = 2.5 * LEASE
    client, other = world.client(through(proxy), lease=lease), world.client(server.url(), lease=lease)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await warm(world, client, name)
    lost: list[Any] = []
    hold = await ana(witness.take(client.lock(name, on_lost=lost.append)))
    pending = bob.start(witness.take(other.lock(name), timeout=LONG))
    await world.in_line(other, name, 1)
    happened = trouble(proxy)
    await eventually(witness.watching(lambda: happened() and hold.remaining < 0.6 * lease))
    proxy.heal()
    await eventually(witness.watching(lambda: hold.remaining > 0.7 * lease), within=lease)
    assert (lost, pending.done()) == ([], False)
    await ana(witness.give(hold))
    won = await pending
    await bob(witness.give(won))
    witness.acquit()


@EACH
@both_faces
async def test_leaving(world: World, server: Server, proxy: Proxy, name: str, trouble: Trouble) -> None:
    """The release does not return before it is done, or says that it is not; the next one never waits for the lease."""
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await warm(world, far, name)
    hold = await ana(witness.take(far.lock(name)))
    pending = bob.start(witness.take(near.lock(name), timeout=LONG))
    await world.in_line(near, name, 1)
    happened = trouble(proxy)
    leaving = ana.start(witness.give(hold))
    await eventually(happened)
    proxy.heal()
    await leaving
    won = await pending
    assert won.token > hold.token
    await bob(witness.give(won))
    await world.free(near, name)
    witness.acquit()


@pytest.mark.parametrize("trouble", [black_hole, half_open, refused], ids=lambda trouble: trouble.__name__)
@both_faces
async def test_nothing_gets_through_for_longer_than_the_lease(
    world: World, server: Server, proxy: Proxy, name: str, trouble: Trouble
) -> None:
    """The holder's own deadline passes before the next one is served, whatever the server believes."""
    lease = LEASE / 2
    client, other = world.client(through(proxy), lease=lease), world.client(server.url(), lease=lease)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    happened = trouble(proxy)
    await eventually(witness.watching(pending.done))
    won = await pending
    assert (happened(), hold.lost.is_set()) == (True, True)
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    proxy.heal()
    await give_up(world, witness, bob, won)
    again = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    await give_up(world, witness, ana, again)
    witness.acquit()


@both_faces
async def test_a_message_is_lost_with_its_subscription(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """As soon as there is another one, all who wait look: nobody waits for the next look that is due anyway."""
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await warm(world, far, name)
    waits: list[float] = []
    for _ in range(3):  # the quickest of some: one may meet a busy machine
        hold = await ana(lambda: near.lock(name).acquire(timeout=TIME_OUT))
        lost = First(lambda message: message.startswith(b"*3\r\n$7\r\nmessage"))
        proxy.add(Cut(at_message(match=lost)), DOWN)
        pending = bob.start(lambda: far.lock(name).acquire(timeout=TIME_OUT))
        await world.in_line(near, name, 1)
        await ana(hold.release)
        freed = clock()
        won = await pending
        waits.append(clock() - freed)
        assert lost.struck
        await bob(won.release)
    assert min(waits) < 1, f"a look is due {WAITING_LEASE / 3:.1f} s after the last one, these took {waits}"


@both_faces
async def test_a_server_that_answers_nobody_is_not_waited_for_each_time(
    world: World, server: Server, proxy: Proxy, name: str
) -> None:
    """Who asks right after it was silent is told at once: one dead server must not take everybody's time."""
    client, ana = world.client(through(proxy), lease=LONG), world.actor("ana")
    proxy.add(BlackHole())
    told: list[str] = []
    for _ in range(10):  # on a busy machine the moment may be over
        with pytest.raises(dibs.StoreUnavailable, match=name) as refused:
            await ana(lambda: client.lock(name).acquire(timeout=0))
        told.append(str(refused.value))
        if "a moment ago" in told[-1]:
            break
    assert "a moment ago" in told[-1], told
    assert "a moment ago" not in told[0]


@both_faces
async def test_a_first_use_before_its_server(
    world: World, server: Server, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is tried in vain, and tried again; also if the first try is over before its caller waits for it,
    which is the order that is made to happen here."""
    tried = threading.Event()
    turn, ring = Ear._turn, ThreadWorker.ring

    async def turn_and_tell(ear: Ear) -> float | None:
        pause = await turn(ear)
        tried.set()
        return pause

    def ring_and_wait(worker: ThreadWorker) -> None:
        ring(worker)
        if isinstance(getattr(worker._turn, "__self__", None), Ear):
            assert tried.wait(TIME_OUT)

    monkeypatch.setattr(Ear, "_turn", turn_and_tell)
    monkeypatch.setattr(ThreadWorker, "ring", ring_and_wait)
    client, ana = world.client(through(proxy), lease=LONG), world.actor("ana")
    proxy.add(Refuse())
    pending = ana.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await eventually(tried.is_set)
    proxy.heal()
    hold = await pending
    await ana(hold.release)
