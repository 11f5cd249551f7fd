"""A blocking caller reads the socket itself; while it is stuck in a signal's handler, the session must live on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from types import FrameType

import pytest

import dibs
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from process.children import until

LEASE = 5.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper(tick_ms=200)) as server:
        yield server


def test_a_reader_that_is_stuck_in_a_handler_costs_no_session(server: Server) -> None:
    """The handler runs in the thread that leads, amidst its wait for a lock."""
    stuck: list[float] = []

    def handler(number: int, frame: FrameType | None) -> None:
        begun = time.monotonic()
        until(lambda: time.monotonic() > begun + 2 * LEASE, what="twice the time-out")  # that it is busy is the test
        stuck.append(hold.remaining)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with dibs.connect(server.url(), lease=LEASE) as client, dibs.connect(server.url(), lease=LEASE) as other:
            hold = client.lock("held").acquire()
            theirs = other.lock("wanted").acquire()
            assert hold is not None
            assert theirs is not None
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            assert client.lock("wanted").acquire(timeout=1.0) is None  # nobody gives it back
            assert stuck, "the handler did not run"
            assert stuck[0] > 0, "the session was lost while its reader was stuck"
            hold.check()
            hold.release()
            theirs.release()
    finally:
        signal.signal(signal.SIGALRM, before)
