"""The routines against the rule as Python has it: random lines, every answer the same on both sides (see both.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from dibs.testing.contract.seats import Seat
from lab.clock import Clock
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.mysql.both import Both
from store.mysql.hands import steerable
from store.mysql.rows import Raw
from store.redis.test_rule import deeds

PREFIX = "rule:"
_names = count(1)


class Ground:
    def __init__(self, stack: ExitStack, clock: Clock) -> None:
        server = stack.enter_context(Server(MariaDB("--innodb-flush-log-at-trx-commit=0"), env=clock.env()))
        self.raw = stack.enter_context(closing(Raw(server.port, PREFIX)))
        self.seats = [stack.enter_context(closing(Seat(f"{server.url()}?prefix={PREFIX}"))) for _ in range(2)]
        self.clock = clock
        self.seats[0].holders("any")  # the tables are there

    def line(self) -> Both:
        return Both(self.seats, self.raw, self.clock, f"dibs:{next(_names)}")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    require("mariadb")
    with ExitStack() as stack:
        yield Ground(stack, steerable())


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # thirty deeds are read sooner than shrunk on a server
)
@given(deeds())
def test_the_routines_and_the_rule_say_the_same(ground: Ground, done: list[tuple[Any, ...]]) -> None:
    line = ground.line()
    for verb, *words in done:
        if verb == "join":
            seat, place, claim = words
            line.join(seat, place, **claim)
        else:
            getattr(line, verb)(*words)
        line.check()
