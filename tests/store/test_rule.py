"""The scripts and routines of each server against the rule as Python has it: random queues, every answer the same on
both sides (see both.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import psycopg
import pytest
import redis
from hypothesis import given

from dibs.testing.contract.seats import Seat
from lab.clock import Clock
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.both import Both, deeds, on_a_server
from store.clocks import readable
from store.mysql.rows import Raw as MysqlRows
from store.mysql.side import FreeSeat, MysqlSide
from store.postgresql.rows import Raw as PostgresqlRows
from store.postgresql.side import PostgresqlSide
from store.postgresql.side import Spy as PostgresqlSpy
from store.redis.hashes import Raw as Hashes
from store.redis.side import RedisSide
from store.redis.side import Spy as RedisSpy

PREFIX = "rule:"
MakeBoth = Callable[[], Both]
"""Makes a fresh queue on the server, and its twin in memory."""


def on_redis(stack: ExitStack, clock: Clock) -> MakeBoth:
    server = stack.enter_context(Server(Redis(), env=clock.env()))
    raw = Hashes(stack.enter_context(closing(redis.Redis(port=server.port, protocol=2))), PREFIX)
    spy = stack.enter_context(closing(RedisSpy(raw)))
    seats = [stack.enter_context(closing(Seat(f"{server.url()}?prefix={PREFIX}"))) for _ in range(2)]
    return lambda: Both(seats, clock, partial(RedisSide, raw, spy))


def on_mysql(stack: ExitStack, clock: Clock) -> MakeBoth:
    server = stack.enter_context(Server(MariaDB("--innodb-flush-log-at-trx-commit=0"), env=clock.env()))
    raw = stack.enter_context(closing(MysqlRows(server.port, PREFIX)))
    seats = [stack.enter_context(closing(FreeSeat(f"{server.url()}?prefix={PREFIX}"))) for _ in range(2)]
    seats[0].holders("any")  # makes the tables
    return lambda: Both(seats, clock, partial(MysqlSide, raw))


def on_postgresql(stack: ExitStack, clock: Clock) -> MakeBoth:
    server = stack.enter_context(Server(PostgreSQL(), env=clock.env()))
    looking, hearing = (
        stack.enter_context(closing(psycopg.connect(server.url(), autocommit=True))) for _ in range(2)
    )  # fmt: skip
    seats = [stack.enter_context(closing(subscribed(server.url()))) for _ in range(2)]
    raw, spy = PostgresqlRows(looking, "dibs"), PostgresqlSpy(hearing, [seat.me.id for seat in seats])
    return lambda: Both(seats, clock, partial(PostgresqlSide, raw, spy, seats[0].me.id))


def subscribed(url: str) -> Seat:
    """A seat that messages get to; on a busy machine that may have to be tried again."""
    while True:
        seat = Seat(url)
        seat.joined(name=f"dibs:warm-{seat.me.id.hex()}")
        if seat.queue._subscriber.hears():
            return seat
        seat.close()


SERVERS = {"redis": ("redis", on_redis), "mysql": ("mariadb", on_mysql), "postgresql": ("postgresql", on_postgresql)}


@pytest.fixture(
    scope="module", params=[pytest.param(store, marks=pytest.mark.xdist_group(f"rule-{store}")) for store in SERVERS]
)
def make(request: pytest.FixtureRequest) -> Iterator[MakeBoth]:
    program, on_server = SERVERS[request.param]
    require(program)
    with ExitStack() as stack:
        yield on_server(stack, stack.enter_context(readable()))


@pytest.mark.gate
@pytest.mark.timeout(240)  # thousands of exchanges, on a machine that others use too
@on_a_server
@given(deeds())
def test_the_server_and_the_rule_say_the_same(make: MakeBoth, done: list[tuple[Any, ...]]) -> None:
    make().play(done)
