"""What befalls locks that are held by a connection: it is ended, cut, cut off, or the server is."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import closing, suppress

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually, passed
from lab.clock import Clock
from lab.faults import BlackHole, Cut, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers.supervisor import Server
from lab.witness import First, Witness, faces_of
from store.mysql.rows import Raw
from store.mysql.test_faults import through

both_faces = faces_of("mysql", "mysql://127.0.0.1:1/dibs?mode=session")
LEASE = 3.0
LONG = 60.0
"""A third of it, after which a renewal would find out, is longer than anything here waits."""
TIME_OUT = 30.0
SOON = 15.0
HOUR = 3600


def of(server: Server) -> str:
    return f"{server.url()}?mode=session"


def session_of(raw: Raw, name: str) -> int:
    """Who holds."""
    ((number,),) = raw.ask("SELECT session FROM dibs_held WHERE name = %s", f"dibs:{name}")
    return int(number)


@both_faces
async def test_ended_while_it_holds(world: World, server: Server, name: str) -> None:
    """It is told at once, and the next one has it."""
    client, other = world.client(of(server), lease=LONG), world.client(of(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    lost: list[int] = []
    hold = await ana(lambda: client.lock(name, on_lost=lambda one: lost.append(one.token)).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    with closing(Raw(server.port)) as raw:
        raw.ask(f"KILL CONNECTION {session_of(raw, name)}")
    await eventually(lambda: lost == [hold.token])
    with pytest.raises(dibs.LockLost):
        hold.check()
    assert (await pending).token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)


async def told_in_a_busy_loop(server: Server, name: str) -> None:
    async with dibs.aio.connect(of(server), lease=LONG) as client:
        hold = await client.lock(name).acquire()
        assert hold is not None
        with closing(Raw(server.port)) as raw:
            raw.ask(f"KILL CONNECTION {session_of(raw, name)}")
        end = time.monotonic() + SOON
        while not hold.lost.is_set():  # nothing else runs in this loop meanwhile
            assert time.monotonic() < end, "it was not told"
        with pytest.raises(dibs.LockLost):
            await hold.release()


def test_a_busy_loop_keeps_nobody_from_learning_of_it(server: Server, name: str) -> None:
    asyncio.run(told_in_a_busy_loop(server, name))


@both_faces
async def test_ended_while_it_waits(world: World, server: Server, name: str) -> None:
    """It asks again, and has it in the end."""
    client, other = world.client(of(server), lease=LONG), world.client(of(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    with closing(Raw(server.port)) as raw:
        ((first,),) = raw.ask("SELECT session FROM dibs_waits WHERE name = %s", f"dibs:{name}")
        raw.ask(f"KILL CONNECTION {first}")
        await eventually(lambda: _others_wait(raw, name, first))
    await ana(hold.release)
    won = await pending
    assert won.token > hold.token
    await bob(won.release)


def _others_wait(raw: Raw, name: str, than: int) -> bool:
    found = raw.ask("SELECT session FROM dibs_waits WHERE name = %s", f"dibs:{name}")
    return any(number != than for (number,) in found)


@both_faces
async def test_the_server_is_killed_and_back(world: World, server: Server, name: str) -> None:
    """Who held is told; who waited has it then; tokens go on."""
    client, other = world.client(of(server), lease=LONG), world.client(of(server), lease=LONG, retry=TIME_OUT)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    restarted = asyncio.create_task(asyncio.to_thread(server.restart))
    await eventually(witness.watching(hold.lost.is_set))
    await restarted
    won = await pending
    assert won.token > hold.token
    await bob(witness.give(won))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))


@both_faces
async def test_the_server_is_stopped_past_the_lease(world: World, server: Server, name: str) -> None:
    """The holder knows by its own clock; once the server runs, the next one gets it."""
    client, other = world.client(of(server), lease=LEASE), world.client(of(server), lease=LEASE, retry=TIME_OUT)
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
async def test_cut_off_from_the_server(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Nothing comes through any more, and nothing is closed: the holder's deadline passes, then the server's."""
    client = world.client(f"{through(proxy)}?mode=session", lease=LEASE)
    other = world.client(of(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    proxy.add(BlackHole(), UP, DOWN)
    won = await bob(witness.take(other.lock(name), timeout=TIME_OUT))
    assert hold.lost.is_set()
    assert won.token > hold.token
    await bob(witness.give(won))
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    witness.acquit()


@pytest.mark.parametrize("asked", [b"UPDATE dibs_held", b"dibs_1_take"])
@both_faces
async def test_cut_in_the_middle_of_taking(world: World, server: Server, proxy: Proxy, name: str, asked: bytes) -> None:
    """Whatever the server made of it ends with the connection: another one takes."""
    client = world.client(f"{through(proxy)}?mode=session", lease=LONG)
    ana = world.actor("ana")
    await ana((await ana(lambda: client.lock("warm").acquire())).release)
    proxy.add(Cut(at_message(match=First(lambda text: asked in text))), UP)
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    assert [one.token for one in (await world.inspect(client, name)).holders] == [hold.token]
    await ana(hold.release)
    assert not (await world.inspect(world.client(of(server)), name)).holders


@both_faces
async def test_the_answer_to_a_take_is_cut_off(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """It was had by a session that nobody has any more: it is free again as soon as the server sees that."""
    client = world.client(f"{through(proxy)}?mode=session", lease=LONG)
    ana = world.actor("ana")
    await ana((await ana(lambda: client.lock(name).acquire())).release)
    asked = First(lambda text: b"UPDATE dibs_held" in text)
    proxy.add(Cut(at_message(match=lambda text: bool(asked(text)) and False)), UP)  # only looks: it never strikes
    cut = proxy.add(Cut(at_message(match=First(lambda _: asked.struck))), DOWN)
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    proxy.remove(cut)
    info = await world.inspect(world.client(of(server)), name)
    assert [holder.token for holder in info.holders] == [hold.token]
    await ana(hold.release)


@both_faces
async def test_all_connections_are_reset(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Who held is told, whoever else asks has it."""
    client = world.client(f"{through(proxy)}?mode=session", lease=LONG)
    ana = world.actor("ana")
    hold = await ana(lambda: client.lock(name).acquire())
    proxy.reset()
    await eventually(hold.lost.is_set)
    again = await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    assert again.token > hold.token
    await ana(again.release)


@both_faces
async def test_its_clock_is_set(world: World, stepped: Server, hands: Clock, name: str) -> None:
    """Sessions do not end by it."""
    client, other = world.client(of(stepped), lease=LEASE), world.client(of(stepped), lease=LEASE)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    for step in (HOUR, -2 * HOUR):
        hands.step(step)
        await passed(LEASE)  # it was asked and has answered since then
        hold.check()
        assert await bob(lambda: other.lock(name).acquire(timeout=0)) is None
    await ana(hold.release)
    won = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert won.token > hold.token
    await bob(won.release)


_HOLDER = """
import sys, time, dibs
hold = dibs.connect(sys.argv[1], lease=60).lock(sys.argv[2]).acquire()
print(hold.token, flush=True)
time.sleep(600)
"""


def test_its_process_is_killed(server: Server, name: str) -> None:
    """The system closes the connection, so it is free long before the lease is over."""
    program = [sys.executable, "-c", _HOLDER, of(server), name]
    with (
        subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as holder,
        closing(dibs.connect(of(server), lease=LONG)) as client,
    ):
        assert holder.stdout is not None
        token = int(holder.stdout.readline())
        assert client.lock(name).acquire(timeout=0) is None
        holder.kill()
        won = client.lock(name).acquire(timeout=SOON)
        assert won is not None
        assert won.token > token


def test_a_forked_child_ends_nothing_of_its_parents(server: Server, name: str) -> None:
    """It closes its copies of the connections without a word, and has connections of its own."""
    with closing(dibs.connect(of(server), lease=LONG)) as client:
        hold = client.lock(name).acquire()
        child = os.fork()
        if child == 0:
            done = 1
            with suppress(BaseException):
                other = client.lock(f"{name}-child").acquire(timeout=TIME_OUT)
                done = 0 if other and client.lock(name).acquire(timeout=0) is None else 2
            os._exit(done)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hold.check()
        assert client.lock(name).acquire(timeout=0) is None
        hold.release()
        assert client.lock(f"{name}-child").acquire(timeout=TIME_OUT)


@both_faces
async def test_the_tables_are_dropped_meanwhile(world: World, server: Server, name: str) -> None:
    """What is held stays held: the server has it, not the tables; those are made anew, and tokens rise."""
    client, other = world.client(of(server), lease=LONG), world.client(of(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    with closing(Raw(server.port)) as raw:
        raw.ask("DROP DATABASE dibs")
        raw.ask("CREATE DATABASE dibs")
    assert await bob(lambda: other.lock(name).acquire(timeout=0)) is None
    await ana(hold.release)
    won = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert won.token > hold.token
    await bob(won.release)
