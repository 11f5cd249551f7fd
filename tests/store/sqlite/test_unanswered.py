"""Requests that the store does not answer in time: nothing is lost, and the watchdog goes on with what was begun."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dibs
from store.sqlite.places import PATIENCE, Taking, begin, rows, standstill, until

pytestmark = pytest.mark.gate

Connect = Callable[..., dibs.Client]


def claims(path: Path) -> int:
    return int(rows(path, "SELECT count(*) FROM claims")[0][0])


def test_a_grant_that_came_late_is_confirmed_before_it_counts(path: Path, connect: Connect) -> None:
    """A join answered when most of its lease has gone by must not hand out a hold that is nearly over."""
    client = connect(lease=4)
    client.lock("b").acquire(timeout=PATIENCE).release()  # type: ignore[union-attr]
    with standstill(path):
        acquiring = begin(lambda: client.lock("a").acquire(timeout=PATIENCE).remaining)  # type: ignore[union-attr]
        time.sleep(3)  # the length of the fault: less than the lease, which would void the claim
    assert acquiring.result(PATIENCE) > 2


def test_a_waiter_that_cannot_look_asks_again(path: Path, connect: Connect) -> None:
    client = connect(lease=1)
    with connect(lease=30).lock("a") as hold:
        waiter = Taking(client.lock("a"), PATIENCE)
        until(lambda: claims(path) == 2, what="both are in the queue")
        (claim,) = client._core.watchdog.renewing

        def given_up() -> bool:
            client._core.me.inbox.deliver(claim, b"l")  # told to look: it cannot, once its lease must be renewed first
            return claim not in client._core.watchdog.renewing

        with standstill(path):
            until(given_up, what="the old id was given up")
    got = waiter.got()
    assert got.token > hold.token
    got.release()
