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
from dibs.testing.kit import KitClient
from testing.aside import Aside, hold_of, until

ENDS = ("released", "given_back", "lost")
OUTCOMES = ("acquired", "busy", "timed_out", "cancelled", "failed")


def test_a_free_lock_is_acquired_and_released(client: dibs.Client, seen: Seen) -> None:
    with client.lock("invoice:42", lease=20) as hold:
        acquired = seen.one("acquired")
        assert (acquired.name, acquired.kind, acquired.mode) == ("invoice:42", "mutex", "exclusive")
        assert (acquired.store, acquired.backend, acquired.owner) == ("memory://events", "memory", "ana")
        assert (acquired.token, acquired.lease, acquired.contended) == (hold.token, 20, False)
    assert seen.whats() == ["acquired", "released"]
    assert seen.one("released").token == acquired.token


def test_the_length_of_a_wait_and_of_a_hold(timed: KitClient, seen: Seen) -> None:
    now = timed._core.now
    began = now()
    with timed.lock("a"):
        assert 0 <= seen.one("acquired").waited <= now() - began
        timed.clock.advance(7)
    assert 7 <= seen.one("released").held <= now() - began


def test_a_busy_lock_is_a_busy_try_a_wait_and_a_timeout(timed: KitClient, seen: Seen) -> None:
    with timed.lock("a"):
        seen.clear()
        assert timed.lock("a").acquire(timeout=0) is None
        assert seen.whats() == ["busy"]
        seen.clear()
        waiter = Aside(lambda: timed.lock("a", timeout=60).__enter__())
        until(lambda: timed.inspect("a").waiters)
        timed.clock.advance(61)
        with pytest.raises(dibs.AcquireTimeout):
            waiter.result()
        assert [what for what in seen.whats() if what != "renewed"] == ["waiting", "timed_out"]
        assert seen.one("timed_out").contended
        assert seen.one("timed_out").waited >= 59
    assert {event.token for event in seen if event.what in ("waiting", "timed_out")} == {0}, "a place is no token"


def test_an_acquire_that_waited_is_contended(client: dibs.Client, seen: Seen) -> None:
    first = hold_of(client.lock("a"))
    waiter = Aside(lambda: client.lock("a").acquire())
    until(lambda: "waiting" in seen.whats())
    first.release()
    waiter.result()
    acquired = [event for event in seen if event.what == "acquired"]
    assert [event.contended for event in acquired] == [False, True]
    assert acquired[1].token > acquired[0].token


KINDS: list[Callable[[dibs.Client], dibs.Lock]] = [
    lambda client: client.rlock("a"),
    lambda client: client.rwlock("a").read,
    lambda client: client.rwlock("a").write,
    lambda client: client.striped("a", 4).at("key"),
    lambda client: client.election("a").lead(),
    lambda client: client.lock("a", max_hold=60),
    lambda client: client.lock("a", fair=False),
    lambda client: client.lock("a", renew=False),
    lambda client: client.semaphore("a", 5).permits(3),
]


def test_every_kind_has_one_outcome_and_one_end(client: dibs.Client, seen: Seen) -> None:
    for make in KINDS:
        seen.clear()
        with make(client):
            pass
        hold = hold_of(make(client))
        hold.release()
        hold.release()
        assert seen.whats() == ["acquired", "released"] * 2, make
    assert (seen[0].weight, seen[0].capacity, seen[0].mode) == (3, 5, "shared")
    seen.clear()
    with dibs.multi(client.lock("a"), client.lock("b")):
        pass
    assert seen.whats("a") == seen.whats("b") == ["acquired", "released"], "each member is one acquire"


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


def test_a_cancelled_task_and_a_block_that_is_interrupted(client: dibs.Client, seen: Seen) -> None:
    async def main() -> None:
        async with dibs.aio.connect("memory://events", observer=seen.append) as other:
            async with other.lock("a"):
                task = asyncio.create_task(other.lock("a").acquire())
                while "waiting" not in seen.whats():
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            assert seen.whats() == ["acquired", "waiting", "cancelled", "released"]

    asyncio.run(main())
    seen.clear()
    with suppress(KeyboardInterrupt), client.lock("a"):
        raise KeyboardInterrupt
    assert seen.whats() == ["acquired", "released"]


