"""Giving back many claims in one step, on the two stores that share the verbs of backends/common/atomic_queue.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import dibs
from dibs.backends.common.atomic_queue import Tombs
from dibs.backends.memory import MemoryQueue
from dibs.backends.sqlite.queue import SqliteQueue
from dibs.core.queue import QUEUE, YOURS, ClientIdentity
from dibs.core.rule import Claim, Standing
from dibs.runtime.threads import ThreadRuntime, step

PATIENCE = 45.0


class Seat:
    """One client's queue, and claims of its own."""

    def __init__(self, url: str) -> None:
        self.runtime = ThreadRuntime()
        self.me = ClientIdentity(self.runtime.fresh_id(), self.runtime.inbox(), 30.0, lambda _: None)
        self.client = dibs.connect(url)
        self.store = self.client._core.store
        queue = self.store.open(self.runtime, self.me)
        assert isinstance(queue, MemoryQueue | SqliteQueue)
        self.queue = queue

    @property
    def soon(self) -> float:
        return self.runtime.now() + PATIENCE

    def claim(self, name: str) -> Claim:
        made = Claim(self.runtime.fresh_id(), name, "mutex", 1, 1, 30.0, 5.0, self.soon, self.me.id, "{}")
        self.me.inbox.expect(made.id)
        return made

    def join(self, claim: Claim) -> Standing | None:
        return step(self.queue.join(claim, QUEUE, self.soon))

    def joined(self, name: str) -> Claim:
        claim = self.claim(name)
        assert self.join(claim) is not None
        return claim

    def close(self) -> None:
        self.queue.close()
        self.me.inbox.unlisten()
        self.store.close()
        self.client.close()


@pytest.fixture(params=["memory", "sqlite"])
def seat(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Seat]]:
    url = f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path / 'locks.db'}"
    made: list[Seat] = []

    def make() -> Seat:
        made.append(Seat(url))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_all_of_them_leave_and_only_others_are_woken(seat: Callable[[], Seat]) -> None:
    ana, bob = seat(), seat()
    holds = [ana.joined(f"n{number:03}") for number in range(498)]
    own_waiter, others = ana.joined("n000"), bob.joined("n000")
    nowhere = ana.claim("n001")
    leaving = [(claim, True) for claim in (*holds, own_waiter, nowhere, holds[0])]
    assert step(ana.queue.leave_all(leaving, ana.soon)) == [None] * len(leaving)
    assert step(bob.queue.watch(others, bob.soon)) is YOURS
    assert step(ana.queue.watch(own_waiter, ana.runtime.now())) is None, "it left in the same step"
    assert [info.name for info in step(bob.queue.page("", "", bob.soon))] == ["n000"]


def test_a_join_that_comes_late_finds_that_it_left(seat: Callable[[], Seat]) -> None:
    ana = seat()
    claim = ana.claim("a")
    assert step(ana.queue.leave_all([(claim, False)], ana.soon)) == [None]
    assert ana.join(claim) is None


def test_who_left_is_known_for_as_long_as_its_join_can_come() -> None:
    tombs = Tombs()
    for instant in range(1000):
        tombs.bury(b"%d" % instant, instant + 5.0, float(instant))
    assert sorted(tombs) == [b"%d" % instant for instant in range(995, 1000)]


def test_there_is_nothing_to_connect_to(seat: Callable[[], Seat]) -> None:
    ana = seat()
    step(ana.queue.connect(ana.soon))
    assert ana.queue.round_trip() == 0.0
