"""The scripts against the rule as Python has it: random lines, every answer the same on both sides (see both.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given

from dibs.testing.contract.seats import Seat
from lab import clock as clocks
from lab.clock import Clock
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.both import Both, deeds, on_a_server
from store.redis.hashes import Raw
from store.redis.side import RedisSide, Spy

PREFIX = "rule:"


class Ground:
    def __init__(self, stack: ExitStack, clock: Clock) -> None:
        require("redis")
        server = stack.enter_context(Server(Redis(), env=clock.env()))
        self.raw = Raw(stack.enter_context(closing(redis.Redis(port=server.port, protocol=2))), PREFIX)
        self.spy = stack.enter_context(closing(Spy(self.raw)))
        self.seats = [stack.enter_context(closing(Seat(f"{server.url()}?prefix={PREFIX}"))) for _ in range(2)]
        self.clock = clock

    def line(self) -> Both:
        return Both(self.seats, self.clock, partial(RedisSide, self.raw, self.spy))


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    shim: Path = clocks.shim(tmp_path_factory)
    with ExitStack() as stack:
        yield Ground(stack, Clock(tmp_path_factory.mktemp("clock"), shim))


@on_a_server
@given(deeds())
def test_the_scripts_and_the_rule_say_the_same(ground: Ground, done: list[tuple[Any, ...]]) -> None:
    ground.line().play(done)
