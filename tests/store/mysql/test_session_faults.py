"""Session mode on MySQL, where its own statements are cut and its tables dropped. What befalls sessions of every server
is in tests/store/faults.
"""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from dibs.testing.contract.harness import World
from lab.faults import Cut, Direction, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.mariadb import NAME
from lab.servers.supervisor import Server
from lab.witness import First
from store.faults.kit import LONG, TIMEOUT, both_apis, usually_sync
from store.faults.stores import seen
from store.mysql.rows import Raw

QUICK = b"dibs[0-9a-f]{60}.dibs[0-9a-f]{60}"
"""The last values of the prepared statement that takes a user lock: its name, twice."""


def of(server: Server) -> str:
    return f"{server.url()}?mode=session"


@pytest.mark.parametrize(
    ("statement", "direction"),
    [(QUICK, UP), (b"dibs_2_take", UP), (QUICK, DOWN)],
    ids=["quick take", "take", "reply to quick take"],
)
@both_apis
async def test_cut_in_the_middle_of_taking(
    world: World, server: Server, proxy: Proxy, name: str, statement: bytes, direction: Direction
) -> None:
    """Whatever the server made of it ends with the connection: another one takes."""
    url = f"mysql://{NAME}:{NAME}@{ports.HOST}:{proxy.port}/{NAME}?mode=session"
    client, ana = world.client(url, lease=LONG), world.actor("ana")
    warm = name if statement is QUICK else "warm"  # a name that is known is taken by one statement
    await ana((await ana(lambda: client.lock(warm).acquire(timeout=TIMEOUT))).release)
    strike = First(lambda text: re.search(statement, text, re.DOTALL))
    if direction is DOWN:
        asked = seen(proxy, strike)
        strike = First(lambda _: asked.struck)
    cut = proxy.add(Cut(at_message(match=strike)), direction)
    hold = await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    proxy.remove(cut)
    assert strike.struck
    other = world.client(of(server))
    assert [one.token for one in (await world.inspect(other, name)).holders] == [hold.token]
    await ana(hold.release)
    await world.free(other, name)


@usually_sync
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
    won = await bob(lambda: other.lock(name).acquire(timeout=TIMEOUT))
    assert won.token > hold.token
    await bob(won.release)
