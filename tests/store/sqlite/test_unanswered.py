"""Requests that the store does not answer in time: nothing is lost, and the watchdog goes on with what was begun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dibs
from store.sqlite.places import PATIENCE, rows, standstill, until

Connect = Callable[..., dibs.Client]


def claims(path: Path) -> int:
    return int(rows(path, "SELECT count(*) FROM claims")[0][0])


def test_a_release_that_is_not_answered_is_finished_by_the_watchdog(path: Path, connect: Connect) -> None:
    hold = connect(lease=30).lock("a").acquire()
    assert hold is not None
    with standstill(path):
        with pytest.raises(dibs.StoreUnavailable, match='"a" on sqlite'):
            hold.release()
        assert not hold.lost.is_set()  # it was given back, not lost
        hold.release()  # a second time does nothing
    until(lambda: claims(path) == 0, what="the claim has left")


def test_a_downgrade_that_is_not_answered_is_finished_by_the_watchdog(path: Path, connect: Connect) -> None:
    client, other = connect(lease=30), connect()
    hold = client.rwlock("a").write.acquire()
    assert hold is not None
    raised: list[BaseException] = []

    def downgrade() -> None:
        try:
            hold.downgrade()
        except dibs.StoreUnavailable as error:
            raised.append(error)

    with standstill(path):
        thread = threading.Thread(target=downgrade)
        thread.start()
        thread.join(PATIENCE)
    assert raised
    assert hold.mode == "shared"
    with other.rwlock("a", timeout=5).read:
        hold.check()
    hold.release()


def test_a_waiter_whose_time_is_over_meanwhile_leaves_later(path: Path, connect: Connect) -> None:
    holder, waiter = connect(), connect(lease=30)
    hold = holder.lock("a").acquire()
    assert hold is not None
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(waiter.lock("a").acquire(timeout=1)))
    thread.start()
    until(lambda: claims(path) == 2, what="both are in line")
    with standstill(path):
        thread.join(PATIENCE)
    assert got == [None]
    until(lambda: claims(path) == 1, what="the waiter has left")
    hold.release()


def test_a_grant_that_came_late_is_confirmed_before_it_counts(path: Path, connect: Connect) -> None:
    """A join answered when most of its lease has gone by must not hand out a hold that is nearly over."""
    client = connect(lease=4)
    with client.lock("b"):
        """Now the store is open."""
    left: list[float] = []

    def acquire() -> None:
        hold = client.lock("a").acquire(timeout=PATIENCE)
        assert hold is not None
        left.append(hold.remaining)
        hold.release()

    thread = threading.Thread(target=acquire)
    with standstill(path):
        thread.start()
        thread.join(3)  # the length of the fault: less than the lease, which would void the claim
    thread.join(PATIENCE)
    assert left
    assert left[0] > 2


def test_a_waiter_that_cannot_look_asks_again(path: Path, connect: Connect) -> None:
    holder, waiter = connect(lease=30), connect(lease=1)
    hold = holder.lock("a").acquire()
    assert hold is not None
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(waiter.lock("a").acquire(timeout=PATIENCE)))
    thread.start()
    until(lambda: claims(path) == 2, what="both are in line")
    (claim,) = waiter._core.watchdog.renewing

    def given_up() -> bool:
        waiter._core.me.inbox.deliver(claim, b"l")  # told to look: nobody can, once its lease must be renewed for that
        return claim not in waiter._core.watchdog.renewing

    with standstill(path):
        until(given_up, what="the old id was given up")
    hold.release()
    thread.join(PATIENCE)
    assert got[0] is not None
    assert got[0].token > hold.token
    got[0].release()


def test_looking_at_a_store_that_is_none_says_which(path: Path, connect: Connect) -> None:
    path.write_text("not a database")
    path.chmod(0o600)
    client = connect()
    for look in (
        lambda: client.inspect("a"),
        lambda: list(client.locks()),
        lambda: client.break_("a", token=1),
        lambda: client.lock("a").locked(),
        lambda: dibs.multi(client.lock("a"), client.lock("b")).acquire(timeout=0),
    ):
        with pytest.raises(dibs.StoreError, match="sqlite:") as caught:
            look()
        assert caught.value.store == repr(client).split()[1].rstrip(":")
    assert path.read_text() == "not a database"
