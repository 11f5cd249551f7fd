"""The clock of the test kit: what passes while it is moved on.

That every lock, wait and timeout runs by it, in both APIs, is shown by the contract: on memory it runs on this clock.
"""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.memory import MemoryQueue
from dibs.core.rule import Standing
from dibs.testing import stage
from dibs.testing.kit import KitAioClient, KitClient
from testing.aside import PATIENCE, Aside, until

LEASE = 30.0


def test_a_running_watchdog_loses_nothing(dibs_client: KitClient) -> None:
    with dibs_client.lock("job") as hold:
        for length in (0, 1, 29, 31, timedelta(hours=2)):
            dibs_client.clock.advance(length)
            hold.check()
            assert hold.remaining > LEASE / 2
        assert dibs_client.inspect("job").holders[0].token == hold.token


def test_a_machine_that_is_slow_meanwhile_costs_no_lease(
    dibs_client: KitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = iter([3.1])
    take_turns = stage.Stage.take_turns

    def stalled(of: stage.Stage) -> None:
        time.sleep(next(stalls, 0.0))
        take_turns(of)

    monkeypatch.setattr(stage.Stage, "take_turns", stalled)
    with dibs_client.lock("job", lease=3) as hold:
        dibs_client.clock.advance(30)
        hold.check()
    assert next(stalls, None) is None


def test_hours_take_no_longer_than_its_renewals(dibs_client: KitClient) -> None:
    """Not a measurement: by fixed steps of a sixth of the lease it would be another order of magnitude, and by the
    watchdog's own steps of a second two."""
    turns = 0
    keep = dibs_client._core.watchdog.renew

    async def counted() -> float | None:
        nonlocal turns
        turns += 1
        return await keep()

    dibs_client.lock("job").acquire()
    for worker in dibs_client._kit.stage._workers:
        if worker._turn == keep:
            worker._turn = counted
    dibs_client.clock.advance(8_640)
    assert 8_640 / 10 <= turns < 8_640 / 5


def test_a_waiter_whose_time_was_over_before_the_lock_got_free_does_not_get_it(dibs_client: KitClient) -> None:
    """One advance over both instants: what comes first happens first."""
    hold = dibs_client.lock("job", max_hold=60).acquire()
    assert hold is not None
    waiter = Aside(lambda: dibs_client.lock("job").acquire(timeout=5))
    until(lambda: dibs_client.inspect("job").waiters)
    dibs_client.clock.advance(3600)
    assert waiter.result() is None
    assert hold.lost.is_set()


def test_the_step_to_a_time_out_is_exact(dibs_client: KitClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing else is due just before it: the lock gets free a hundredth of a second too late.
    A waiter's renewals come every five thirds of a second, which 61 is no multiple of."""
    frozen = stage.boottime()
    monkeypatch.setattr(stage, "boottime", lambda: frozen)
    hold = dibs_client.lock("job").acquire()
    assert hold is not None
    waiter = Aside(lambda: dibs_client.lock("job").acquire(timeout=61))
    until(lambda: dibs_client.inspect("job").waiters)
    (call,) = dibs_client._kit.stage._calls.values()
    core = hold._core
    assert core.grant is not None
    core.ends_at = core.grant.ends_at = call.deadline + 0.01
    dibs_client.clock.advance(70)
    assert waiter.result() is None


def test_no_step_is_made_while_another_thread_is_between_two_lines(
    dibs_client: KitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go = threading.Event(), threading.Event()
    join = MemoryQueue.join

    async def slow(queue: MemoryQueue, *asked: Any) -> Standing | None:
        standing = await join(queue, *asked)
        inside.set()
        go.wait(60)
        return standing

    monkeypatch.setattr(stage, "MOST_POLLS", 100_000)
    monkeypatch.setattr(MemoryQueue, "join", slow)
    caller = Aside(lambda: dibs_client.lock("job").acquire())
    assert inside.wait(PATIENCE)
    before = dibs_client.clock.now()
    mover = Aside(lambda: dibs_client.clock.advance(3600))
    mover.join(0.2)
    assert dibs_client.clock.now() - before < 3600
    go.set()
    mover.result()
    caller.result().check()
    assert dibs_client.clock.now() - before >= 3600


def test_a_thread_that_is_stuck_does_not_stop_the_clock(
    dibs_client: KitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go = threading.Event(), threading.Event()

    async def stuck(queue: MemoryQueue, *asked: Any) -> None:
        inside.set()
        go.wait(60)

    monkeypatch.setattr(stage, "MOST_POLLS", 20)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryQueue, "join", stuck)
        caller = Aside(lambda: dibs_client.lock("job").acquire(timeout=60))
        assert inside.wait(PATIENCE)
        before = dibs_client.clock.now()
        dibs_client.clock.advance(3600)
        assert dibs_client.clock.now() - before >= 3600
    go.set()
    with pytest.raises(dibs.StoreUnavailable, match="too late"):
        caller.result()


@pytest.mark.usefixtures("restless_threads")
def test_the_clock_may_be_moved_while_others_take_and_give_back(
    dibs_client: KitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lease passes between two lines of somebody's acquire: nothing is lost though an hour goes by."""
    monkeypatch.setattr(stage, "MOST_POLLS", 100_000)
    stop, done = threading.Event(), [0, 0, 0, 0]

    def work(n: int) -> None:
        while not stop.wait(0.001):  # else a step would hardly ever find all of them outside a call
            with dibs_client.lock(f"job:{n % 2}", lease=20) as hold:
                hold.check()
                done[n] += 1

    workers = [Aside(lambda n=n: work(n)) for n in range(len(done))]  # type: ignore[misc]
    while min(done) < 500 and all(worker.is_alive() for worker in workers):
        dibs_client.clock.advance(180)
    stop.set()
    for worker in workers:
        worker.result()


def test_a_renewal_that_is_overdue_is_not_passed_over(dibs_client: KitClient) -> None:
    """On a busy machine the watchdog's thread may not have run since it came due."""
    with dibs_client.lock("job", lease=20) as hold:
        (grant,) = dibs_client._core.watchdog.renewing.values()
        grant.renew_at = dibs_client.clock.now() - 1
        dibs_client._core.watchdog.schedule(grant)
        dibs_client.clock.advance(180)
        hold.check()


def test_both_faces_and_clients_of_the_application_share_one_clock(
    dibs_client: KitClient, dibs_aio_client: KitAioClient
) -> None:
    application = dibs.connect()
    assert type(application) is dibs.Client
    hold = application.lock("job", renew=False).acquire()
    assert hold is not None
    dibs_client.clock.advance(10)
    assert hold.remaining <= 17
    dibs_aio_client.clock.advance(10)
    assert hold.remaining <= 7
    assert dibs_client.clock is dibs_aio_client.clock


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        *((wrong, ValueError) for wrong in (-0.001, math.nan, math.inf, timedelta(seconds=-1))),
        (True, TypeError),
        ("60", TypeError),
    ],
)
def test_time_is_a_number_and_does_not_run_backwards(
    dibs_client: KitClient, wrong: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="advance"):
        dibs_client.clock.advance(wrong)


def test_a_named_memory_store_too_and_no_other(dibs_client: KitClient, tmp_path: object) -> None:
    named = dibs.connect("memory://jobs")
    hold = named.lock("job", renew=False).acquire()
    file = dibs.connect(f"sqlite:///{tmp_path}/locks.db")
    with file:
        real = file.lock("job", renew=False).acquire()
        assert hold is not None
        assert real is not None
        dibs_client.clock.advance(60)
        assert hold.lost.is_set()
        assert not real.lost.is_set()
        assert not dibs_client.lock("job").locked()
