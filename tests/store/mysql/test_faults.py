"""What befalls a server and the connections to it, by the lab's witness: killed and restarted, stopped past the lease,
its sessions ended, its clock set, its answers cut off or late.
"""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.clock import Clock
from lab.faults import Cut, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.mariadb import NAME
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import First, Witness, faces_of
from store.mysql.rows import Raw
from store.redis.faulty import Relay, after

both_faces = faces_of("mysql", "mysql://127.0.0.1:1/dibs")
LEASE = 3.0
LONG = 40.0
TIME_OUT = 20.0
HOUR = 3600


def through(proxy: Proxy) -> str:
    return f"mysql://{NAME}:{NAME}@{ports.HOST}:{proxy.port}/{NAME}"


def end_all(raw: Raw) -> int:
    """Every session but this one, as an administrator or a fail-over of a proxy does."""
    ended = 0
    for number, _ in raw.others():
        with suppress(Exception):
            raw.ask(f"KILL CONNECTION {number}")
            ended += 1
    return ended


@both_faces
async def test_killed_and_back(world: World, server: Server, name: str) -> None:
    """The hold goes on, the waiter keeps its place, tokens go on."""
    relay = Relay(world, name, server.url(), LONG)
    await relay.begin(TIME_OUT)
    token = relay.hold.token
    await asyncio.to_thread(server.restart)
    await relay.end()
    hold = await relay.ana(lambda: relay.client.lock(name).acquire(timeout=TIME_OUT))
    assert hold.token > token
    await relay.ana(hold.release)


@both_faces
async def test_stopped_past_the_lease(world: World, server: Server, name: str) -> None:
    """The holder knows by its own clock; once the server runs, the next one gets it."""
    client, other = world.client(server.url(), lease=LEASE), world.client(server.url(), lease=LEASE, retry=TIME_OUT)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    server.stop()
    try:
        await eventually(witness.watching(hold.lost.is_set))
    finally:
        server.resume()
    won = await bob(witness.take(other.lock(name), timeout=TIME_OUT))
    assert won.token > hold.token
    await bob(witness.give(won))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    witness.acquit()


@both_faces
async def test_its_sessions_are_ended(world: World, server: Server, name: str) -> None:
    """While one holds and another waits: nobody loses anything by it."""
    relay = Relay(world, name, server.url(), LONG)
    await relay.begin(TIME_OUT)
    with closing(Raw(server.port)) as raw:
        assert await asyncio.to_thread(end_all, raw) >= 3
    await relay.end()


