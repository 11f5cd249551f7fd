"""The subscription that wakes waiters is killed, silent, or not there yet. Waiters poll, and soon a new one wakes them.
Pokes, and the threads and connections of a forgotten client, end."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import dibs
from dibs.core import grants
from dibs.runtime import threads
from dibs.testing.contract.harness import World
from dibs.testing.contract.seats import Seat
from lab import leaks
from lab.faults import BlackHole
from lab.proxy import Proxy
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from process.children import until
from store.faults.kit import LONG, Relay, both_apis, eventually, warm
from store.redis.kit import through


@pytest.fixture
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter polls every 20 s: one that wakes long before was told."""
    monkeypatch.setattr(grants, "WAITING_LEASE", LONG)


@pytest.mark.gate
@pytest.mark.usefixtures("_seldom")
@both_apis
async def test_messages_wake_again_after_the_subscription_was_killed(world: World, server: Server, name: str) -> None:
    relay = Relay(world, name, server.url())
    await warm(world, relay.other, name)
    subscribed = set(server.ask("PUBSUB", "CHANNELS", "dibs:client:*").split())
    await relay.begin()
    assert int(server.ask("CLIENT", "KILL", "TYPE", "pubsub")) >= 1
    await eventually(lambda: subscribed <= set(server.ask("PUBSUB", "CHANNELS").split()))
    await relay.ana(relay.witness.give(relay.hold))
    await eventually(relay.pending.done, within=LONG / 4)
    await relay.end_given()


@pytest.mark.gate
@both_apis
async def test_a_server_that_answers_nobody_is_not_waited_for_each_time(world: World, proxy: Proxy, name: str) -> None:
    """A caller right after a silence gets the error at once."""
    client, ana = world.client(through(proxy), lease=LONG), world.actor("ana")
    proxy.add(BlackHole())
    told: list[str] = []
    while len(told) < 20 and "a moment ago" not in "".join(told):  # on a busy machine the moment may be over
        with pytest.raises(dibs.StoreUnavailable, match=name) as refused:
            await ana(lambda: client.lock(name).acquire(timeout=0))
        told.append(str(refused.value))
    assert ["a moment ago" in text for text in (told[0], told[-1])] == [False, True], told


LATE = 60.0
"""Seconds. An end takes two or three; without it, nothing ends."""


class Between:
    """The poking end of a subscriber; the other end is read before and after each byte."""

    def __init__(self, subscriber: Any) -> None:
        self._subscriber, self._real = subscriber, subscriber._wakeup._poker

    def send(self, data: bytes) -> int:
        self._subscriber.read()
        sent: int = self._real.send(data)
        self._subscriber.read()
        return sent

    def close(self) -> None:
        self._real.close()


def test_a_poke_is_over_once_it_was_read(seat: Seat) -> None:
    """A byte that remains would wake the reader forever."""
    subscriber = seat.store._resources.subscriber.source
    subscriber._wakeup._poker = Between(subscriber)
    for _ in range(3):
        subscriber.poke()
        subscriber.read()
        assert subscriber._wakeup._selector.select(0) == []


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_forgotten_clients_leave_nothing_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread and no connection stays."""
    monkeypatch.setattr(threads, "LINGER", 0.05)
    gc.collect()
    before = leaks.look()

    def use() -> None:
        client = dibs.connect(server.url())
        hold = client.lock(fresh_name()).acquire()
        assert hold is not None
        hold.release()

    for _ in range(5):
        use()
    until(
        lambda: gc.collect() is not None and not leaks.left(before, leaks.look()), within=LATE, what="nothing is left"
    )