def test_a_loss_is_reported_once_with_its_reason(
    client: dibs.Client, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    hold = hold_of(client.lock("a"))
    client.break_("a", token=hold.token)
    assert seen.one("broken").token == hold.token
    for _ in range(2):
        with suppress(dibs.LockLost):
            hold.release()
    assert seen.whats() == ["acquired", "broken", "lost"]
    assert (seen.one("lost").reason, seen.one("lost").token) == ("broken", hold.token)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (record.name, vars(record)["event_name"], vars(record)["lock"]) == ("dibs.lock", "lost", "a")


def test_a_hold_that_ends_by_max_hold_is_lost(timed: KitClient, seen: Seen) -> None:
    hold = hold_of(timed.lock("a", max_hold=20))
    timed.clock.advance(20)
    assert hold.lost.is_set()
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert [what for what in seen.whats() if what != "renewed"] == ["acquired", "lost"]
    assert seen.one("lost").reason == "max_hold"


def test_closing_a_client_ends_its_holds(client: dibs.Client, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    client.lock("a").acquire()
    client.close()
    assert seen.whats() == ["acquired", "lost"]
    assert seen.one("lost").reason == "closed"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "it is on purpose"


def test_a_renewal_and_a_request_to_release(timed: KitClient, seen: Seen) -> None:
    with timed.lock("a", lease=30) as hold:
        timed.clock.advance(11)
        renewed = seen.one("renewed")
        assert (renewed.name, renewed.token) == ("a", hold.token)
        assert 0 < renewed.left < 30
        assert renewed.latency >= 0
        timed.lock("a").revoke()
        timed.clock.advance(11)
    assert seen.one("revoked").token == hold.token


def test_a_follower_reports_a_change_of_leader(client: dibs.Client, seen: Seen) -> None:
    election = client.election("boss")
    watch = election.watch()
    assert next(watch) is None
    with election.lead() as hold:
        leader = next(watch)
        assert leader is not None
        assert (seen.one("leader_changed").token, seen.one("leader_changed").leader) == (hold.token, leader.label)


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

    for thread in [Aside(lambda key=key: work(key)) for key in (1, 2)]:  # type: ignore[misc]
        thread.result()
    contended = [event for event in seen if event.what in OUTCOMES and event.contended]
    assert seen.whats().count("waiting") == len(contended)


def test_a_stripe_and_its_guard_are_one_hold(timed: KitClient, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    hold = hold_of(timed.striped("a", 4).at("key"))
    timed.clock.advance(25)
    assert {event.token for event in seen if event.what == "renewed"} == {hold.token}
    (guard,) = timed.inspect("a").holders
    timed.break_("a", token=guard.token)
    timed.clock.advance(11)
    assert hold.lost.is_set()
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert (seen.one("lost").token, seen.one("lost").reason) == (hold.token, "broken")
    assert [record.levelname for record in caplog.records if record.name == "dibs.lock"] == ["ERROR"]
    assert [event.what for event in seen if event.what in ENDS] == ["lost"]


def test_a_loss_during_the_report_of_an_acquire_comes_after_it(seen: Seen) -> None:
    """The observer closes the client: the hold ends while `acquired` is reported."""

    def observer(event: Event) -> None:
        if event.what == "acquired":
            Aside(client.close).result()
        seen.append(event)

    client = dibs.connect("memory://events", observer=observer)
    hold = hold_of(client.lock("a"))
    assert hold.lost.is_set()
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert seen.whats() == ["acquired", "lost"]


def test_a_client_that_is_closed_while_it_acquires_reports_a_failure(
    client: dibs.Client, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.lock("a"):
        pass
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


def test_two_threads_that_release_one_hold_report_how_it_ended(
    client: dibs.Client, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes while the first waits for the answer, which says that the hold is gone."""
    hold = hold_of(client.lock("gone"))

    def gone(*_: object) -> bool:
        hold.release()
        assert seen.whats() == ["acquired"]
        return False

    monkeypatch.setattr(client._core.opened._queue, "leave_now", gone)  # type: ignore[attr-defined]
    with pytest.raises(dibs.LockLost):
        hold.release()
    assert seen.whats() == ["acquired", "lost"]
