"""`replicas=n`: WAIT counts from what its own connection wrote last, so whatever is asked again writes again; and many
tasks that ask at once share one WAIT, or each would keep the others' questions waiting. Where replicas cannot be
counted on, nothing is granted, and that is said.

Redis 7.0, as of 7.2 no longer, lets every command move that mark: here one can only see that the scripts write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

import dibs
import dibs.aio
from dibs.core.cells import CELL, CellKey, Write
from dibs.core.queue import NOWHERE
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.redis_groups import Group, replicated
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from store.redis.hashes import Raw

TASKS = 40
LEASE = 1.5


def writes(client: Any, verb: Callable[[], Any]) -> int:
    """How many commands that change something the server ran for that."""
    before = calls(client, "hset")
    verb()
    return calls(client, "hset") - before


def calls(client: Any, command: str) -> int:
    told: dict[str, int] = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    return told["calls"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_join_that_is_asked_again(seats: Callable[[], Seat], raw: Raw, waits: bool) -> None:
    seat = seats()
    if waits:
        seats().joined(name="dibs:a")
    claim, standing = seat.joined(name="dibs:a")
    assert standing.holds is not waits
    before = raw.queue().chain()
    for place in (None, NOWHERE):
        assert writes(raw.client, lambda place=place: seat.join(claim, place)) > 0
    assert raw.queue().chain() == before, "and changes nothing"


def test_a_put_that_is_asked_again(seat: Seat, raw: Raw) -> None:
    cells = seat.store.open_cells(seat.runtime, seat.me)
    with closing(cells):
        write = Write(CellKey(CELL, "dibs:c"), b"x", 0, seat.runtime.fresh_id(), seat.now() + 10)
        assert step(cells.put(write, seat.soon)) == 1
        assert writes(raw.client, lambda: step(cells.put(write, seat.soon))) > 0
        assert step(cells.get(write.cell_key, seat.soon)) == (b"x", 1)


def test_an_admission_that_raises_nothing(seat: Seat, raw: Raw) -> None:
    """The first copy may have, or another one whose token this one must not come before."""
    cells = seat.store.open_cells(seat.runtime, seat.me)
    with closing(cells):
        step(cells.admit("dibs:f", 5, False, seat.soon))
        for token, shared in ((5, False), (5, True), (4, False), (4, True), (6, True)):
            asked = "dibs:f", token, shared
            assert writes(raw.client, lambda asked=asked: step(cells.admit(*asked, seat.soon))) > 0
            assert step(cells.admit("dibs:f", 1, True, seat.soon)) == 5


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    """It has no replica."""
    require("redis")
    with Server(Redis(users={"ana": ">pw ~* &* +@all -wait"})) as server:
        yield server


def test_who_asks_for_longer_than_a_waiting_lease_is_told_why(alone: Server) -> None:
    """After a waiting lease another id asks: it must not wait for the first one, and take that for somebody else."""
    with (
        dibs.connect(alone.url(), replicas=1, lease=LEASE) as client,
        pytest.raises(dibs.StoreUnavailable, match=r"fewer than 1 replicas have it|did not answer in time"),
    ):
        client.lock("a").acquire(timeout=3 * LEASE)


def test_what_was_not_kept_is_in_nobodys_way(alone: Server) -> None:
    with dibs.connect(alone.url(), replicas=1) as careful, dibs.connect(alone.url()) as careless:
        with pytest.raises(dibs.StoreUnavailable):
            careful.lock("b").acquire(timeout=0)
        assert careless.lock("b").acquire(timeout=25), "it was given back, and did not last as long as its lease"


def test_who_may_not_wait_for_replicas_is_told_so(alone: Server) -> None:
    with (
        dibs.connect(alone.url(user="ana", password="pw"), replicas=1) as client,
        pytest.raises(dibs.StoreError, match="NOPERM") as refused,
    ):
        client.lock("c").acquire(timeout=30)
    assert not isinstance(refused.value, dibs.StoreUnavailable), "asking again helps nobody"


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    require("redis")
    with replicated(replicas=1) as made:
        yield made


def test_tasks_that_ask_at_once_share_the_wait_for_replicas(group: Group) -> None:
    names = [fresh_name() for _ in range(TASKS)]

    async def play(raw: Any) -> tuple[int, int]:
        async with dibs.aio.connect(group.primary.url(), replicas=1) as client:
            await (await client.lock(fresh_name()).acquire()).release()
            before = calls(raw, "wait")
            holds = await asyncio.gather(*(client.lock(name).acquire(timeout=60) for name in names))
            waits = calls(raw, "wait") - before
            held = sum([len((await client.inspect(name)).holders) for name in names])
            await asyncio.gather(*(hold.release() for hold in holds))
            return waits, held

    with closing(redis.Redis(port=group.primary.port)) as raw:
        waits, held = asyncio.run(play(raw))
    print(f"figure: {TASKS} tasks, each of which takes a free lock with replicas=1: {waits} times WAIT")
    assert held == TASKS
    assert 1 <= waits <= TASKS / 4
