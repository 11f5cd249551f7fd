"""The pool of connections: whatever happens to a caller, no connection and no seat is lost, or dialled twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dibs.backends.common import connections
from dibs.backends.common.connections import Begun, Connection, Pool
from dibs.backends.common.round_trip import RoundTrip
from dibs.core.queue import Unsent
from dibs.errors import Closed, StoreUnavailable
from process.children import until

now = time.monotonic
SOON = 30.0


class Wire(Connection):
    """To nowhere."""

    is_open = True

    def is_reusable(self) -> bool:
        return self.is_open

    def is_stale(self) -> bool:
        return False

    def close(self) -> None:
        self.is_open, self.seat = False, None


class Dialling:
    """How connections are made, and when."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.may_go_on = threading.Semaphore(0)
        self.failure: StoreUnavailable | None = None

    def __call__(self, until: float, begun: Begun) -> Wire:
        self.made.append(None)
        assert self.may_go_on.acquire(timeout=SOON)
        if self.failure is not None:
            raise self.failure
        return Wire(now)


@pytest.fixture
def dialling() -> Dialling:
    return Dialling()


@pytest.fixture
def pool(dialling: Dialling) -> Pool[Wire]:
    return Pool(dialling, now, RoundTrip(), "nowhere", limit=1, keep=1)


def in_a_thread(work: Callable[[], object]) -> list[Any]:
    """Run it in a thread; the list gets its result or exception."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def test_a_dial_survives_its_caller_and_is_not_begun_twice(pool: Pool[Wire], dialling: Dialling) -> None:
    for _ in range(3):
        with pytest.raises(Unsent, match="no connection to nowhere in time"):
            pool.take(now())
    dialling.may_go_on.release()
    assert pool.take(now() + SOON).is_open
    assert len(dialling.made) == 1


def test_a_dial_whose_thread_has_not_begun_does_not_count_as_a_connection_in_use(
    pool: Pool[Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connections, "_thread", SimpleNamespace(allocate_lock=threading.Lock, start_new_thread=lambda *_: None)
    )
    with pytest.raises(Unsent, match="no connection to nowhere in time"):
        pool.take(now())


def test_a_crowd_of_callers_starts_one_thread_at_a_time(pool: Pool[Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(
        connections,
        "_thread",
        SimpleNamespace(allocate_lock=threading.Lock, start_new_thread=lambda *_: started.append(_)),
    )
    together = threading.Barrier(20)
    found = [in_a_thread(lambda: (together.wait(), pool.take(now()))) for _ in range(20)]
    until(lambda: all(found), what="all have given up")
    assert len(started) <= 5, "a thread that does not begin in time is not waited for"


def test_one_that_arrives_while_nobody_waits_becomes_idle(pool: Pool[Wire], dialling: Dialling) -> None:
    while not dialling.made:  # on a busy machine a caller may be gone before a thread dials for it
        with pytest.raises(Unsent):
            pool.take(now())
    dialling.may_go_on.release()
    until(lambda: pool.idle, what="it has arrived")


@pytest.mark.parametrize("end", [lambda one: one.close(), lambda one: None], ids=["closed", "dropped"])
def test_the_seat_comes_back(pool: Pool[Wire], dialling: Dialling, end: Callable[[Wire], None]) -> None:
    """An interrupt may drop a connection between any two lines."""
    dialling.may_go_on.release(3)
    for _ in range(3):
        end(pool.take(now() + SOON))
    assert len(dialling.made) == 3


def test_callers_queue_for_the_only_one(pool: Pool[Wire], dialling: Dialling) -> None:
    dialling.may_go_on.release()
    one = pool.take(now() + SOON)
    with pytest.raises(Unsent, match="in use"):
        pool.take(now())
    found = in_a_thread(lambda: pool.take(now() + SOON))
    pool.give(one)
    until(lambda: found, what="it was handed over")
    assert found == [one]


def test_a_failure_is_told_at_once_and_for_a_moment(
    pool: Pool[Wire], dialling: Dialling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST", SOON)
    dialling.failure = Unsent("nobody there", step="look")
    found = in_a_thread(lambda: pool.take(now() + SOON))
    dialling.may_go_on.release()
    until(lambda: found, what="it was told")
    assert str(found[0]).startswith("nobody there")
    with pytest.raises(Unsent, match="a moment ago"):
        pool.take(now() + SOON)
    assert len(dialling.made) == 1


def test_a_caller_out_of_time_is_told_why_the_last_dial_failed(
    pool: Pool[Wire], dialling: Dialling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST", 1e-6)
    dialling.failure = Unsent("too many connections", step="wait")
    dialling.may_go_on.release()
    with pytest.raises(Unsent, match=r"^too many connections"):
        pool.take(now() + SOON)
    with pytest.raises(Unsent, match="too many connections, a moment ago"):  # the next dial does not come to an end
        pool.take(now())


def test_a_waiter_hears_of_close_and_what_arrives_then_is_closed(pool: Pool[Wire], dialling: Dialling) -> None:
    found = in_a_thread(lambda: pool.take(now() + SOON))
    until(lambda: dialling.made, what="it dials")
    pool.close()
    until(lambda: found, what="it was told")
    assert isinstance(found[0], Closed)
    dialling.may_go_on.release()
    until(lambda: not pool._under_way, what="it has arrived")
    assert not pool.idle


def test_the_round_trip_follows_what_is_measured() -> None:
    trip = RoundTrip()
    trip.add(0.0002)
    assert (trip.attempt, trip.least) == (2.0, 0.05)
    for _ in range(50):
        trip.add(1.5)
    assert 1.5 <= trip.expected < 1.7
    assert trip.attempt == trip.least >= 3.0
    for _ in range(100):
        trip.add(0.0002)
    assert (trip.attempt, trip.least) == (2.0, 0.05)
