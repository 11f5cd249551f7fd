"""The events of a client: one for the outcome of each acquire, one for the end of each hold, to every observer."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest

import dibs
import dibs.aio
from core.observed import Seen
from dibs import events
from dibs.events import Event
from dibs.testing.contract.seats import until

ENDS = ("released", "given_back", "lost")
OUTCOMES = ("acquired", "busy", "timed_out", "cancelled", "failed")
LEASE = 6.0
"""Seconds; the first renewal is after a third of them. A machine that stands still for three seconds loses nothing."""
SHORT = 1.0
"""A timeout, in seconds. If it has passed before the request is sent, nobody waits."""


def test_a_free_lock_is_acquired_and_released(client: dibs.Client, seen: Seen) -> None:
    with client.lock("invoice:42", lease=20) as hold:
        acquired = seen.one("acquired")
        assert (acquired.name, acquired.kind, acquired.mode) == ("invoice:42", "mutex", "exclusive")
        assert (acquired.store, acquired.backend, acquired.owner) == ("memory://events", "memory", "ana")
        assert (acquired.token, acquired.lease, acquired.contended) == (hold.token, 20, False)
        assert 0 <= acquired.waited < 20
    assert seen.whats() == ["acquired", "released"]
    assert seen.one("released").token == acquired.token
    assert 0 <= seen.one("released").held < 20


def test_a_busy_lock_is_a_busy_try_a_wait_and_a_timeout(client: dibs.Client, seen: Seen) -> None:
    with client.lock("a"):
        seen.clear()
        assert client.lock("a").acquire(timeout=0) is None
        assert seen.whats() == ["busy"]
        seen.clear()
        assert client.lock("a").acquire(timeout=SHORT) is None
        assert seen.whats() == ["waiting", "timed_out"]
        assert seen.one("timed_out").contended
        assert seen.one("timed_out").waited >= SHORT
        with pytest.raises(dibs.AcquireTimeout), client.lock("a", timeout=SHORT):
            pass
        assert seen.whats() == ["waiting", "timed_out"] * 2


def test_an_acquire_that_waited_is_contended(client: dibs.Client, seen: Seen) -> None:
    first = client.lock("a").acquire()
    assert first is not None
    waiter = threading.Thread(target=lambda: client.lock("a").acquire())
    waiter.start()
    until(lambda: "waiting" in seen.whats())
    first.release()
    waiter.join()
    acquired = [event for event in seen if event.what == "acquired"]
    assert [event.contended for event in acquired] == [False, True]
    assert acquired[1].token > acquired[0].token


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.rlock("a"),
        lambda client: client.rwlock("a").read,
        lambda client: client.rwlock("a").write,
        lambda client: client.semaphore("a", 3),
        lambda client: client.striped("a", 4).at("key"),
        lambda client: client.election("a").lead(),
        lambda client: client.lock("a", max_hold=60),
        lambda client: client.lock("a", fair=False),
        lambda client: client.lock("a", renew=False),
    ],
)
def test_every_kind_has_one_outcome_and_one_end(
    client: dibs.Client, seen: Seen, make: Callable[[dibs.Client], dibs.Lock]
) -> None:
    with make(client):
        pass
    hold = make(client).acquire()
    assert hold is not None
    hold.release()
    hold.release()
    assert seen.whats() == ["acquired", "released"] * 2


def test_a_semaphore_tells_its_permits(client: dibs.Client, seen: Seen) -> None:
    with client.semaphore("pool", 5).permits(3):
        pass
    assert (seen.one("acquired").weight, seen.one("acquired").capacity, seen.one("acquired").mode) == (3, 5, "shared")


def test_each_member_of_a_multi_lock_is_one_acquire(client: dibs.Client, seen: Seen) -> None:
    with dibs.multi(client.lock("a"), client.lock("b")):
        pass
    assert seen.whats("a") == seen.whats("b") == ["acquired", "released"]


def test_an_error_is_a_failure(client: dibs.Client, seen: Seen) -> None:
    with client.lock("a"):
        seen.clear()
        with pytest.raises(dibs.Mismatch) as raised:
            client.semaphore("a", 3).acquire()
        assert seen.whats() == ["failed"]
        assert isinstance(seen.one("failed").error, dibs.Mismatch)
        assert str(seen.one("failed").error) == str(raised.value)
    client.close()
    with pytest.raises(dibs.Closed):
        client.lock("b").acquire()
    assert seen.whats("b") == ["failed"]


def test_a_cancelled_task_and_one_that_is_cancelled_in_its_block(seen: Seen) -> None:
    async def main() -> None:
        async with dibs.aio.connect("memory://events", observer=seen.append) as client:
            async with client.lock("a"):
                task = asyncio.create_task(client.lock("a").acquire())
                while "waiting" not in seen.whats():
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            assert seen.whats() == ["acquired", "waiting", "cancelled", "released"]

    asyncio.run(main())


def test_a_loss_is_told_once_with_its_reason(client: dibs.Client, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    hold = client.lock("a").acquire()
    assert hold is not None
    client.break_("a", token=hold.token)
    assert seen.one("broken").token == hold.token
    with pytest.raises(dibs.LockLost):
        hold.release()
    with suppress(dibs.LockLost):
        hold.release()
    assert seen.whats() == ["acquired", "broken", "lost"]
    assert (seen.one("lost").reason, seen.one("lost").token) == ("broken", hold.token)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (record.name, vars(record)["event_name"], vars(record)["lock"]) == ("dibs.lock", "lost", "a")


def test_a_hold_that_ends_by_max_hold_is_lost(client: dibs.Client, seen: Seen) -> None:
    hold = client.lock("a", max_hold=0.05).acquire()
    assert hold is not None
    assert hold.lost.wait()
    until(lambda: "lost" in seen.whats())
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert seen.whats() == ["acquired", "lost"]
    assert seen.one("lost").reason == "max_hold"


def test_a_hold_of_a_thread_that_raised_is_given_back_or_released(client: dibs.Client, seen: Seen) -> None:
    with suppress(KeyboardInterrupt), client.lock("a"):
        raise KeyboardInterrupt
    assert seen.whats() == ["acquired", "released"]


def test_closing_a_client_ends_its_holds(client: dibs.Client, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    client.lock("a").acquire()
    client.close()
    assert seen.whats() == ["acquired", "lost"]
    assert seen.one("lost").reason == "closed"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "it is on purpose"


def test_a_renewal_and_a_request_to_release(client: dibs.Client, seen: Seen) -> None:
    with client.lock("a", lease=LEASE) as hold:
        until(lambda: "renewed" in seen.whats())
        renewed = next(event for event in seen if event.what == "renewed")
        assert (renewed.name, renewed.token) == ("a", hold.token)
        assert 0 < renewed.left < LEASE
        assert renewed.latency >= 0
        client.lock("a").revoke()
        until(lambda: "revoked" in seen.whats())
    assert seen.one("revoked").token == hold.token


def test_a_follower_tells_a_leader_change(client: dibs.Client, seen: Seen) -> None:
    election = client.election("boss")
    watch = election.watch()
    assert next(watch) is None
    with election.lead() as hold:
        leader = next(watch)
        assert leader is not None
        assert (seen.one("leader_changed").token, seen.one("leader_changed").leader) == (hold.token, leader.label)


def test_threads_that_compete_have_one_outcome_and_one_end_each(client: dibs.Client, seen: Seen) -> None:
    def work() -> None:
        for _ in range(25):
            if (hold := client.lock("a").acquire(timeout=0.002)) is not None:
                hold.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whats = seen.whats()
    assert sum(what in OUTCOMES for what in whats) == 150
    assert whats.count("acquired") == sum(what in ENDS for what in whats)
    tokens = [event.token for event in seen if event.what == "acquired"]
    assert len(set(tokens)) == len(tokens)


def test_the_page_and_the_module_have_the_same_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "production" / "events.md"
    rows = {
        source: {
            what: (when.strip(), fields.replace("`", "").strip())
            for what, when, fields in re.findall(r"^\| `(\w+)` +\|(.+)\|(.+)\|$", text, re.MULTILINE)
        }
        for source, text in (("page", page.read_text()), ("module", Path(str(events.__file__)).read_text()))
    }
    assert rows["page"] == rows["module"]
    assert list(rows["page"]) == list(get_args(events.What))


def test_two_stripes_of_one_client_report_no_wait_for_their_guard(client: dibs.Client, seen: Seen) -> None:
    """Both threads need the guard; one of them waits until the other has it."""
    barrier = threading.Barrier(2)

    def work(key: int) -> None:
        for number in range(20):
            barrier.wait()
            with client.striped(f"a{number}", 64).at(key):
                pass

    threads = [threading.Thread(target=work, args=(key,)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contended = [event for event in seen if event.what in OUTCOMES and event.contended]
    assert seen.whats().count("waiting") == len(contended)


def test_a_stripe_is_renewed_as_one_hold(client: dibs.Client, seen: Seen) -> None:
    with client.striped("a", 4, lease=LEASE).at("key") as hold:
        until(lambda: "renewed" in seen.whats())
        with client.lock("later", lease=LEASE):
            until(lambda: "renewed" in seen.whats("later"))
    assert {event.token for event in seen if event.what == "renewed" and event.name != "later"} == {hold.token}


def test_a_loss_during_the_report_of_an_acquire_comes_after_it(seen: Seen) -> None:
    """The observer closes the client: the hold ends while `acquired` is being told."""

    def observer(event: Event) -> None:
        if event.what == "acquired":
            closing = threading.Thread(target=client.close)
            closing.start()
            closing.join()
        seen.append(event)

    client = dibs.connect("memory://events", observer=observer)
    hold = client.lock("a").acquire()
    assert hold is not None
    assert hold.lost.is_set()
    assert seen.whats() == ["acquired", "lost"]
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert seen.whats() == ["acquired", "lost"]


def test_a_client_that_is_closed_while_it_acquires_reports_a_failure(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dibs.connect("memory://events", observer=seen.append) as client:
        with client.lock("a"):
            seen.clear()
        seen.clear()
        registry = client._core.registry
        take_now = registry.grantor._queue.take_now  # type: ignore[union-attr]

        def closed_meanwhile(*args: object) -> object:
            registry.closed = True
            return take_now(*args)

        monkeypatch.setattr(registry.grantor._queue, "take_now", closed_meanwhile)  # type: ignore[union-attr]
        with pytest.raises(dibs.Closed):
            client.lock("a").acquire()
        assert seen.whats() == ["failed"]
        registry.closed = False


def test_a_stripe_is_lost_with_its_guard(client: dibs.Client, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    hold = client.striped("a", 4).at("key").acquire()
    assert hold is not None
    (guard,) = client.inspect("a").holders
    client.break_("a", token=guard.token)
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert (seen.one("lost").token, seen.one("lost").reason) == (hold.token, "broken")
    assert [record.levelname for record in caplog.records if record.name == "dibs.lock"] == ["ERROR"]
    assert [event.what for event in seen if event.what in ENDS] == ["lost"]


def test_a_stripe_whose_guard_is_broken_is_lost_at_once(client: dibs.Client, seen: Seen) -> None:
    hold = client.striped("a", 4, lease=LEASE).at("key").acquire()
    assert hold is not None
    (guard,) = client.inspect("a").holders
    client.break_("a", token=guard.token)
    until(lambda: "lost" in seen.whats())
    assert hold.lost.is_set()


def test_two_threads_that_release_one_hold_report_how_it_ended(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes while the first waits for the answer, which says that the hold is gone."""
    with dibs.connect("memory://", observer=seen) as client:
        hold = client.lock("a").acquire()
        assert hold is not None

        def gone(*_: object) -> bool:
            hold.release()
            assert seen.whats() == ["acquired"]
            return False

        monkeypatch.setattr(client._core.opened._queue, "leave_now", gone)  # type: ignore[attr-defined]
        with pytest.raises(dibs.LockLost):
            hold.release()
    assert seen.whats() == ["acquired", "lost"]


def test_a_place_in_the_queue_is_no_token(client: dibs.Client, seen: Seen) -> None:
    with client.lock("a"):
        seen.clear()
        assert client.lock("a").acquire(timeout=0.05) is None
    assert {event.token for event in seen if event.what != "released"} == {0}
