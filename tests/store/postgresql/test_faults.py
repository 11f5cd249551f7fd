"""What servers and networks do while a lock is asked for, held and given back. Whatever is lost on the way: one claim
stands once or not at all, nobody overlaps, and nothing is left.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.faults import BlackHole, Cut, Match, after_bytes, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.postgresql import NAME
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import First, Witness, faces_of
from store.redis.faulty import Relay, after, alone, warm

both_faces = faces_of("postgresql", "postgresql://127.0.0.1:1/postgres")
LEASE = 2.0
LONG = 40.0
TIME_OUT = 20.0
_TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'dibs'"


def through(proxy: Proxy) -> str:
    return f"postgresql://{NAME}:{NAME}@{ports.HOST}:{proxy.port}/postgres"


def asks(name: str, verb: str) -> Match:
    """Requests that run that routine on a name: it is prepared by its name, or was before."""
    return lambda message: f"dibs:{name}\0".encode() in message + b"\0" and f"dibs_1_{verb}".encode() in message


JOINED = re.compile(rb"\d{16} \d+ s \d+ [01] ")
LEFT = re.compile(rb"\d{16} \d+ [01]C")


@both_faces
async def test_its_backends_are_terminated(world: World, server: Server, name: str) -> None:
    """Of the holder, of the waiter, of their keepers: all are made anew, and both keep their places."""
    relay = Relay(world, name, server.url(), LONG)
    await relay.begin(TIME_OUT)
    assert int(await asyncio.to_thread(server.ask, _TERMINATE)) >= 4
    await relay.end()


@both_faces
async def test_killed_and_back(world: World, server: Server, name: str) -> None:
    """What was answered is there after the crash; tokens go on."""
    relay = Relay(world, name, server.url(), LONG)
    await relay.begin(TIME_OUT)
    await asyncio.to_thread(server.restart)
    await relay.end()


@both_faces
async def test_stopped_past_the_lease(world: World, server: Server, name: str) -> None:
    """The holder loses it by its own clock, before anybody else can have it."""
    client, other = world.client(server.url(), lease=LEASE), world.client(server.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=LONG))
    await world.in_line(other, name, 1)
    await asyncio.to_thread(server.stop)
    try:
        await eventually(witness.watching(hold.lost.is_set))
        assert not pending.done()
    finally:
        await asyncio.to_thread(server.resume)
    won = await pending
    assert won.token > hold.token
    await bob(witness.give(won))
    with pytest.raises((dibs.LockLost, dibs.StoreUnavailable)):
        await ana(witness.give(hold))
    await world.free(other, name)
    witness.acquit()


def reset(proxy: Proxy) -> None:
    proxy.reset()


def black_hole(proxy: Proxy) -> None:
    proxy.add(BlackHole())


def half_open(proxy: Proxy) -> None:
    proxy.add(BlackHole(), DOWN)


def request_torn(proxy: Proxy) -> None:
    proxy.add(Cut(after_bytes(25)), UP)


def answer_torn(proxy: Proxy) -> None:
    """What was asked is done, and nobody hears of it."""
    proxy.add(Cut(after_bytes(9)), DOWN)


Trouble = Callable[[Proxy], None]
EACH = pytest.mark.parametrize(
    "trouble", [reset, black_hole, half_open, request_torn, answer_torn], ids=lambda trouble: trouble.__name__
)


@EACH
@both_faces
async def test_the_connection_is_spoilt(
    world: World, server: Server, proxy: Proxy, name: str, trouble: Trouble
) -> None:
    """While it joins, and while it leaves."""
    client, other = world.client(through(proxy), lease=LONG), world.client(server.url(), lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name)
    trouble(proxy)
    asked = ana.start(witness.take(client.lock(name), timeout=TIME_OUT))
    await asyncio.to_thread(proxy.wait_for, lambda: _has_struck(proxy, trouble))
    proxy.heal()
    hold = await asked
    await alone(world, other, name, hold)
    trouble(proxy)
    given = ana.start(witness.give(hold))
    await asyncio.to_thread(proxy.wait_for, lambda: _has_struck(proxy, trouble))
    proxy.heal()
    try:
        await given
    except dibs.StoreUnavailable:
        assert trouble in (black_hole, half_open), "a connection that is gone is made anew in time"
    await world.free(other, name)
    witness.acquit()


def _has_struck(proxy: Proxy, trouble: Trouble) -> bool:
    lost = proxy.total(UP, "dropped")[1] + proxy.total(DOWN, "dropped")[1]
    return trouble is reset or lost > 0 or len(proxy.open_links) < len(proxy.links)


@pytest.mark.parametrize("late", ["request", "answer"])
@both_faces
async def test_a_late_join(world: World, server: Server, proxy: Proxy, name: str, late: str) -> None:
    """Asked again with the same id it stands once, and is not extended by that; then the first one arrives."""
    client, other = world.client(through(proxy), lease=LONG), world.client(server.url(), lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    await warm(world, client, name)
    if late == "answer":
        held = proxy.hold(DOWN, at_message(match=First(lambda message: JOINED.search(message) is not None)))
    else:
        held = proxy.hold(UP, at_message(match=First(asks(name, "join"))))
    hold = await ana(witness.take(client.lock(name), timeout=TIME_OUT))
    assert held.messages, "it was held back"
    held.deliver()
    await after(witness, LEASE / 4)
    await alone(world, other, name, hold)
    await ana(witness.give(hold))
    await world.free(other, name)
    witness.acquit()


@both_faces
async def test_a_join_that_comes_after_the_claim_has_left(
    world: World, server: Server, proxy: Proxy, name: str
) -> None:
    client, other = world.client(through(proxy), lease=LONG), world.client(server.url(), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await warm(world, client, name)
    left = First(lambda message: LEFT.search(message) is not None)
    proxy.add(Cut(at_message(match=lambda message: bool(left(message)) and False)), DOWN)  # only looks
    held = proxy.hold(UP, at_message(match=First(asks(name, "join"))))
    with pytest.raises(dibs.StoreUnavailable, match=name):
        await ana(lambda: client.lock(name).acquire(timeout=0.2))
    assert held.messages, "it was held back"
    await eventually(lambda: left.struck)
    held.deliver()
    hold = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await alone(world, other, name, hold)
    await bob(hold.release)
    await world.free(other, name)


@both_faces
async def test_it_can_only_be_read_for_a_while(world: World, server: Server, name: str) -> None:
    """Not a grant, and no error for good: asked again until the deadline."""
    client = world.client(server.url(), lease=LONG)
    ana = world.actor("ana")

    async def refused() -> None:
        for _ in range(100):  # each connection hears of the setting by itself, sooner or later
            hold = await ana(lambda: client.lock(name).acquire(timeout=0.5))
            await ana(hold.release)

    await warm(world, client, name)
    await _setting(server, "default_transaction_read_only = on")
    try:
        with pytest.raises(dibs.StoreUnavailable, match="read-only") as caught:
            await refused()
        assert "primary" in str(caught.value)
        asked = ana.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    finally:
        await _setting(server, "default_transaction_read_only = off")
    await ana((await asked).release)


async def _setting(server: Server, setting: str) -> None:
    await asyncio.to_thread(server.ask, f"ALTER SYSTEM SET {setting}", "SELECT pg_reload_conf()")
    wanted = setting.partition(" = ")[2]
    await eventually(lambda: server.ask("SHOW default_transaction_read_only") == wanted)


def connections(server: Server, application: str) -> int:
    return int(server.ask(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{application}'"))


@both_faces
async def test_fifty_wait_and_the_holder_works_on(world: World, server: Server, name: str) -> None:
    """Of five connections none is taken by who only waits."""
    client = world.client(f"{server.url()}?connections=5&application_name={name}", lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    waiters = [world.actor(f"waiter {number}") for number in range(50)]
    asked = [waiter.start(witness.take(client.lock(name), timeout=LONG)) for waiter in waiters]
    await world.in_line(client, name, 50)
    for number in range(20):
        await ana((await ana(lambda number=number: client.lock(f"{name}-{number}").acquire(timeout=5))).release)
    assert await asyncio.to_thread(connections, server, name) <= 5 + 2, "one that listens, and the keeper's"
    await ana(witness.give(hold))
    left = dict(zip(asked, waiters, strict=True))
    while left:
        await eventually(lambda: any(pending.done() for pending in left))
        done = next(pending for pending in left if pending.done())
        await left.pop(done)(witness.give(await done))
    await world.free(client, name)
    witness.acquit()


@pytest.mark.parametrize("wake", ["messages", "looks"])
@both_faces
async def test_who_waits_asks_at_most_twice_a_second(
    world: World, server: Server, proxy: Proxy, name: str, wake: str
) -> None:
    holder, client = world.client(server.url(), lease=LONG), world.client(f"{through(proxy)}?wake={wake}", lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await warm(world, client, name)
    hold = await ana(lambda: holder.lock(name).acquire(timeout=TIME_OUT))
    pending = bob.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(holder, name, 1)
    await _pass(2.0)  # the keeper has connected by then, which is not what is counted here
    before, begun = proxy.total(UP, "passed")[0], clock()
    await _pass(3.0)
    asked, took = proxy.total(UP, "passed")[0] - before, clock() - begun
    assert asked <= 2 * took + 1
    await ana(hold.release)
    await bob((await pending).release)


async def _pass(seconds: float) -> None:
    """A length of time is the condition."""
    end = clock() + seconds
    await eventually(lambda: clock() >= end)


@both_faces
async def test_all_its_connections_are_taken(world: World, server: Server, name: str) -> None:
    """Said as it is, asked again, and no grant."""
    import psycopg

    client = world.client(server.url(), lease=LONG)
    ana = world.actor("ana")
    taken: list[Any] = []
    try:
        while True:
            taken.append(await asyncio.to_thread(psycopg.connect, server.url()))
    except psycopg.OperationalError:
        pass
    try:
        with pytest.raises(dibs.StoreUnavailable, match=r"too many|remaining connection"):
            await ana(lambda: client.lock(name).acquire(timeout=0.5))
        asked = ana.start(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    finally:
        for connection in taken:
            connection.close()
    await ana((await asked).release)
