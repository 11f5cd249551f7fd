"""A client that listens is rung by many at once: none of those is kept, as all who wait would be with them."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from dibs.backends.mysql import subscriber
from dibs.core.queue import YOURS
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.servers.supervisor import until
from store.mysql.rows import Raw

pytestmark = pytest.mark.gate

RINGING, TIMES = 4, 300
KEPT = 1.8
"""Seconds. A ring that is kept takes 2 s; the machine may stand still for as long now and then."""
SPREAD = 0.002
"""Seconds between two rings, at most: so that they come at any moment of its sleep."""


def ring(raw: Raw, client: bytes, seed: int) -> int:
    """How many of them were kept."""
    moments, pause, kept = random.Random(seed), threading.Event(), 0
    for _ in range(TIMES):
        pause.wait(moments.uniform(0, SPREAD))
        begun = time.monotonic()
        raw.ask("CALL dibs_2_wake(%s)", client)
        kept += time.monotonic() - begun > KEPT
    return kept


@pytest.mark.timeout(150)
def test_who_rings_is_not_kept(seats: Callable[[], Seat], raw: Raw) -> None:
    """Asleep in MariaDB's SLEEP, one in a hundred of them took two seconds, and all others meanwhile."""
    ana, bob = seats(), seats()
    held, _ = ana.joined(lease=900)
    waiting, _ = bob.joined(lease=900, waiting=900, by=60)
    with closing(Raw(raw.connection.port)) as onlooker, ThreadPoolExecutor(RINGING + 1) as pool:
        heard = pool.submit(lambda: step(bob.queue.watch(waiting, bob.now() + 120)))
        until(lambda: [info for _, info in onlooker.others() if info and "WAIT(" in info])
        ringing = [Raw(raw.connection.port) for _ in range(RINGING)]
        pending = [pool.submit(ring, raw, bob.me.id, seed) for seed, raw in enumerate(ringing)]
        kept = sum(one.result(100) for one in pending)
        for one_raw in ringing:
            one_raw.close()
        ana.leave(held)
        assert heard.result(60) is not None
    print(f"figure: {kept} of {RINGING * TIMES} rings were kept")
    assert kept < RINGING * TIMES / 400, "one in a hundred would be"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_parent_listening(
    seats: Callable[[], Seat], raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share the kernel's side of a selector: a child that removes a socket from it removes it for both."""
    monkeypatch.setattr(subscriber, "PATIENCE", 120)  # the listener does not wake by itself
    ana, bob = seats(), seats()
    held, _ = ana.joined(lease=900)
    waiting, _ = bob.joined(lease=900, waiting=900, by=60)
    with closing(Raw(raw.connection.port)) as onlooker, ThreadPoolExecutor(1) as pool:
        heard = pool.submit(lambda: step(bob.queue.watch(waiting, bob.now() + 60)))
        until(lambda: [info for _, info in onlooker.others() if info and "WAIT(" in info])
        pid = os.fork()
        if pid == 0:
            bob.store.after_fork(child=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        ana.leave(held)
        assert heard.result(90) is YOURS
