"""Requests and messages that come late or too early, by the verbs of a store: see dibs.testing.contract.seats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

import dibs
from dibs.core.queue import QUEUE, TRY, UNFAIR
from dibs.core.rule import RW_CAPACITY
from dibs.testing.contract.seats import Seat
from lab.servers import shared_redis
from lab.servers.shared import unique
from store.redis.redisson.peers import Raw

RW = {"kind": "rw", "capacity": RW_CAPACITY}


@pytest.fixture
def here() -> Iterator[Raw]:
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, f"{unique()}:")


@pytest.fixture
def ana(here: Raw) -> Iterator[Seat]:
    url = f"{shared_redis.redis().url()}?layout=redisson&prefix={here.prefix}"
    with closing(Seat(url)) as seat:
        yield seat


def test_a_reader_whose_own_lease_has_ended_does_not_hold(ana: Seat, here: Raw) -> None:
    """Another reader keeps the name."""
    first, _ = ana.joined(UNFAIR, **RW)
    (own,) = here.client.keys(f"*{here.key('a')}*rwlock_timeout:1")
    ana.joined(UNFAIR, **RW)
    here.client.delete(own)
    assert ana.join(first, UNFAIR) is None
    assert ana.look(first) is None


def test_a_late_copy_of_a_re_entry_leaves_a_reader_alone(ana: Seat, here: Raw) -> None:
    writer, _ = ana.joined(UNFAIR, weight=RW_CAPACITY, **RW)
    ana.amend(writer, 1)  # it is a reader now
    before = here.holders("a")
    ana.amend(writer, 2 * RW_CAPACITY)
    assert here.holders("a") == before
    assert here.client.hget(here.key("a"), "mode") == b"read"


def test_a_fair_waiter_hears_again_after_a_message_that_came_too_early(ana: Seat, here: Raw) -> None:
    mine, _ = ana.joined(QUEUE, kind="fair mutex")
    waits, _ = ana.joined(QUEUE, kind="fair mutex")
    (holder,) = here.queue("a")
    here.client.publish(f"redisson_lock__channel:{{{here.key('a')}}}:{holder}", "0")
    assert ana.hears(waits) is TRY
    standing = ana.look(waits)
    assert standing is not None
    assert not standing.holds
    ana.leave(mine)
    assert ana.hears(waits) is TRY


def test_a_fair_waiter_that_gives_up_after_it_was_told_tells_the_next_one(ana: Seat) -> None:
    holder, *waiting = [ana.joined(QUEUE, kind="fair mutex")[0] for _ in range(3)]
    ana.leave(holder)
    for waits in waiting:
        assert ana.hears(waits) is TRY
        ana.leave(waits)


@pytest.mark.parametrize("option", ["fair_wait=5", "sharded=on", "fair_wait=0&layout=redisson"])
def test_options_of_this_layout_are_refused_elsewhere(option: str) -> None:
    with pytest.raises(ValueError, match=r"layout=redisson|at least 1"):
        dibs.connect(f"redis+cluster://h?{option}")
