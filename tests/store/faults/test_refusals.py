"""Errors that a real server answers with for a while: never a grant, asked again until the deadline or raised with a
clear text, and all is well once the server is. What was held is released as soon as the server lets us.

tests/store/redis/test_errors.py has every code of Redis.
"""

from __future__ import annotations

import asyncio
import re

import pytest

import dibs
from dibs.core.deadline import LEAST_PATIENCE
from dibs.testing.contract.harness import World
from lab.faults import at_message
from lab.proxy import DOWN, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from store.faults import refusals
from store.faults.kit import LONG, RENEWED, TIMEOUT, eventually, give_up, renewed, usually_sync, warm
from store.faults.refusals import Refusal
from store.faults.stores import Store, row

pytestmark = [pytest.mark.gate, pytest.mark.timeout(200)]
TEXTS: dict[Refusal, tuple[str, str]] = {
    refusals.busy: ("redis", "BUSY"),
    refusals.readonly: ("redis", "READONLY"),
    refusals.oom: ("redis", "OOM"),
    refusals.loading: ("redis", "LOADING"),
    refusals.read_only: ("postgresql", "read-only"),
    refusals.too_many_connections: ("postgresql", "too many|remaining connection"),
}


@pytest.mark.parametrize(("store", "refusal"), [row(store, refusal) for refusal, (store, _) in TEXTS.items()])
@usually_sync
async def test_refused_for_a_while(world: World, store: Store, server: Server, name: str, refusal: Refusal) -> None:
    client, ana, bob, eve = world.client(store.url(server), lease=LONG), *world.actors("ana", "bob", "eve")
    witness, held = Witness(world, name), f"{name}-held"
    await warm(world, client, name)
    hold = await eve(lambda: client.lock(held).acquire())
    told = rf'"{name}" on {store.name}://.*({TEXTS[refusal][1]}).*Next: '

    async def says_so() -> bool:
        """A server that is busy or loading may answer too late, and a connection learns of a setting by itself."""
        try:
            taken = await ana(lambda: client.lock(name).acquire(timeout=1))
        except dibs.StoreUnavailable as error:
            return re.search(told, str(error), re.DOTALL) is not None
        assert refusal is refusals.read_only, "no refusal is a grant"
        await ana(taken.release)
        return False

    managed = refusal(server)
    await asyncio.to_thread(managed.__enter__)
    try:
        await eventually(says_so)
        pending = bob.start(witness.take(client.lock(name), timeout=TIMEOUT))
        leaving = eve.start(hold.release)
        if refusal is refusals.oom:
            await leaving  # deleting is allowed
    finally:
        await asyncio.to_thread(managed.__exit__, None, None, None)
    try:
        await leaving
    except dibs.StoreUnavailable:  # it was refused for longer than a release waits; the watchdog goes on
        assert refusal is not refusals.oom
    won = await pending
    info = await world.inspect(client, name)
    assert ([holder.token for holder in info.holders], info.waiters) == ([won.token], ())
    await bob(witness.give(won))
    for freed in (name, held):
        await world.free(client, freed)
    witness.acquit()


@pytest.mark.parametrize(("store", "refusal"), [row(TEXTS[one][0], one) for one in (refusals.oom, refusals.read_only)])
@usually_sync
async def test_refused_and_then_silent(
    world: World, store: Store, server: Server, proxy: Proxy, name: str, refusal: Refusal
) -> None:
    """The error names the last answer of the server, though its last request was not answered before the deadline."""
    text = TEXTS[refusal][1]
    client, ana = world.client(store.through(server, proxy), lease=LONG), world.actor("ana")
    await warm(world, client, name)

    async def says_so() -> bool:
        silent_from = clock() + LEAST_PATIENCE / 2
        proxy.hold(DOWN, at_message(match=lambda it: text.encode() in it and clock() > silent_from), often=1000)
        try:
            taken = await ana(lambda: client.lock(name).acquire(timeout=0))
        except dibs.StoreUnavailable as error:
            return text in str(error)
        finally:
            proxy.heal()
        await ana(taken.release)
        return False

    with refusal(server):
        await eventually(says_so)


@pytest.mark.parametrize("store", [row("redis")])
@usually_sync
async def test_a_full_memory_stops_no_renewal(world: World, store: Store, server: Server, name: str) -> None:
    client, ana = world.client(store.url(server), lease=RENEWED), world.actor("ana")
    witness = Witness(world, name)
    hold = await ana(witness.take(client.lock(name)))
    with refusals.oom(server):
        await renewed(witness, hold, RENEWED)
        await give_up(witness, ana, hold)
        assert not hold.lost.is_set()
    witness.acquit()
