"""`replicas=n`: WAIT counts from what its own connection wrote last, so whatever is asked again writes again; and many
tasks that ask at once share one WAIT, or each would keep the others' questions waiting.

Redis 7.0, as of 7.2 no longer, lets every command move that mark: here one can only see that the scripts write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

import dibs.aio
from dibs.core.cells import CELL, Spot, Write
from dibs.core.line import NOWHERE
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.servers.programs import require
from lab.servers.redis_groups import Group, replicated
from lab.witness import fresh_name
from store.redis.hashes import Raw

TASKS = 40


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
    before = raw.line().chain()
    for place in (None, NOWHERE):
        assert writes(raw.client, lambda place=place: seat.join(claim, place)) > 0
    assert raw.line().chain() == before, "and changes nothing"


def test_a_put_that_is_asked_again(seat: Seat, raw: Raw) -> None:
    cells = seat.store.open_cells(seat.runtime, seat.me)
    with closing(cells):
        write = Write(Spot(CELL, "dibs:c"), b"x", 0, seat.runtime.fresh_id(), seat.now() + 10)
        assert step(cells.put(write, seat.soon)) == 1
        assert writes(raw.client, lambda: step(cells.put(write, seat.soon))) > 0
        assert step(cells.get(write.spot, seat.soon)) == (b"x", 1)


@pytest.mark.parametrize(("token", "shared"), [(5, False), (5, True), (4, False), (4, True), (6, True)])
def test_an_admission_that_raises_nothing(seat: Seat, raw: Raw, token: int, shared: bool) -> None:
    """The first copy may have, or another one whose token this one must not come before."""
    cells = seat.store.open_cells(seat.runtime, seat.me)
    with closing(cells):
        step(cells.admit("dibs:f", 5, False, seat.soon))
        assert writes(raw.client, lambda: step(cells.admit("dibs:f", token, shared, seat.soon))) > 0
        assert step(cells.admit("dibs:f", 1, True, seat.soon)) == 5


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
            holds = await asyncio.gather(*(client.lock(name).acquire(timeout=15) for name in names))
            waits = calls(raw, "wait") - before
            held = sum([len((await client.inspect(name)).holders) for name in names])
            await asyncio.gather(*(hold.release() for hold in holds))
            return waits, held

    with closing(redis.Redis(port=group.primary.port)) as raw:
        waits, held = asyncio.run(play(raw))
    print(f"figure: {TASKS} tasks, each of which takes a free lock with replicas=1: {waits} times WAIT")
    assert held == TASKS
    assert 1 <= waits <= TASKS / 4
