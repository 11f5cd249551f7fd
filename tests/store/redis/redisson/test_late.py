"""Requests and messages that come late or too early, by the verbs of a store: see dibs.testing.contract.seats."""

from __future__ import annotations

import pytest

import dibs
from dibs.core.queue import QUEUE, TRY, UNFAIR
from dibs.core.rule import RW_CAPACITY
from dibs.testing.contract.seats import Seat
from lab.servers import shared_redis
from store.redis.redisson.peers import Raw

RW = {"kind": "rw", "capacity": RW_CAPACITY}


@pytest.fixture
def url(apart: Raw) -> str:
    return f"{shared_redis.redis().url()}?layout=redisson&prefix={apart.prefix}"


def test_a_reader_whose_own_lease_has_ended_does_not_hold(seat: Seat, apart: Raw) -> None:
    """Another reader keeps the name."""
    first, _ = seat.joined(UNFAIR, **RW)
    (own,) = apart.client.keys(f"*{apart.key('a')}*rwlock_timeout:1")
    seat.joined(UNFAIR, **RW)
    apart.client.delete(own)
    assert seat.join(first, UNFAIR) is None
    assert seat.look(first) is None


def test_a_late_copy_of_a_re_entry_leaves_a_reader_alone(seat: Seat, apart: Raw) -> None:
    writer, _ = seat.joined(UNFAIR, weight=RW_CAPACITY, **RW)
    seat.amend(writer, 1)  # it is a reader now
    before = apart.holders("a")
    seat.amend(writer, 2 * RW_CAPACITY)
    assert apart.holders("a") == before
    assert apart.client.hget(apart.key("a"), "mode") == b"read"


def test_a_fair_waiter_hears_again_after_a_message_that_came_too_early(seat: Seat, apart: Raw) -> None:
    mine, _ = seat.joined(QUEUE, kind="fair mutex")
    waits, _ = seat.joined(QUEUE, kind="fair mutex")
    (holder,) = apart.queue("a")
    apart.client.publish(f"redisson_lock__channel:{{{apart.key('a')}}}:{holder}", "0")
    assert seat.hears(waits) is TRY
    standing = seat.look(waits)
    assert standing is not None
    assert not standing.holds
    seat.leave(mine)
    assert seat.hears(waits) is TRY


def test_a_fair_waiter_that_gives_up_after_it_was_told_tells_the_next_one(seat: Seat) -> None:
    holder, *waiting = [seat.joined(QUEUE, kind="fair mutex")[0] for _ in range(3)]
    seat.leave(holder)
    for waits in waiting:
        assert seat.hears(waits) is TRY
        seat.leave(waits)


def test_options_of_this_layout_are_refused_elsewhere() -> None:
    for option in ("fair_wait=5", "sharded=on", "fair_wait=0&layout=redisson"):
        with pytest.raises(ValueError, match=r"layout=redisson|at least 1"):
            dibs.connect(f"redis+cluster://h?{option}")
