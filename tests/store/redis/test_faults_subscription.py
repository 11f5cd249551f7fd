"""The subscription by which waiters are woken: killed, silent, or not there yet. Nobody depends on it: waiters look,
and soon a new one wakes them again. Also scripts that the server forgot, and rights that it took.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dibs
from dibs.backends.common.subscriber import Subscriber
from dibs.backends.redis.scripts import JOIN
from dibs.core import grants
from dibs.runtime.threads import ThreadWorker
from dibs.testing.contract.harness import World
from lab import splitters
from lab.faults import BlackHole, Cut, Refuse, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.faults.kit import LONG, SHORT, TIMEOUT, Relay, both_apis, eventually, usually_sync, warm
from store.redis.faulty import asks, key_of, through

pytestmark = [pytest.mark.early, pytest.mark.timeout(150)]
PASSWORD = "open-sesame"
LEAST = "+@connection +@scripting +@pubsub +@hash +time +publish +pexpireat +get +set"
"""For users who may do less in a test than everything."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    users = {"weak": f">{PASSWORD} ~other:* &* {LEAST}", "mute": f">{PASSWORD} ~* resetchannels {LEAST}"}
    with Server(Redis(users=users)) as made:
        yield made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.resp) as made:
        yield made


@pytest.fixture
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter's looks are due every 20 s: whoever is woken long before was told."""
    monkeypatch.setattr(grants, "WAITING_LEASE", LONG)


@pytest.mark.usefixtures("_seldom")
@both_apis
async def test_messages_wake_again_after_the_subscription_was_killed(world: World, server: Server, name: str) -> None:
    """It is made anew while somebody waits, and a hand-over is told by it."""
    relay = Relay(world, name, server.url())
    await warm(world, relay.other, name)
    subscribed = set(server.ask("PUBSUB", "CHANNELS", "dibs:client:*").split())
    await relay.begin()
    assert int(server.ask("CLIENT", "KILL", "TYPE", "pubsub")) >= 1
    await eventually(lambda: subscribed <= set(server.ask("PUBSUB", "CHANNELS").split()))
    await relay.ana(relay.witness.give(relay.hold))
    await eventually(relay.pending.done, within=LONG / 4)
    await relay.end_given()


@both_apis
async def test_a_silent_subscription_costs_an_unfair_waiter_no_more_than_a_look(
    world: World, server: Server, proxy: Proxy, name: str
) -> None:
    """It asks for the lock again before anybody can know that the subscription is dead."""
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await bob((await bob(lambda: far.lock(f"{name}-warm").acquire())).release)
    mine = far._core.store._resources.subscriber.source.connection.parts[0].sock.getsockname()
    (subscription,) = [link for link in proxy.open_links if link.peer == mine]
    hold = await ana(lambda: near.lock(name).acquire())
    proxy.add(BlackHole(), DOWN, link=subscription)
    alive: list[bool] = []
    is_join = asks(name, JOIN)

    def note(message: bytes) -> bool:
        if is_join(message):
            alive.append(subscription.open)
        return False

    proxy.add(Cut(at_message(match=note)), UP)  # only looks: it never strikes
    pending = bob.start(lambda: far.lock(name, fair=False).acquire(timeout=LONG))
    await eventually(lambda: len(alive) > 1)
    assert alive[:2] == [True, True], "it waited until the subscription was made anew"
    await ana(hold.release)
    await bob((await pending).release)


@both_apis
async def test_a_server_that_answers_nobody_is_not_waited_for_each_time(world: World, proxy: Proxy, name: str) -> None:
    """A caller right after it was silent is told at once: one dead server must not take everybody's time."""
    client, ana = world.client(through(proxy), lease=LONG), world.actor("ana")
    proxy.add(BlackHole())
    told: list[str] = []
    while len(told) < 20 and "a moment ago" not in "".join(told):  # on a busy machine the moment may be over
        with pytest.raises(dibs.StoreUnavailable, match=name) as refused:
            await ana(lambda: client.lock(name).acquire(timeout=0))
        told.append(str(refused.value))
    assert ["a moment ago" in text for text in (told[0], told[-1])] == [False, True], told


@both_apis
async def test_a_first_use_whose_subscription_fails_before_its_caller_waits_for_it(
    world: World, proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again; that order is made to happen here."""
    tried = threading.Event()
    turn, ring = Subscriber._turn, ThreadWorker.ring

    async def turn_and_tell(subscriber: Subscriber[Any]) -> float | None:
        pause = await turn(subscriber)
        tried.set()
        return pause

    def ring_and_wait(worker: ThreadWorker) -> None:
        ring(worker)
        if isinstance(getattr(worker._turn, "__self__", None), Subscriber):
            assert tried.wait(TIMEOUT)

    monkeypatch.setattr(Subscriber, "_turn", turn_and_tell)
    monkeypatch.setattr(ThreadWorker, "ring", ring_and_wait)
    client, ana = world.client(through(proxy), lease=LONG), world.actor("ana")
    proxy.add(Refuse())
    pending = ana.start(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    await eventually(tried.is_set)
    proxy.heal()
    await ana((await pending).release)


@both_apis
async def test_its_scripts_are_flushed(world: World, server: Server, name: str) -> None:
    """Before a join, a renewal or look, and a leave: they are loaded anew, and nobody notices."""
    relay = Relay(world, name, server.url(), 4 * SHORT)
    await warm(world, relay.client, name)
    assert server.ask("SCRIPT", "FLUSH") == "OK"
    await relay.begin()
    assert server.ask("SCRIPT", "FLUSH") == "OK"
    deadline = relay.hold.remaining
    await eventually(relay.witness.watching(lambda: relay.hold.remaining < deadline - 1))
    await eventually(relay.witness.watching(lambda: relay.hold.remaining > deadline - 1))
    assert server.ask("SCRIPT", "FLUSH") == "OK"
    await relay.end()


@pytest.mark.parametrize("user", ["weak", "mute"])
@both_apis
async def test_without_the_right_to_it(world: World, server: Server, name: str, user: str) -> None:
    """The keys, or the channels: refused for good, and with the next step."""
    client, ana = world.client(server.url(user=user, password=PASSWORD), lease=LONG), world.actor("ana")
    with pytest.raises(dibs.StoreError, match=rf'"{name}" on redis://.*NOPERM.*Next: .*dibs doctor') as refused:
        await ana(lambda: client.lock(name).acquire(timeout=TIMEOUT))
    assert not isinstance(refused.value, dibs.StoreUnavailable), "asking again would help nobody"
    assert server.ask("EXISTS", key_of(name)) == "0"


@usually_sync
async def test_a_right_taken_away_from_a_holder(world: World, server: Server, name: str) -> None:
    """Its renewals are refused for good: it loses the lock by its own clock, before the next one gets it."""
    server.ask("ACL", "SETUSER", name, "on", f">{PASSWORD}", "~*", "&*", *LEAST.split())
    relay = Relay(world, name, server.url(user=name, password=PASSWORD), SHORT, server.url())
    await relay.begin()
    server.ask("ACL", "SETUSER", name, "resetkeys")
    await relay.end_lost()
    server.ask("ACL", "DELUSER", name)
