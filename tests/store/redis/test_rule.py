"""The scripts against the rule as Python has it: random lines, every answer the same on both sides (see both.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dibs.core.line import LINE, NOWHERE, OUTSIDE
from dibs.core.rule import RW_CAPACITY
from dibs.testing.contract.seats import Seat
from lab import clock as clocks
from lab.clock import Clock
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.redis.both import Both, Spy
from store.redis.hashes import Raw

PREFIX = "rule:"
KINDS = [("mutex", 1), ("semaphore", 3), ("semaphore", 4), ("rw", RW_CAPACITY), ("election", 1), ("striped", 8)]
WEIGHTS = {"mutex": [1], "semaphore": [1, 2, 3], "rw": [1, RW_CAPACITY], "election": [1], "striped": [0]}
LEASES, WAITING = [65.0, 125.0, 605.0], [25.0, 55.0]
STEPS = [10, 20, 30, 60, 120, 600]
"""Never a moment at which a lease ends: see both.py."""
numbers = st.integers(0, 9)
_names = count(1)


@st.composite
def deeds(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Mostly claims of one kind on the line, some of another."""
    usual = draw(st.sampled_from(KINDS))
    found: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 30))):
        kind, capacity = usual if draw(st.integers(0, 7)) else draw(st.sampled_from(KINDS))
        seat = draw(st.integers(0, 1))
        places = st.sampled_from([LINE, LINE, LINE, OUTSIDE, NOWHERE])
        claim = {
            "kind": kind,
            "capacity": capacity,
            "weight": draw(st.sampled_from(WEIGHTS[kind])),
            "lease": draw(st.sampled_from(LEASES)),
            "waiting": draw(st.sampled_from(WAITING)),
        }
        verbs: list[st.SearchStrategy[tuple[Any, ...]]] = [
            st.tuples(st.just("join"), st.just(seat), places, st.just(claim)),
            st.tuples(st.just("join"), st.just(seat), places, st.just(claim)),
            st.tuples(st.just("rejoin"), numbers, places),
            st.tuples(st.just("renew"), st.just(seat), st.lists(numbers, min_size=1, max_size=6)),
            st.tuples(st.just("amend"), numbers, st.sampled_from([0, 1, 2])),
            st.tuples(st.just("leave"), numbers, st.booleans()),
            st.tuples(st.just("leave"), numbers, st.just(True)),
            st.tuples(st.just("evict"), st.integers(-1, 9)),
            st.tuples(st.just("revoke"), st.integers(-1, 9)),
            st.tuples(st.just("step"), st.sampled_from(STEPS)),
        ]
        found.append(draw(st.one_of(verbs)))
    return found


class Ground:
    def __init__(self, stack: ExitStack, clock: Clock) -> None:
        require("redis")
        server = stack.enter_context(Server(Redis(), env=clock.env()))
        self.raw = Raw(stack.enter_context(closing(redis.Redis(port=server.port, protocol=2))), PREFIX)
        self.spy = stack.enter_context(closing(Spy(self.raw)))
        self.seats = [stack.enter_context(closing(Seat(f"{server.url()}?prefix={PREFIX}"))) for _ in range(2)]
        self.clock = clock

    def line(self) -> Both:
        return Both(self.seats, self.raw, self.spy, self.clock, f"dibs:{next(_names)}")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    shim: Path = clocks.shim(tmp_path_factory)
    with ExitStack() as stack:
        yield Ground(stack, Clock(tmp_path_factory.mktemp("clock"), shim))


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # thirty deeds are read sooner than shrunk on a server
)
@given(deeds())
def test_the_scripts_and_the_rule_say_the_same(ground: Ground, done: list[tuple[Any, ...]]) -> None:
    line = ground.line()
    for verb, *words in done:
        if verb == "join":
            seat, place, claim = words
            line.join(seat, place, **claim)
        else:
            getattr(line, verb)(*words)
        line.check()
