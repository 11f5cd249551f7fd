"""Breaking a hold: what is broken does not come back by a late copy of its join, and whoever broke it is told so though
the first answer was lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import dibs
from dibs.backends.redis.scripts import EVICT
from dibs.testing.contract.harness import World
from dibs.testing.contract.seats import Seat
from lab.faults import Cut, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.witness import First, apis_of, fresh_name
from store.redis.hashes import Raw

both_apis = apis_of("redis", "redis://127.0.0.1:1")


def test_a_late_copy_of_its_join_does_not_stand_again(seats: Callable[[], Seat], raw: Raw) -> None:
    ana, bob = seats(), seats()
    claim, standing = ana.joined(name="dibs:a")
    _, behind = bob.joined(name="dibs:a")
    assert bob.evict(standing.ticket, "dibs:a")
    assert ana.join(claim) is None
    assert [record["TICKET"] for record in raw.queue().check()] == [behind.ticket]


@both_apis
async def test_who_broke_it_is_told_so_though_the_first_answer_was_lost(
    world: World, server: Server, proxy: Proxy
) -> None:
    name = fresh_name()
    client, other = world.client(f"redis://{ports.HOST}:{proxy.port}"), world.client(server.url())
    ana, bob = world.actors("ana", "bob")
    hold = await ana(lambda: other.lock(name).acquire())
    await world.inspect(client, name)
    asked = First(lambda message: f"dibs:{name}|line".encode() in message and EVICT.sha.encode() in message)
    proxy.add(Cut(at_message(match=lambda message: asked(message) and False)), UP)  # only looks
    answer = First(lambda message: asked.struck and message.startswith(b"*2\r\n:"))
    proxy.add(Cut(at_message(match=answer)), DOWN)
    await bob(lambda: client.break_(name, token=hold.token))
    assert answer.struck, "the first answer was lost"
    with pytest.raises(dibs.NotHeld):
        await bob(lambda: client.break_(name, token=hold.token))
    with pytest.raises(dibs.LockLost):
        await ana(hold.release)
