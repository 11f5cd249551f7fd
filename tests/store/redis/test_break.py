"""Breaking a hold: whoever broke it is told so though the first answer was lost."""

from __future__ import annotations

import pytest

import dibs
from dibs.backends.redis.scripts import EVICT
from dibs.testing.contract.harness import World
from lab.faults import Cut, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers.supervisor import Server
from lab.witness import First, fresh_name
from store.redis.faulty import asks, both_faces, seen, through


@both_faces
async def test_who_broke_it_is_told_so_though_the_first_answer_was_lost(
    world: World, server: Server, proxy: Proxy
) -> None:
    name = fresh_name()
    client, other = world.client(through(proxy)), world.client(server.url())
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: other.lock(name).acquire())
    await world.inspect(client, name)
    asked = seen(proxy, UP, asks(name, EVICT))
    answer = First(lambda message: asked.struck and message.startswith(b"*2\r\n:"))
    proxy.add(Cut(at_message(match=answer)), DOWN)
    await bob(lambda: client.break_(name, token=hold.token))
    assert answer.struck, "the first answer was lost"
    with pytest.raises(dibs.NotHeld):
        await bob(lambda: client.break_(name, token=hold.token))
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
