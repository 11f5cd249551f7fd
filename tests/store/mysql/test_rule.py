"""The routines against the rule as Python has it: random lines, every answer the same on both sides (see both.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest
from hypothesis import given

from dibs.testing.contract.seats import Seat
from lab.clock import Clock
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.both import Both, deeds, on_a_server
from store.clocks import readable
from store.mysql.rows import Raw
from store.mysql.side import MysqlSide

PREFIX = "rule:"


class Ground:
    def __init__(self, stack: ExitStack, clock: Clock) -> None:
        server = stack.enter_context(Server(MariaDB("--innodb-flush-log-at-trx-commit=0"), env=clock.env()))
        self.raw = stack.enter_context(closing(Raw(server.port, PREFIX)))
        self.seats = [stack.enter_context(closing(Seat(f"{server.url()}?prefix={PREFIX}"))) for _ in range(2)]
        self.clock = clock
        self.seats[0].holders("any")  # the tables are there

    def line(self) -> Both:
        return Both(self.seats, self.clock, partial(MysqlSide, self.raw))


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    require("mariadb")
    with ExitStack() as stack:
        yield Ground(stack, stack.enter_context(readable()))


@on_a_server
@given(deeds())
def test_the_routines_and_the_rule_say_the_same(ground: Ground, done: list[tuple[Any, ...]]) -> None:
    ground.line().play(done)