@both_faces
async def test_an_answer_to_a_join_that_is_cut_off(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """It was done: asked again by the same id, it stands once."""
    client = world.client(through(proxy), lease=LONG)
    ana = world.actor("ana")
    await ana((await ana(lambda: client.lock("warm").acquire())).release)
    asked = First(lambda text: b"dibs_1_join" in text)
    proxy.add(Cut(at_message(match=lambda text: bool(asked(text)) and False)), UP)  # only looks: it never strikes
    cut = proxy.add(Cut(at_message(match=First(lambda _: asked.struck))), DOWN)
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    proxy.remove(cut)
    info = await world.inspect(world.client(server.url()), name)
    assert [holder.token for holder in info.holders] == [hold.token]
    assert not info.waiters
    await ana(hold.release)


@both_faces
async def test_a_statement_that_is_cut_off(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """In the middle, on its way there: the server never saw it whole."""
    client = world.client(through(proxy), lease=LONG)
    ana = world.actor("ana")
    await ana((await ana(lambda: client.lock("warm").acquire())).release)
    proxy.add(Cut(at_message(match=First(lambda text: b"dibs_1_join" in text))), UP)
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    await ana(hold.release)
    assert not (await world.inspect(world.client(server.url()), name)).holders


@both_faces
async def test_a_join_that_arrives_late(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Its sender gave up and gave back: when it comes through at last, nobody stands there."""
    client = world.client(through(proxy), lease=LONG)
    ana = world.actor("ana")
    await ana((await ana(lambda: client.lock("warm").acquire())).release)
    with closing(Raw(server.port)) as raw:
        before = tombs(raw)
    held = proxy.hold(UP, at_message(match=lambda text: b"dibs_1_join" in text))
    with pytest.raises(dibs.StoreUnavailable):
        await ana(lambda: client.lock(name).acquire(timeout=0))
    await asyncio.to_thread(held.await_held)
    direct = world.client(server.url())
    with closing(Raw(server.port)) as raw:
        await eventually(lambda: tombs(raw) > before)
        asked = raw.ask("SHOW GLOBAL STATUS LIKE 'Com_call_procedure'")
        held.deliver()
        await eventually(lambda: raw.ask("SHOW GLOBAL STATUS LIKE 'Com_call_procedure'") != asked)
        await eventually(lambda: not [info for _, info in raw.others() if info])
        assert raw.claims(f"dibs:{name}") == []
    hold = await ana(lambda: direct.lock(name).acquire(timeout=TIME_OUT))
    await ana(hold.release)


@both_faces
async def test_its_clock_is_set_an_hour_ahead(world: World, stepped: Server, hands: Clock, name: str) -> None:
    """The lease has run out for the server and not for its holder: both are valid, until the first one's next renewal;
    the fence, which is elsewhere, refuses the older one."""
    client, other = world.client(stepped.url(), lease=2 * LEASE), world.client(stepped.url(), lease=2 * LEASE)
    fence = world.client("memory://").fence(name)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    await ana(lambda: fence.admit(hold.token))
    hands.step(HOUR)
    won = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert won.token > hold.token
    await bob(lambda: fence.admit(won.token))
    with pytest.raises(dibs.StaleToken):
        await ana(lambda: fence.admit(hold.token))
    await eventually(hold.lost.is_set)
    await bob(won.release)


@both_faces
async def test_its_clock_is_set_an_hour_back(world: World, stepped: Server, hands: Clock, name: str) -> None:
    """Nothing lasts longer than its lease for that: who died holding is followed after one, not after an hour."""
    client, other = world.client(stepped.url(), lease=LEASE), world.client(stepped.url(), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name, renew=False).acquire())
    hands.step(-HOUR)
    begun = clock()
    won = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert clock() - begun < TIME_OUT
    assert won.token > hold.token
    await bob(won.release)


@both_faces
async def test_a_long_snapshot_elsewhere_keeps_nobody_waiting(world: World, server: Server, name: str) -> None:
    """What nobody needs stays in the tables while it is open; the walk does not pass over it."""
    client = world.client(server.url())
    ana = world.actor("ana")
    lock = client.lock(name)
    await ana((await ana(lock.acquire)).release)
    with closing(Raw(server.port)) as raw, closing(Raw(server.port)) as looks:
        raw.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        raw.ask("SELECT COUNT(*) FROM dibs_claims")
        for _ in range(150):
            await ana((await ana(lock.acquire)).release)
        before = reads(looks)
        for _ in range(10):
            await ana((await ana(lock.acquire)).release)
        each = (reads(looks) - before) / 10
        print(f"figure: rows that a pair reads behind 150 others that cannot be purged: {each:.0f}")
        assert each < 60


def tombs(raw: Raw) -> int:
    """Until when the latest of them stands."""
    return int(raw.ask("SELECT IFNULL(MAX(until), 0) FROM dibs_tombs")[0][0])


def reads(raw: Raw) -> int:
    rows = raw.ask("SHOW GLOBAL STATUS WHERE Variable_name LIKE 'Handler_read%'")
    return sum(int(value) for _, value in rows)


@both_faces
async def test_silence_for_longer_than_a_waiting_lease(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Of the waiter's connections only: it asks anew, and gets it in the end."""
    client, other = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LEASE, retry=TIME_OUT)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=2 * TIME_OUT))
    await world.in_line(client, name, 1)
    proxy.reset()
    await after(witness, 0.5)
    await ana(witness.give(hold))
    await bob(witness.give(await pending))
    witness.acquit()
