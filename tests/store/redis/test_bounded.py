"""What must end, ends: a call whose answer comes drop by drop, or amid signals; the wait for a subscription that is
never acknowledged; a poke; the threads and connections of a client that everybody has forgotten."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dibs
from dibs.backends.redis.scripts import JOIN
from dibs.runtime import threads
from dibs.testing.contract.harness import World, eventually
from dibs.testing.contract.seats import Seat
from lab import leaks
from lab.faults import BlackHole, Cut, Drip, at_message
from lab.proxy import DOWN, UP, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import fresh_name
from process.children import until
from store.redis.faulty import asks, both_faces, through

LATE = 12.0
"""Seconds; what ends of itself ends in two or three, and what does not in twenty or never."""
LONG = 60.0


@both_faces
async def test_an_answer_that_comes_drop_by_drop(world: World, proxy: Proxy) -> None:
    """No byte of it comes late; all of them do."""
    client, ana = world.client(through(proxy)), world.actor("ana")
    await ana((await ana(lambda: client.lock(fresh_name()).acquire())).release)
    proxy.add(Drip(0.4), DOWN)
    begun = clock()
    with pytest.raises(dibs.StoreUnavailable, match="did not answer in time"):
        await ana(lambda: client.lock(fresh_name()).acquire(timeout=1))
    assert clock() - begun < LATE
    proxy.heal()


@contextmanager
def ticking(every: float) -> Iterator[list[int]]:
    """A signal whose handler returns comes to this thread, again and again."""
    ticks: list[int] = []
    over, me = threading.Event(), threading.get_ident()

    def send() -> None:
        while not over.wait(every):
            signal.pthread_kill(me, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: ticks.append(1))
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield ticks
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_signals_that_keep_coming(proxy: Proxy) -> None:
    """A wait that each of them begins anew would never end; then it is broken off from outside, to fail, not hang."""
    with dibs.connect(through(proxy)) as client:
        hold = client.lock(fresh_name()).acquire()
        assert hold is not None
        hold.release()
        proxy.add(BlackHole(), DOWN)
        healing = threading.Timer(LATE, proxy.heal)
        healing.start()
        begun = clock()
        with ticking(0.3) as ticks, pytest.raises(dibs.StoreUnavailable):
            client.lock(fresh_name()).acquire(timeout=1)
        took = clock() - begun
        healing.cancel()
        healing.join()
        proxy.heal()
    assert len(ticks) > 1
    assert took < LATE


@both_faces
async def test_a_silent_subscription_costs_an_outsider_no_more_than_a_look(
    world: World, server: Server, proxy: Proxy
) -> None:
    """It asks for the lock again before anybody can know that the subscription is dead."""
    name = fresh_name()
    near, far = world.client(server.url(), lease=LONG), world.client(through(proxy), lease=LONG)
    ana, bob = world.actors("ana", "bob")
    await bob((await bob(lambda: far.lock(fresh_name()).acquire())).release)
    mine = far._core.store._kept.ear._line.sock.getsockname()
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


class Between:
    """The poking end of an ear, whose other end is read whenever it can be in between."""

    def __init__(self, ear: Any) -> None:
        self._ear, self._real = ear, ear._poked._poker

    def send(self, data: bytes) -> int:
        self._ear.read()
        sent: int = self._real.send(data)
        self._ear.read()
        return sent

    def close(self) -> None:
        self._real.close()


def test_a_poke_is_over_once_it_was_read(seat: Seat) -> None:
    """A byte that stays there would wake whoever reads without an end."""
    ear = seat.store._kept.ear
    ear._poked._poker = Between(ear)
    for _ in range(3):
        ear.poke()
        ear.read()
        assert ear._poked._selector.select(0) == []


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_forgotten_clients_leave_nothing_behind(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread and no connection; that nobody closed it Python may well say."""
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
    until(lambda: gc.collect() is not None and not leaks.left(before, leaks.look()), what="nothing is left")
