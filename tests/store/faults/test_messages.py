"""One message is lost, torn or late: the request of a verb, or its reply. Whatever was sent again meanwhile, a claim
stands once, is not extended, and does not come back once it has left.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import dibs
from dibs.core import grants
from dibs.core.deadline import WAITING_LEASE
from dibs.testing.contract.harness import World
from lab.faults import Cut, at_message
from lab.proxy import DOWN, UP, Holding, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import First, Witness
from store.faults.kit import (
    LONG,
    RENEWED,
    TIMEOUT,
    Relay,
    alone,
    both_apis,
    eventually,
    passes,
    renewed,
    usually_sync,
    warm,
)
from store.faults.stores import LEASED, SURVIVING, Store, on, row, seen
from store.faults.troubles import amid

pytestmark = [pytest.mark.gate, pytest.mark.timeout(150)]
TOLD = {"redis": rb"\*3\r\n\$7\r\nmessage", "postgresql": rb"A.{8}dibs_[0-9a-f]{32}\0"}
"""How a message that wakes a waiter begins, where it has a connection of its own."""
PAST = "request, past its deadline"


def cases(*wanted: tuple[str, str]) -> pytest.MarkDecorator:
    """Verbs and spots, on each store: but ZooKeeper's sessions are kept by pings."""
    rows = [row(name, *case) for name in SURVIVING for case in wanted if name != "zookeeper" or case[0] != "renew"]
    return pytest.mark.parametrize(("store", "verb", "spot"), rows)


def strike(store: Store, proxy: Proxy, name: str, verb: str, spot: str) -> First:
    """Cut the connection there, once."""
    if spot.endswith("request"):
        match, direction = First(store.asks(name, verb)), UP
    else:
        match, direction = store.answers(proxy, name, verb), DOWN
    proxy.add(Cut(amid(match) if spot.startswith("torn") else at_message(match=match)), direction)
    return match


def hold_back(store: Store, proxy: Proxy, name: str, verb: str, spot: str) -> Holding:
    if spot.startswith("reply"):
        return proxy.hold(DOWN, at_message(match=store.answers(proxy, name, verb)))
    return proxy.hold(UP, at_message(match=First(store.asks(name, verb))))


async def play(world: World, store: Store, relay: Relay, name: str, verb: str, harm: Any, check: Any) -> None:
    """Take, renew and give, where the verb is harmed; `check` what came of it."""
    await warm(world, relay.client, name)
    if verb == "join":
        harmed = harm()
        relay.hold = await relay.ana(relay.witness.take(relay.client.lock(name), timeout=TIMEOUT))
        await alone(world, relay.other, name, relay.hold)
        await check(harmed)
        await alone(world, relay.other, name, relay.hold)
        await relay.wait()
        await relay.end()
        return
    await relay.begin()
    harmed = harm()
    if verb == "renew":
        await renewed(relay.witness, relay.hold, RENEWED)
        await check(harmed)
        await relay.end()
        return
    try:
        await relay.ana(relay.witness.give(relay.hold))
    except dibs.StoreUnavailable:
        late = isinstance(harmed, Holding) and store.name == "zookeeper"
        assert late, "only a session is silent for longer than a release waits"
    won = await relay.pending
    await check(harmed)
    await alone(world, relay.other, name, won)
    await relay.end_given()


@cases(("join", "torn request"), ("join", "reply"), ("leave", "reply"), ("leave", "request"), ("renew", "reply"))
@both_apis
async def test_lost(world: World, store: Store, server: Server, proxy: Proxy, name: str, verb: str, spot: str) -> None:
    """It is sent again with the same id, on another connection."""
    lease = RENEWED if verb == "renew" else store.lease
    relay = Relay(world, name, store.through(server, proxy), lease, store.url(server))

    async def struck(match: First) -> None:
        await eventually(relay.witness.watching(lambda: match.struck))

    await play(world, store, relay, name, verb, lambda: strike(store, proxy, name, verb, spot), struck)


@cases(("join", "request"), ("join", "reply"), ("renew", "request"), ("leave", "request"))
@usually_sync
async def test_late(world: World, store: Store, server: Server, proxy: Proxy, name: str, verb: str, spot: str) -> None:
    """Its sender gives the connection up and asks on another one; then the first message arrives, and changes
    nothing."""
    lease = RENEWED if verb == "renew" else store.lease
    relay = Relay(world, name, store.through(server, proxy), lease, store.url(server))

    async def delivered(held: Holding) -> None:
        await eventually(relay.witness.watching(lambda: held.messages))
        held.deliver()
        await passes(relay.witness, 1.0)

    await play(world, store, relay, name, verb, lambda: hold_back(store, proxy, name, verb, spot), delivered)


@on(tuple(TOLD))
@usually_sync
async def test_a_message_is_lost_with_its_connection(
    world: World, store: Store, server: Server, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All waiters look as soon as there is a new connection: none waits for its next regular look."""
    monkeypatch.setattr(grants, "WAITING_LEASE", LONG)  # it is due every 20 s
    relay = Relay(world, name, store.url(server), LONG, store.through(server, proxy))
    await warm(world, relay.other, name)
    await relay.begin()
    shape = re.compile(TOLD[store.name], re.DOTALL)
    lost = First(lambda message: shape.match(message) is not None)
    proxy.add(Cut(at_message(match=lost)), DOWN)
    await relay.ana(relay.witness.give(relay.hold))
    await eventually(relay.pending.done, within=LONG / 4)
    assert lost.struck
    await relay.end_given()


@pytest.mark.parametrize(
    ("store", "spot"), [*(row(name, "request") for name in LEASED), row("redis", PAST), row("mysql", PAST)]
)
@usually_sync
async def test_a_join_that_arrives_after_its_leave(
    world: World, store: Store, server: Server, proxy: Proxy, name: str, spot: str
) -> None:
    """Its caller gives up, and the leave overtakes it on another connection. Then it arrives, and makes no ghost: the
    leave left a tombstone, and the request names the instant until which it counts."""
    client, other = world.client(store.through(server, proxy), lease=LONG), world.client(store.url(server), lease=LONG)
    ana, bob, witness = *world.actors("ana", "bob"), Witness(world, name)
    await warm(world, client, name)
    left = seen(proxy, store.answers(proxy, name, "leave"), DOWN)
    held = proxy.hold(UP, at_message(match=store.asks(name, "join")), often=100)
    with pytest.raises(dibs.StoreUnavailable, match=name):
        await ana(lambda: client.lock(name).acquire(timeout=0.2))
    await eventually(lambda: held.messages and left.struck)
    if spot == PAST:
        gone = clock() + WAITING_LEASE + 0.5  # of the tombstone, which the next use of the name removes
        await eventually(lambda: clock() > gone)
        await warm(world, other, name)
    held.deliver()
    hold = await bob(witness.take(other.lock(name), timeout=TIMEOUT))
    await alone(world, other, name, hold)
    await bob(witness.give(hold))
    await world.free(other, name)
