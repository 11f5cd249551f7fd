"""The commands of an operation: as many for hundreds of waiters or writes as for ten. The module has a server of its
own, which runs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from dibs.core.cells import CELL, CellKey, Write
from dibs.core.rule import Claim
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from store.redis.hashes import SECOND, Raw

MANY = 60
KEPT = {b"value", b"version", b"oldest"}
"""Fields of a cell that belong to no write."""


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url()}?prefix={fresh_name()}:"


def commands(raw: Raw, verb: Callable[[], object]) -> dict[str, int]:
    """The commands that the server ran for that, with their counts."""

    def counts() -> dict[str, int]:
        stats = raw.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items() if "info" not in name}

    before = counts()
    verb()
    return {name: count - before.get(name, 0) for name, count in counts().items() if count != before.get(name, 0)}


def crowd(seat: Seat, count: int, **options: Any) -> list[Claim]:
    return [seat.joined(name="dibs:a", lease=900, waiting=900, by=60, **options)[0] for _ in range(count)]


def verbs_on_a_lock(seat: Seat, raw: Raw, waiters: int) -> list[dict[str, int]]:
    """The commands of each operation with that many waiters. The first join in each tenth of a second raises the floor:
    the counted join does."""
    claims = crowd(seat, 1 + waiters)
    raised = int(raw.client.get(raw.floor).split()[0])
    while raw.now() <= raised + SECOND // 10:
        pass
    middle, last = claims[waiters // 2], claims[-2]
    found = [
        commands(raw, lambda: claims.extend(crowd(seat, 1))),
        commands(raw, lambda: seat.renew(claims[0])),
        commands(raw, lambda: seat.renew(last)),
        commands(raw, lambda: seat.leave(middle)),
        commands(raw, lambda: seat.leave(claims[0])),
        commands(raw, lambda: seat.evict(claims[1].ticket or 0, "dibs:a")),
    ]
    raw.client.delete(raw.queue().key)
    return found


@pytest.mark.gate
def test_many_waiters_cost_a_lock_no_more_than_ten(seat: Seat, raw: Raw) -> None:
    few, many = verbs_on_a_lock(seat, raw, 10), verbs_on_a_lock(seat, raw, 300)
    print(f"figure: commands on a lock: join {many[0]}, a holder's leave {many[4]}")
    for told in (*few, *many):
        told.pop("eval", None)  # the first time, with the script's text
        told.pop("evalsha", None)
    assert few == many
    assert many[0]["set"] == 1
    assert sum(many[4].values()) < 12


def test_what_an_acquisition_costs(seat: Seat, raw: Raw) -> None:
    """All commands, with two EVALSHA and a PUBLISH. Every tenth of a second a join also raises the floor."""

    def fewest(turn: Callable[[], object]) -> int:
        return min(sum(commands(raw, turn).values()) for _ in range(10))

    assert fewest(lambda: seat.leave(seat.joined(name="dibs:a", lease=30.0)[0])) == 7
    claims = crowd(seat, 4)

    def hand_over() -> None:
        claims.extend(crowd(seat, 1))
        seat.leave(claims.pop(0))

    assert fewest(hand_over) == 11
    raw.queue().check()


def reads(raw: Raw, verb: Callable[[], object]) -> int:
    told = commands(raw, verb)
    return told.get("hget", 0) + told.get("hmget", 0)


@pytest.mark.gate
def test_a_semaphore_costs_what_its_holders_cost(seat: Seat, raw: Raw) -> None:
    size, waiters = 30, 90
    claims = crowd(seat, size + waiters, kind="semaphore", capacity=size)
    assert size <= reads(raw, lambda: seat.renew(claims[-1])) <= size + 3
    assert size <= reads(raw, lambda: seat.leave(claims[7])) <= size + 4


def test_a_put_costs_the_same_and_forgets_what_is_over(seat: Seat, raw: Raw) -> None:
    """However many puts there were, a put forgets two at most, so that their number falls again."""
    key, version = f"{raw.prefix}dibs:c|cell", 0

    def put() -> None:
        nonlocal version
        write = Write(CellKey(CELL, "dibs:c"), b"x%d" % version, version, seat.runtime.fresh_id(), seat.now() + 900)
        version += 1
        assert step(cells.put(write, seat.soon)) == version

    def remembered() -> dict[bytes, bytes]:
        return {field: text for field, text in raw.client.hgetall(key).items() if field not in KEPT}

    def age() -> None:
        raw.client.hset(key, mapping={field: text[:16] + b"1" for field, text in remembered().items()})

    with closing(seat.store.open_cells(seat.runtime, seat.me)) as cells:
        put()
        put()
        few = commands(raw, put)
        for _ in range(MANY - 3):
            put()
        assert commands(raw, put) == few
        assert len(remembered()) == MANY + 1
        age()
        assert sum(commands(raw, put).values()) <= sum(few.values()) + 2
        for _ in range(MANY // 2 - 1):
            put()
        assert len(remembered()) == MANY // 2 + 1, "two for each put"
        for _ in range(MANY // 2 + 3):
            age()
            put()
        assert len(remembered()) <= 3
