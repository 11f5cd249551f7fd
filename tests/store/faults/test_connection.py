"""The network harms every connection of a client to a server that serves, while a claim joins, waits, is renewed and
leaves.

Whatever is lost on the way: a claim is in the queue once or not at all, a hold survives its connections where the store
promises that, nobody waits for a lease where a message would do, and nothing is left.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import dibs
from dibs.core.deadline import RELEASE_PATIENCE
from dibs.testing.contract.harness import World
from lab.proxy import Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import Witness
from store.faults.kit import (
    LONG,
    SHORT,
    TIMEOUT,
    Relay,
    alone,
    both_apis,
    eventually,
    usually_sync,
    warm,
    why_lost,
)
from store.faults.stores import SERVERS, SESSION, SURVIVING, Store, row
from store.faults.troubles import Trouble, black_hole, half_open, refused, reply_torn, request_torn, reset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def each(stores: tuple[str, ...], *troubles: Trouble, marks: Any = ()) -> list[Any]:
    return [row(name, trouble, marks=marks) for name in stores for trouble in troubles]


@pytest.mark.parametrize(
    ("store", "trouble"),
    [
        *each(SURVIVING, reset),
        *each(SURVIVING, refused, half_open, marks=[pytest.mark.gate]),
        *each(SESSION, reset, request_torn, reply_torn, marks=[pytest.mark.gate]),
    ],
)
@both_apis
async def test_joining_and_leaving(
    world: World, store: Store, server: Server, proxy: Proxy, name: str, trouble: Trouble
) -> None:
    """An acquire gets its lock, a release is done when it returns, and the next one never waits for the lease. In
    session mode the result of a broken statement ends with its connection."""
    lease = store.lease if trouble in (black_hole, half_open) else LONG
    client, other = (
        world.client(url, lease=lease, retry=TIMEOUT) for url in (store.through(server, proxy), store.url(server))
    )
    ana, bob = world.actors("ana", "bob")
    witness = Witness(world, name)
    await warm(world, client, name)
    happened = trouble(proxy)
    asked = ana.start(witness.take(client.lock(name), timeout=TIMEOUT))
    await eventually(happened)
    proxy.heal()
    hold = await asked
    await alone(world, other, name, hold)
    waiting = bob.start(witness.take(other.lock(name), timeout=TIMEOUT))
    await world.in_queue(other, name, 1)
    happened = trouble(proxy)
    leaving, begun = ana.start(witness.give(hold)), clock()
    await eventually(lambda: happened() or (hold.lost.is_set() and not store.lasts))
    proxy.heal()
    try:
        await leaving
    except dibs.StoreUnavailable:
        # ZooKeeper does not look again for the node of a doubtful join if the connection breaks while it leaves.
        excused = trouble in (black_hole, half_open) or not store.lasts or store.name == "zookeeper"
        assert excused or clock() - begun > RELEASE_PATIENCE / 2, "a broken connection is replaced in time"
    except dibs.LockLost:
        assert not store.lasts, "only a session's claim ends with its connection"
    won = await waiting
    assert won.token > hold.token
    await bob(witness.give(won))
    await world.free(other, name)
    verdict = witness.verdict()
    # The server ends a session's lock with its connection, and the holder hears of it a moment later.
    assert {one.kind for one in verdict.violations} <= (set() if store.lasts else {"taken", "overlap"}), verdict.text()


@pytest.mark.gate
@pytest.mark.parametrize(("store", "trouble"), each(SURVIVING, refused, black_hole))
@usually_sync
async def test_waiting(world: World, store: Store, server: Server, proxy: Proxy, name: str, trouble: Trouble) -> None:
    """The lock is released while the waiter hears nothing. It keeps its place, and waits for nobody's lease."""
    relay = Relay(world, name, store.url(server), store.lease, store.through(server, proxy))
    await warm(world, relay.other, name)
    await relay.begin()
    happened = trouble(proxy)
    await eventually(happened)
    await relay.ana(relay.witness.give(relay.hold))
    proxy.heal()
    await relay.end_given()


@pytest.mark.gate
@pytest.mark.parametrize(("store", "trouble"), [*each(SERVERS, black_hole), *each(SURVIVING, half_open)])
@usually_sync
async def test_past_the_lease(
    world: World, store: Store, server: Server, proxy: Proxy, name: str, trouble: Trouble
) -> None:
    """Nothing gets through. The holder's own deadline passes before the next one is served, whatever the server
    believes."""
    relay = Relay(world, name, store.through(server, proxy), SHORT, store.url(server))
    await relay.begin()
    happened = trouble(proxy)
    await eventually(relay.witness.watching(lambda: happened() and relay.hold.lost.is_set()))
    assert why_lost(relay.hold) in ("unreachable", "standstill"), "the second: the machine was taken away"
    if trouble is half_open:  # the server still hears the renewals, or a session's pings
        proxy.heal()
    await relay.end_lost()
    proxy.heal()
    again = await relay.ana(relay.witness.take(relay.client.lock(name), timeout=TIMEOUT))
    with suppress(dibs.LockLost):  # a short lease, on a machine that stands still
        await relay.ana(relay.witness.give(again))
    relay.witness.acquit()
