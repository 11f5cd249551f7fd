"""Session mode, and what servers and networks do to the connections that locks are held by, and waited for on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually, passed
from lab.faults import BlackHole, Cut, after_bytes
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.postgresql import NAME, PgBouncer, replicated
from lab.servers.programs import require
from lab.servers.supervisor import Server, until
from lab.witness import Witness, faces_of
from store.postgresql import joiner

both_faces = faces_of("postgresql", "postgresql://127.0.0.1:1/postgres?mode=session")
LEASE = 2.0
LONG = 40.0
TIME_OUT = 30.0
_HOLDERS = "application_name ~ '^dibs [1-9]'"
_WAITERS = "application_name ~ '^dibs 0'"


def session(server: Server) -> str:
    return f"{server.url()}?mode=session"


def through(proxy: Proxy) -> str:
    return f"postgresql://{NAME}:{NAME}@{ports.HOST}:{proxy.port}/postgres?mode=session"


def terminate(server: Server, whom: str) -> int:
    return int(server.ask(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {whom}"))


@both_faces
async def test_the_holders_backend_is_terminated(world: World, server: Server, name: str) -> None:
    """It is told at once, though its lease is long, and the next one has it."""
    client, other = world.client(session(server), lease=LONG), world.client(session(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    lost: list[object] = []
    hold = await ana(lambda: client.lock(name, on_lost=lost.append).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    assert await asyncio.to_thread(terminate, server, _HOLDERS) == 1
    assert await ana(lambda: hold.lost.wait(LONG / 4))
    await eventually(lambda: lost)
    won = await pending
    assert won.token > hold.token
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
    won.check()
    await bob(won.release)
    await world.free(other, name)


@both_faces
async def test_the_waiters_backend_is_terminated(world: World, server: Server, name: str) -> None:
    """It asks again, at the end of the line."""
    client, other = world.client(session(server), lease=LONG), world.client(session(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(client, name, 1)
    assert await asyncio.to_thread(terminate, server, _WAITERS) == 1
    await world.in_line(client, name, 1)
    hold.check()
    await ana(hold.release)
    won = await pending
    assert won.token > hold.token
    await bob(won.release)
    await world.free(client, name)


def test_a_loop_that_is_busy_hears_of_the_loss(server: Server, name: str) -> None:
    """Nothing of the loop runs between the end of the connection and the look at the hold."""

    async def main() -> None:
        async with dibs.aio.connect(session(server), lease=LONG) as client:
            hold = await client.lock(name).acquire()
            assert hold is not None
            end = time.monotonic() + LONG / 4
            assert terminate(server, _HOLDERS) == 1
            while not hold.lost.is_set():
                assert time.monotonic() < end, "the loss was not told"
                time.sleep(0.01)

    asyncio.run(main())


@both_faces
async def test_the_server_is_killed_and_comes_back(world: World, server: Server, name: str) -> None:
    """What was held is lost, and its holder told at once; who waits waits on, and tokens go on."""
    client, other = world.client(session(server), lease=LONG), world.client(session(server), lease=LONG, retry=TIME_OUT)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    pending = bob.start(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    await asyncio.to_thread(server.kill)
    assert await ana(lambda: hold.lost.wait(LONG / 4))
    assert not pending.done()
    await asyncio.to_thread(server.restart)
    won = await pending
    assert won.token > hold.token
    await bob(won.release)
    await world.free(other, name)


@both_faces
async def test_the_server_is_stopped_past_the_lease(world: World, server: Server, name: str) -> None:
    """The holder loses it by its own clock, before anybody else can have it."""
    client, other = world.client(session(server), lease=LEASE), world.client(session(server), lease=LEASE)
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
    await world.free(other, name)
    witness.acquit()


@both_faces
async def test_the_holder_is_cut_off(world: World, server: Server, proxy: Proxy, name: str) -> None:
    """Nothing gets through, and nobody is told: the holder loses by its own clock, and then the server ends what has
    been silent for a lease."""
    client, other = world.client(through(proxy), lease=LEASE), world.client(session(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    await passed(LEASE)
    hold.check()  # by renewals, whose answers then count
    proxy.add(BlackHole())
    await eventually(witness.watching(pending.done))
    assert hold.lost.is_set()
    won = await pending
    assert won.token > hold.token
    proxy.heal()
    await bob(witness.give(won))
    witness.acquit()


@pytest.mark.parametrize("direction", [UP, DOWN], ids=["the question", "the answer"])
@both_faces
async def test_a_connection_breaks_in_the_middle_of_a_statement(
    world: World, server: Server, proxy: Proxy, name: str, direction: object
) -> None:
    """Asked again on another connection; what the server had of the first goes with it."""
    client, other = world.client(through(proxy), lease=LONG), world.client(session(server), lease=LONG)
    ana, witness = world.actor("ana"), Witness(world, name)
    await ana((await ana(lambda: client.lock(f"{name}-before").acquire())).release)
    proxy.add(Cut(after_bytes(9)), direction)
    asked = ana.start(witness.take(client.lock(name), timeout=TIME_OUT))
    await asyncio.to_thread(proxy.wait_for, lambda: len(proxy.open_links) < len(proxy.links))
    proxy.heal()
    hold = await asked
    assert [holder.token for holder in (await world.inspect(other, name)).holders] == [hold.token]
    await ana(witness.give(hold))
    await world.free(other, name)
    witness.acquit()


@both_faces
async def test_a_release_whose_connection_breaks_frees(world: World, server: Server, proxy: Proxy, name: str) -> None:
    client, other = world.client(through(proxy), lease=LONG), world.client(session(server), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: client.lock(name).acquire())
    proxy.add(Cut(after_bytes(9)), UP)
    with pytest.raises((dibs.StoreUnavailable, dibs.LockLost)):
        await ana(hold.release)
    proxy.heal()
    won = await bob(lambda: other.lock(name).acquire(timeout=TIME_OUT))
    assert won.token > hold.token


@pytest.fixture
def process(server: Server, name: str) -> Iterator[subprocess.Popen[str]]:
    """It holds the lock, with a lease of two seconds."""
    command = [sys.executable, str(Path(joiner.__file__)), f"{session(server)}", name, str(LEASE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "held\n"
        yield made
        made.kill()


@pytest.mark.parametrize("signal", [SIGKILL, SIGSTOP], ids=["killed", "stopped past its lease"])
def test_the_holders_process(server: Server, process: subprocess.Popen[str], name: str, signal: int) -> None:
    """Killed, it is free as soon as the kernel has closed its socket; stopped, when its lease is over."""
    with dibs.connect(session(server), lease=LONG) as client:
        assert client.lock(name).acquire(timeout=0) is None
        process.send_signal(signal)
        assert client.lock(name).acquire(timeout=TIME_OUT)
        process.send_signal(SIGCONT)


def test_idle_connections_are_closed_before_the_server_has_to(server: Server, name: str) -> None:
    said = server.log().count("idle-session timeout")
    with dibs.connect(session(server), lease=10) as client:
        with client.lock(name):
            pass
        idle = f"SELECT count(*) FROM pg_stat_activity WHERE {_HOLDERS}"
        assert server.ask(idle) == "1"
        until(lambda: server.ask(idle) == "0")
        assert client.lock(name).acquire(timeout=5)
    assert server.log().count("idle-session timeout") == said


FORKING = """
import os, sys, warnings, dibs
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
client = dibs.connect(sys.argv[1], lease=2)
hold = client.lock(sys.argv[2]).acquire()
child = os.fork()
if not child:
    busy = client.lock(sys.argv[2]).acquire(timeout=0) is None and hold.lost.is_set()
    client.close()
    os._exit(0 if busy else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has what is its parent's"
assert not hold.lost.wait(4), "the child ended what is its parent's"
assert dibs.connect(sys.argv[1]).lock(sys.argv[2]).acquire(timeout=0) is None
hold.release()
"""


def test_a_forked_child_has_nothing_of_its_parents(server: Server, name: str) -> None:
    command = [sys.executable, "-c", FORKING, session(server), name]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONG)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_a_pooler_is_refused_with_the_reason(server: Server, name: str, mode: str) -> None:
    require("pgbouncer")
    with (
        Server(PgBouncer(server.port, mode=mode)) as pool,
        dibs.connect(f"{pool.url()}?mode=session") as client,
        pytest.raises(dibs.StoreError, match=r'a pooler answers.*mode="lease"') as caught,
    ):
        client.lock(name).acquire(timeout=5)
    assert not isinstance(caught.value, dibs.StoreUnavailable)


def test_a_role_without_rights_is_told_so(server: Server, name: str) -> None:
    with dibs.connect(session(server)) as client:
        client.lock(name).acquire(timeout=5)
    server.ask("CREATE ROLE plain LOGIN PASSWORD 'plain'")
    with (
        dibs.connect(f"{server.url(user='plain', password='plain')}?mode=session") as client,
        pytest.raises(dibs.StoreError, match=r"permission denied.*--ddl"),
    ):
        client.lock(name).acquire(timeout=5)


def test_a_standby_is_refused_with_the_reason(name: str) -> None:
    with replicated() as (primary, replica):
        with dibs.connect(f"{primary.url()}?mode=session") as client:
            client.lock(name).acquire(timeout=5)
        with (
            dibs.connect(f"{replica.url()}?mode=session") as client,
            pytest.raises(dibs.StoreError, match="a standby"),
        ):
            client.lock(name).acquire(timeout=5)
