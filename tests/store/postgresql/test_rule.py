"""The routines against the rule as Python has it: random lines, every answer the same on both sides (see both.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import given

from dibs.testing.contract.seats import Seat
from lab.clock import Clock
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.both import Both, deeds, on_a_server
from store.clocks import readable
from store.postgresql.rows import Raw
from store.postgresql.side import PostgresqlSide, Spy


def hearing(url: str) -> Seat:
    """One that messages get to; on a busy machine that may have to be tried again."""
    while True:
        seat = Seat(url)
        seat.joined(name=f"dibs:warm-{seat.me.id.hex()}")
        if seat.line._ear.hears():
            return seat
        seat.close()


class Ground:
    def __init__(self, stack: ExitStack, clock: Clock) -> None:
        require("postgresql")
        server = stack.enter_context(Server(PostgreSQL(), env=clock.env()))
        connections = [
            stack.enter_context(closing(psycopg.connect(server.url(), autocommit=True))) for _ in range(2)
        ]  # fmt: skip
        self.seats = [stack.enter_context(closing(hearing(server.url()))) for _ in range(2)]
        self.raw = Raw(connections[0], "dibs")
        self.spy = Spy(connections[1], [seat.me.id for seat in self.seats])
        self.clock = clock

    def line(self) -> Both:
        return Both(self.seats, self.clock, partial(PostgresqlSide, self.raw, self.spy, self.seats[0].me.id))


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(stack, stack.enter_context(readable()))


@on_a_server
@given(deeds())
def test_the_routines_and_the_rule_say_the_same(ground: Ground, done: list[tuple[Any, ...]]) -> None:
    ground.line().play(done)
