"""What must end, ends: a call amid signals, a poke, the threads and connections of a client that is forgotten."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dibs
from dibs.runtime import threads
from dibs.testing.contract.seats import Seat
from lab import leaks
from lab.faults import BlackHole
from lab.proxy import DOWN, Proxy
from lab.servers.supervisor import Server
from lab.surface import clock
from lab.witness import fresh_name
from process.children import until
from store.redis.faulty import through

LATE = 60.0
"""Seconds; what ends of itself ends in two or three, and what does not never."""


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


class Between:
    """The poking end of a subscriber, whose other end is read whenever it can be in between."""

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
    """A byte that stays there would wake whoever reads without an end."""
    subscriber = seat.store._resources.subscriber.source
    subscriber._wakeup._poker = Between(subscriber)
    for _ in range(3):
        subscriber.poke()
        subscriber.read()
        assert subscriber._wakeup._selector.select(0) == []


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
    until(
        lambda: gc.collect() is not None and not leaks.left(before, leaks.look()), within=LATE, what="nothing is left"
    )
