"""Many claims given back in one round trip, each as `leave` does it. The fate of one says nothing about the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dibs.core.queue import QUEUE, YOURS
from dibs.core.rule import Claim
from dibs.errors import StoreError, StoreUnavailable
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab import suite
from lab.faults import Latency
from lab.proxy import Proxy
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.redis.faulty import through
from store.redis.hashes import Raw

MANY = 500


def leave_all(seat: Seat, *leaving: tuple[Claim, bool], within: float = 30.0) -> list[StoreError | None]:
    queue: Any = seat.queue
    found: list[StoreError | None] = step(queue.leave_all(leaving, seat.now() + within))
    return found


def test_many_in_one_exchange(server: Server, proxy: Proxy) -> None:
    """Of as many names, at a server that is far and does not know the script: one by one it would take 50 s."""
    with closing(Seat(through(proxy))) as seat:
        claims = [seat.joined(name=f"name-{number}")[0] for number in range(MANY)]
        server.ask("SCRIPT", "FLUSH")
        latency = proxy.add(Latency(0.05))
        assert leave_all(seat, *((claim, True) for claim in claims), within=20) == [None] * MANY
        proxy.remove(latency)
        assert not seat.names()
        assert leave_all(seat, *((claim, True) for claim in claims)) == [None] * MANY, "done is done"
        assert leave_all(seat) == []


def test_exactly_those_it_frees_are_woken(seats: Callable[[], Seat]) -> None:
    ana, bob = seats(), seats()
    names = [f"name-{number}" for number in range(3)]
    held = [ana.joined(name=name)[0] for name in names]
    next_ones = [bob.joined(name=name)[0] for name in names]
    behind = [bob.joined(name=name)[0] for name in names]
    assert leave_all(ana, (held[0], True), (held[2], True), (held[0], True)) == [None] * 3
    assert [bob.hears(claim) for claim in (next_ones[0], next_ones[2])] == [YOURS, YOURS]
    assert [bob.told(claim) for claim in (next_ones[1], *behind)] == [None] * 4
    assert leave_all(bob, *((claim, True) for claim in (*next_ones, *behind))) == [None] * 6
    assert [ana.holders(name) for name in names] == [[], [ana.look(held[1]).ticket], []]  # type: ignore[union-attr]


def test_an_unanswered_join_leaves_a_tombstone(seat: Seat, raw: Raw) -> None:
    """Whether its claim stood or not: a late copy of the join does nothing."""
    stood, _ = seat.joined(name="dibs:a")
    never = seat.claim(name="dibs:b")
    answered, _ = seat.joined(name="dibs:c")
    assert leave_all(seat, (stood, False), (never, False), (answered, True)) == [None] * 3
    assert seat.join(stood, QUEUE) is None
    assert seat.join(never, QUEUE) is None
    assert [bool(raw.queue(f"dibs:{name}").head().special) for name in "abc"] == [True, True, False]


def test_one_that_is_refused_says_nothing_about_the_others(seat: Seat, raw: Raw) -> None:
    claims = [seat.joined(name=f"dibs:{name}")[0] for name in "abc"]
    raw.client.delete(raw.queue("dibs:b").key)
    raw.client.set(raw.queue("dibs:b").key, "foreign")
    first, second, third = leave_all(seat, *((claim, True) for claim in claims))
    assert (first, third) == (None, None)
    assert isinstance(second, StoreError)
    assert "damaged" in str(second)
    assert seat.holders("dibs:a") == seat.holders("dibs:c") == []


def test_a_silent_server(server: Server) -> None:
    with closing(Seat(server.url())) as seat:
        claims = [seat.joined(name=name)[0] for name in "ab"]
        server.stop()
        try:
            with pytest.raises(StoreUnavailable):
                leave_all(seat, *((claim, True) for claim in claims), within=0.5)
        finally:
            server.resume()
        assert leave_all(seat, *((claim, True) for claim in claims)) == [None] * 2
        assert seat.holders("a") == seat.holders("b") == []


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Seat]:
    require("redis")
    with closing(Seat(suite.cluster(tmp_path))) as made:
        yield made


def test_of_all_shards_of_a_cluster(shards: Seat) -> None:
    claims = [shards.joined(name=f"name-{number}")[0] for number in range(30)]
    waiters = [shards.joined(name=f"name-{number}")[0] for number in range(30)]
    assert leave_all(shards, *((claim, True) for claim in claims)) == [None] * 30
    assert [shards.hears(claim) for claim in waiters] == [YOURS] * 30
    assert leave_all(shards, *((claim, False) for claim in waiters)) == [None] * 30
    assert not shards.names()
