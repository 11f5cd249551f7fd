"""Observers and the log: who is told, how often, and that neither can harm a client."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

import pytest

import dibs
import dibs.aio
from core.observed import Seen
from dibs.core.reporter import Reporter
from dibs.events import Event
from dibs.testing.contract.seats import until
from dibs.testing.kit import KitClient
from testing.aside import hold_of


def test_a_slow_log_handler_delays_neither_on_lost_nor_the_next_holder(client: dibs.Client) -> None:
    reached, lost, go_on = threading.Event(), threading.Event(), threading.Event()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reached.set()
            go_on.wait()

    handler = Slow(logging.ERROR)
    logging.getLogger("dibs.lock").addHandler(handler)
    try:
        client.lock("a", max_hold=0.05, lease=600, on_lost=lambda _: lost.set()).acquire()
        assert reached.wait(60)
        assert lost.wait(60)
        with dibs.connect("memory://events") as other:
            assert other.lock("a").acquire(timeout=60) is not None
    finally:
        go_on.set()
        logging.getLogger("dibs.lock").removeHandler(handler)


def test_an_observer_of_all_clients_sees_old_and_new_ones_until_it_stops(client: dibs.Client) -> None:
    everywhere = Seen()
    stop = dibs.observe(everywhere.append)
    try:
        with client.lock("old"):
            pass
        with dibs.connect("memory://events-2") as other, other.lock("new"):
            pass
        assert everywhere.whats("old") == everywhere.whats("new") == ["acquired", "released"]
    finally:
        stop()
    stop()
    everywhere.clear()
    with client.lock("old"):
        pass
    with dibs.connect("memory://events-3") as third, third.lock("new"):
        pass
    assert everywhere == []


def test_a_hold_from_before_the_observer_is_not_reported() -> None:
    with dibs.connect("memory://events") as client, client.lock("a"):
        late = Seen()
        stop = dibs.observe(late.append)
    stop()
    assert late == []


def test_an_observer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def broken(event: Event) -> None:
        calls.append(event.what)
        raise ValueError("my metrics are broken")

    with dibs.connect("memory://events", observer=broken) as client:
        for _ in range(10):
            with client.lock("a"):
                pass
    assert calls == ["acquired", "released"] * 10
    records = [record for record in caplog.records if record.name == "dibs.observer"]
    assert records, "it is logged"
    assert len(records) <= 3, "and does not flood the log"
    assert "my metrics are broken" in caplog.text


class AsyncCall:
    async def __call__(self, event: Event) -> None: ...


@pytest.mark.parametrize("wrong", ["print", asyncio.sleep, AsyncCall()])
def test_an_observer_is_a_plain_function(wrong: object) -> None:
    with pytest.raises(TypeError, match="an observer is a plain function"):
        dibs.observe(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an observer is a plain function"):
        dibs.connect("memory://events", observer=wrong)  # type: ignore[arg-type]


def test_acquires_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")
    with dibs.connect("memory://events") as client, client.lock("a"):
        pass
    assert caplog.records == []
    caplog.set_level(logging.DEBUG, "dibs")
    with dibs.connect("memory://events") as client, client.lock("a"):
        assert client.lock("a").acquire(timeout=0) is None
    named = [vars(record)["event_name"] for record in caplog.records if record.name == "dibs.lock"]
    assert named == ["acquired", "busy", "released"]
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_a_child_made_by_fork_says_nothing_about_the_holds_of_its_parent(client: dibs.Client, seen: Seen) -> None:
    """Not even when it leaves the block of its parent."""
    child, status = -1, 1
    try:
        with client.lock("a"):
            seen.clear()
            child = os.fork()
            if child == 0:
                with client.lock("b"):
                    pass
    except dibs.LockLost:
        status = 0 if seen.whats() == seen.whats("b") == ["acquired", "released"] else 2
        if child != 0:
            raise
    finally:
        if child == 0:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen.whats() == ["released"]


def test_threads_that_see_the_store_come_back_report_it_once(seen: Seen) -> None:
    """`now` gives another thread its turn, between any two steps."""

    def now() -> float:
        if inside:
            inside.pop()
            reporter.answered()
        return 1.0

    inside: list[bool] = []
    reporter = Reporter("memory://events", "memory", now, seen.append)
    reporter.unreachable(dibs.StoreUnavailable("no answer"))
    inside.append(True)
    reporter.answered()
    assert seen.whats() == ["store_unreachable", "store_back"]


def test_a_log_handler_that_raises_changes_nothing(seen: Seen) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise ValueError("my handler is broken")

    lost = threading.Event()
    logger, handler = logging.getLogger("dibs"), Broken()
    logger.addHandler(handler)
    try:
        with dibs.connect("memory://events", observer=seen.append) as client:
            hold_of(client.lock("a", max_hold=0.05, on_lost=lambda _: lost.set()))
            assert lost.wait(20)
            until(lambda: "lost" in seen.whats())
            with client.election("boss").lead():
                pass
    finally:
        logger.removeHandler(handler)
    assert seen.whats() == ["acquired", "lost", "acquired", "released"]


def test_a_short_wait_is_not_logged_as_a_long_one(client: dibs.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")
    with client.lock("a"):
        assert client.lock("a", owner="ben").acquire(timeout=0.05) is None
    assert caplog.records == []


def test_a_free_acquire_without_observers_logs_that_the_store_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")
    with dibs.connect("memory://events") as client:
        for _ in range(2):
            with client.lock("a"):
                pass
            client._core.reporter.unreachable(dibs.StoreUnavailable("no answer"))
    named = [vars(record)["event_name"] for record in caplog.records]
    assert named == ["store_unreachable", "store_back", "store_unreachable"]


@pytest.mark.parametrize("at", ["acquired", "released"])
def test_an_interrupt_in_an_observer_leaves_no_lock_behind(seen: Seen, at: str) -> None:
    def interrupted(event: Event) -> None:
        seen.append(event)
        if event.what == at:
            raise KeyboardInterrupt

    with dibs.connect("memory://events", observer=interrupted) as client:
        with pytest.raises(KeyboardInterrupt), client.lock("a"):
            pass
        with dibs.connect("memory://events") as other:
            assert other.lock("a").acquire(timeout=20) is not None
    assert seen.whats() == ["acquired", "given_back" if at == "acquired" else "released"]


def test_an_observer_that_ends_its_thread_leaves_renewals_alone(dibs_client: KitClient, seen: Seen) -> None:
    def observer(event: Event) -> None:
        seen.append(event)
        if event.what == "renewed" and seen.whats().count("renewed") == 1:
            raise SystemExit

    client = dibs_client.another(observer=observer)
    for number in range(3):
        client.lock(f"a{number}").acquire()
    dibs_client.clock.advance(21)
    assert {event.name for event in seen if event.what == "renewed"} == {"a0", "a1", "a2"}


def test_an_observation_ends_alone(client: dibs.Client, seen: Seen) -> None:
    """The same function is also the client's own observer, and is registered twice."""
    observer = client._core.reporter.observers[0]
    first, second = dibs.observe(observer), dibs.observe(observer)
    for stop in (first, second):
        stop()
        with client.lock("a"):
            pass
        assert seen.whats() == ["acquired", "released"]
        seen.clear()


def test_a_store_that_comes_and_goes_does_not_flood_the_log(seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dibs")
    reporter = Reporter("memory://events", "memory", lambda: 1.0, seen.append)
    for _ in range(50):
        reporter.unreachable(dibs.StoreUnavailable("no answer"))
        reporter.answered()
    assert seen.whats() == ["store_unreachable", "store_back"] * 50
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 3


def test_the_end_of_a_permit_of_a_rate_limit_is_logged_at_debug(
    timed: KitClient, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    timed.semaphore("rate", 3, renew=False).acquire()
    timed.clock.advance(31)
    assert seen.one("lost").reason == "expired"
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


def test_the_lifeline_of_a_guard_reports_nothing(client: dibs.Client, seen: Seen) -> None:
    """It is asked for while the registry's mutex is held; a log handler or an observer may take any time."""
    hold = hold_of(client.lock("a", lease=600))
    assert hold._core.grant is not None
    hold._core.grant.until = 0.0  # past, and the watchdog does not know
    assert hold._core.still() is None
    assert seen.whats() == ["acquired"]
    assert hold.lost.is_set()
    assert seen.whats() == ["acquired", "lost"]
