"""Why a hold was lost. The contract suite shows it on every store; here are the reasons that need our own clock."""

# ruff: noqa: PT012  (a `with` that is left by an error is what is tested)

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

import dibs
import dibs.aio
from core.watchdog_harness import Harness
from dibs.info import Break
from dibs.monitor import break_log
from dibs.testing.kit import KitClient
from testing.aside import hold_of


def idle_harness() -> Harness:
    harness = Harness()
    harness.turn()
    return harness


def test_renewals_that_fail_until_the_deadline_are_an_unreachable_store() -> None:
    harness = idle_harness()
    grant, began = harness.grant(), harness.time
    harness.error = dibs.StoreUnavailable("no answer from cache:6379")
    for second in range(1, 28):
        harness.turn(began + second)
    assert grant.loss is not None
    assert grant.loss.reason == "unreachable"
    assert "no answer from cache:6379" in grant.loss.text
    assert grant.trouble is not None
    assert grant.trouble.since == pytest.approx(began + 10, abs=1)


def test_a_renewal_that_succeeds_ends_the_trouble() -> None:
    harness = idle_harness()
    grant, began = harness.grant(), harness.time
    harness.error = dibs.StoreUnavailable("no answer")
    for second in range(1, 15):
        harness.turn(began + second)
    harness.error = None
    for second in range(15, 20):
        harness.turn(began + second)
    assert grant.loss is grant.trouble is None
    harness.turn(began + 200)
    assert grant.loss is not None
    assert grant.loss.reason == "standstill"
    assert "stood still for at least 3m" in grant.loss.text


def test_a_reply_that_comes_after_a_standstill_is_not_the_reason() -> None:
    """The process is stopped between a request and its reply, which says that the claim is gone, or never comes."""
    for error in (None, dibs.StoreUnavailable("no answer")):
        harness = idle_harness()
        grant, began = harness.grant(), harness.time

        def stop(_: object, harness: Harness = harness, error: dibs.StoreError | None = error) -> None:
            harness.time += 100
            if error is not None:
                raise error

        harness.standing = stop
        for second in range(1, 12):
            harness.turn(began + second)
            if grant.loss is not None or harness.time > began + 50:
                break
        harness.turn(harness.time)
        assert grant.loss is not None
        assert grant.loss.reason == "standstill", error


def test_an_answer_that_does_not_come_in_time_is_an_unreachable_store() -> None:
    harness = idle_harness()
    grant, began = harness.grant(), harness.time
    for second in range(1, 28):
        harness.time = began + second
        harness.look()
    assert grant.in_flight is grant.claim
    assert grant.loss is not None
    assert grant.loss.reason == "unreachable"


def test_a_lease_that_a_test_lets_run_out(dibs_client: KitClient) -> None:
    hold = hold_of(dibs_client.lock("job"))
    assert hold.lost_reason is None
    dibs_client.expire("job")
    assert hold.lost_reason == "expired"


RECORD = Break(datetime(2030, 1, 1, 12, tzinfo=UTC), "root", "ci-7", 77, 0, "ana@web-3 pid 4121", "stuck")
BY_WHOM = r"lost \(token \d+\): broken by root@ci-7 pid 77 at 2030-01-01 12:00:00 UTC \(reason: stuck\)\. Next: stop "


def test_leaving_a_broken_lock_says_by_whom(dibs_client: KitClient) -> None:
    with pytest.raises(dibs.LockLost, match=BY_WHOM), dibs_client.lock("job") as hold:
        dibs_client.break_("job", token=hold.token)
        break_log.record(dibs_client, "job", RECORD._replace(token=hold.token))
    with pytest.raises(dibs.LockLost, match=BY_WHOM):
        hold.check()


def test_a_record_of_another_break_is_not_told(dibs_client: KitClient) -> None:
    with pytest.raises(dibs.LockLost, match="somebody broke it") as caught, dibs_client.lock("job") as hold:
        dibs_client.break_("job", token=hold.token)
        break_log.record(dibs_client, "job", RECORD._replace(token=hold.token + 1))
    assert "root" not in str(caught.value)


def test_the_reason_pickles() -> None:
    error = dibs.LockLost("lost", reason="broken", name="a", step="stop")
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, again.name, str(again)) == ("broken", "a", str(error))
