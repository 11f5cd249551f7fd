"""The clock of the test kit: what passes while it is moved on.

That every lock, wait and timeout runs by it, in both APIs, is shown by the contract: on memory it runs on this clock.
"""

from __future__ import annotations

import math
import threading
from datetime import timedelta
from typing import Any

import pytest

import dibs
import dibs.aio
from dibs.backends.memory import MemoryQueue
from dibs.core.rule import Standing
from dibs.testing import stage
from dibs.testing.kit import KitAioClient, KitClient
from testing.aside import PATIENCE, Aside, hold_of, until

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
    take_turns, boottime, stalled = stage.Stage.take_turns, stage.boottime, [0.0]

    def stall(of: stage.Stage) -> None:
        stalled[0] = 3 * LEASE
        take_turns(of)

    monkeypatch.setattr(stage, "boottime", lambda: boottime() + stalled[0])
    with dibs_client.lock("job") as hold:
        monkeypatch.setattr(stage.Stage, "take_turns", stall)
        dibs_client.clock.advance(10 * LEASE)
        hold.check()
        assert stalled[0]


def test_a_waiter_whose_time_was_over_before_the_lock_got_free_does_not_get_it(dibs_client: KitClient) -> None:
    """One advance over both instants: what comes first happens first."""
    hold = hold_of(dibs_client.lock("job", max_hold=60))
    waiter = Aside(lambda: dibs_client.lock("job").acquire(timeout=50))
    until(lambda: dibs_client.inspect("job").waiters)
    dibs_client.clock.advance(3600)
    assert waiter.result() is None
    assert hold.lost.is_set()


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


def test_a_renewal_that_is_overdue_is_not_passed_over(dibs_client: KitClient) -> None:
    """On a busy machine the watchdog's thread may not have run since it came due."""
    with dibs_client.lock("job", lease=20) as hold:
        (grant,) = dibs_client._core.watchdog.renewing.values()
        grant.renew_at = dibs_client.clock.now() - 1
        dibs_client._core.watchdog.schedule(grant)
        dibs_client.clock.advance(180)
        hold.check()


def test_both_apis_and_clients_of_the_application_share_one_clock(
    dibs_client: KitClient, dibs_aio_client: KitAioClient
) -> None:
    application = dibs.connect()
    assert type(application) is dibs.Client
    hold = hold_of(application.lock("job", renew=False))
    dibs_client.clock.advance(10)
    assert hold.remaining <= 17
    dibs_aio_client.clock.advance(10)
    assert hold.remaining <= 7
    assert dibs_client.clock is dibs_aio_client.clock


def test_time_is_a_number_and_does_not_run_backwards(dibs_client: KitClient) -> None:
    wrong: list[Any] = [-0.001, math.nan, math.inf, timedelta(seconds=-1), True, "60"]
    for time in wrong:
        with pytest.raises((TypeError, ValueError), match="advance"):
            dibs_client.clock.advance(time)


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
