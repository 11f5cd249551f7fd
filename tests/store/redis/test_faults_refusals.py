"""Every error that a real server answers with: never a grant, asked again within the deadline or raised with a clear
text, and all is well once the server is. What was held is given back as soon as the server lets us.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

import dibs
from dibs.testing.contract.harness import World, eventually
from lab.servers import ports
from lab.servers.programs import Refused, program, require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server, until
from lab.surface import clock
from lab.witness import Witness
from store.redis.faulty import both_faces, key_of, renewed, warm

LONG = 40.0
TIME_OUT = 14.0
KEYS = 150_000
PASSWORD = "open-sesame"
LEAST = "+@connection +@scripting +@pubsub +@hash +time +publish +pexpireat"
"""For users who may do less in a test than everything."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    slow = ("busy-reply-threshold 20", "key-load-delay 0", "loading-process-events-interval-bytes 1024")
    users = {"weak": f">{PASSWORD} ~other:* &* {LEAST}", "mute": f">{PASSWORD} ~* resetchannels {LEAST}"}
    with Server(Redis(*slow, persist="always", users=users)) as made:
        yield made


@contextmanager
def setting(server: Server, name: str, value: str) -> Iterator[None]:
    _, _, before = server.ask("CONFIG", "GET", name).partition("\n")
    server.ask("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        server.ask("CONFIG", "SET", name, before)


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """A script that never ends, until it is killed."""
    command = [program("redis-cli"), "-h", ports.HOST, "-p", str(server.port), "EVAL", "while true do end", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as script:
        try:
            until(lambda: answers(server, "BUSY"), what="it is busy")
            yield
        finally:
            until(lambda: server.ask("SCRIPT", "KILL") == "OK", what="the script was killed")
            script.wait(20)


@contextmanager
def readonly(server: Server) -> Iterator[None]:
    """A replica of a primary that is not there."""
    server.ask("REPLICAOF", ports.HOST, "1")
    try:
        yield
    finally:
        server.ask("REPLICAOF", "NO", "ONE")


@contextmanager
def masterdown(server: Server) -> Iterator[None]:
    with setting(server, "replica-serve-stale-data", "no"), readonly(server):
        yield


@contextmanager
def misconf(server: Server) -> Iterator[None]:
    """It cannot save: a directory is where the file would be."""
    in_the_way = server.data / "dump.rdb"
    with setting(server, "save", "3600 1"):
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir()
        try:
            server.ask("BGSAVE")
            until(lambda: answers(server, "MISCONF", "SET", "a", "1"), what="it refuses to write")
            yield
        finally:
            in_the_way.rmdir()
            server.ask("BGSAVE")
            until(lambda: server.ask("SET", "a", "1") == "OK", what="it saves again")


def noreplicas(server: Server) -> AbstractContextManager[None]:
    return setting(server, "min-replicas-to-write", "1")


def oom(server: Server) -> AbstractContextManager[None]:
    return setting(server, "maxmemory", "1")


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """Restarted, with so many keys to load, each so slowly, that it lasts for as long as a test needs."""
    server.ask("EVAL", "for n = 1, ARGV[1] do redis.call('SET', 'key-' .. n, n) end", "0", str(KEYS))
    config = server.data / "redis.conf"
    text = config.read_text()
    config.write_text(text.replace("key-load-delay 0", "key-load-delay 20"))
    try:
        server.kill()
        server.begin()
        until(lambda: answers(server, "LOADING"), what="it loads")
        yield
    finally:
        config.write_text(text)
        until(lambda: server.ask("CONFIG", "SET", "key-load-delay", "0") == "OK", what="it may hurry")
        server.serve()


def answers(server: Server, code: str, *words: str) -> bool:
    try:
        server.ask(*(words or ("GET", "a")))
    except Refused as error:
        return code in str(error)
    return False


TRIALS = 5
REFUSALS = [busy, readonly, masterdown, misconf, noreplicas, oom, loading]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.__name__)
@both_faces
async def test_refused_for_a_while(world: World, server: Server, name: str, refusal: Any) -> None:
    client, ana, bob, eve = world.client(server.url(), lease=LONG), *world.actors("ana", "bob", "eve")
    witness, held = Witness(world, name), f"{name}-held"
    await warm(world, client, name)
    hold = await eve(lambda: client.lock(held).acquire())
    code = refusal.__name__.upper()
    # While it loads it answers now and then only: the time of who asks may be over before that.
    told = rf'"{name}" on redis://.*({code}.*Next: {"|did not answer" if refusal is loading else ""})'
    managed = refusal(server)
    await asyncio.to_thread(managed.__enter__)
    try:
        if refusal is loading:
            await eventually(lambda: says(world, client, name, code))  # its old connections are gone
        for timeout in (0, 0.3):
            for _ in range(TRIALS):
                begun = clock()
                with pytest.raises(dibs.StoreUnavailable) as caught:
                    await ana(lambda timeout=timeout: client.lock(name).acquire(timeout=timeout))
                assert clock() - begun < 8, "bounded"
                if "did not answer" not in str(caught.value):  # on a busy machine even a refusal can come too late
                    break
            assert re.search(told, str(caught.value))
        pending = bob.start(witness.take(client.lock(name), timeout=TIME_OUT))
        leaving = eve.start(hold.release)
        if code == "OOM":
            await leaving  # what only deletes is allowed
    finally:
        await asyncio.to_thread(managed.__exit__, None, None, None)
    await leaving
    won = await pending
    info = await world.inspect(client, name)
    assert ([holder.token for holder in info.holders], info.waiters) == ([won.token], ())
    await bob(witness.give(won))
    for freed in (name, held):
        await world.free(client, freed)
    witness.acquit()


async def says(world: World, client: Any, name: str, code: str) -> bool:
    try:
        await world.actor("ana")(lambda: client.lock(name).acquire(timeout=0))
    except dibs.StoreUnavailable as error:
        return code in str(error)
    raise AssertionError("it was granted, or found busy")


@both_faces
async def test_a_full_memory_stops_no_renewal(world: World, server: Server, name: str) -> None:
    lease = 4.0
    client, ana = world.client(server.url(), lease=lease), world.actor("ana")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    with oom(server):
        await renewed(witness, hold, lease)
        await ana(witness.give(hold))
    witness.acquit()


@pytest.mark.parametrize("user", ["weak", "mute"])
@both_faces
async def test_without_the_right_to_it(world: World, server: Server, name: str, user: str) -> None:
    """The keys, or the channels: at once, and with the next step."""
    client, ana = world.client(server.url(user=user, password=PASSWORD), lease=LONG), world.actor("ana")
    begun = clock()
    with pytest.raises(dibs.StoreError, match=rf'"{name}" on redis://.*NOPERM.*Next: .*dibs doctor') as refused:
        await ana(lambda: client.lock(name).acquire(timeout=TIME_OUT))
    assert not isinstance(refused.value, dibs.StoreUnavailable), "asking again would help nobody"
    assert clock() - begun < TIME_OUT / 2
    assert server.ask("EXISTS", key_of(name)) == "0"


@both_faces
async def test_a_right_taken_away_from_a_holder(world: World, server: Server, name: str) -> None:
    """Its renewals are refused for good: it loses the lock by its own clock, and before the next one gets it."""
    server.ask("ACL", "SETUSER", name, "on", f">{PASSWORD}", "~*", "&*", *LEAST.split())
    weak = world.client(server.url(user=name, password=PASSWORD), lease=1)
    other = world.client(server.url(), lease=1)
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    hold = await ana(witness.take(weak.lock(name)))
    pending = bob.start(witness.take(other.lock(name), timeout=TIME_OUT))
    await world.in_line(other, name, 1)
    server.ask("ACL", "SETUSER", name, "resetkeys")
    await eventually(witness.watching(pending.done))
    won = await pending
    with pytest.raises(dibs.LockLost):
        await ana(witness.give(hold))
    await bob(witness.give(won))
    server.ask("ACL", "DELUSER", name)
    witness.acquit()
