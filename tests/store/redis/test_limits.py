"""What a cell costs that is written again and again, and how long a lease can be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

import dibs
from dibs.core.cells import CELL, Spot, Write
from dibs.core.deadline import LONGEST_LEASE
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from store.redis.hashes import Raw

SPOT = Spot(CELL, "dibs:c")
MANY = 60
KEPT = {b"value", b"version", b"oldest"}


class Writer:
    """Of one cell, put by put."""

    def __init__(self, seat: Seat, raw: Raw) -> None:
        self._seat, self._raw = seat, raw
        self._cells = seat.store.open_cells(seat.runtime, seat.me)
        self._key = f"{raw.prefix}dibs:c|cell"
        self.close = self._cells.close
        self.version = 0

    def put(self) -> Write:
        write = Write(SPOT, b"x%d" % self.version, self.version, self._seat.runtime.fresh_id(), self._seat.now() + 900)
        self.again(write)
        self.version += 1
        return write

    def again(self, write: Write) -> None:
        assert step(self._cells.put(write, self._seat.soon)) == write.version + 1

    def remembered(self) -> list[bytes]:
        return [field for field in self._raw.client.hkeys(self._key) if field not in KEPT]

    def age(self) -> None:
        """As if the time of all of them were over."""
        fields = self._raw.client.hgetall(self._key)
        over = {field: told[:16] + b"1" for field, told in fields.items() if field not in KEPT}
        self._raw.client.hset(self._key, mapping=over)

    def commands(self) -> dict[str, int]:
        """Of one put more."""
        before = self._counts()
        self.put()
        return {
            name: count - before.get(name, 0) for name, count in self._counts().items() if count > before.get(name, 0)
        }

    def _counts(self) -> dict[str, int]:
        told = self._raw.client.info("commandstats")
        return {name: one["calls"] for name, one in told.items() if name != "cmdstat_info"}


@pytest.fixture
def writer(seat: Seat, raw: Raw) -> Iterator[Writer]:
    with closing(Writer(seat, raw)) as made:
        yield made


def test_a_put_costs_the_same_however_many_there_were(writer: Writer) -> None:
    writer.put()
    writer.put()
    few = writer.commands()
    for _ in range(MANY):
        writer.put()
    assert writer.commands() == few
    writer.age()
    worst = writer.commands()
    assert sum(worst.values()) <= sum(few.values()) + 2, "two at most are forgotten"


def test_what_is_over_is_forgotten_while_one_goes_on(writer: Writer) -> None:
    for _ in range(MANY):
        writer.put()
    assert len(writer.remembered()) == MANY
    writer.age()
    for _ in range(MANY // 2):
        writer.put()
    assert len(writer.remembered()) == MANY // 2, "two for each put"
    for _ in range(MANY // 2 + 3):
        writer.age()
        writer.put()
    assert len(writer.remembered()) <= 3


def test_a_put_is_known_again_while_its_time_is_not_over(writer: Writer) -> None:
    """Whoever wrote since."""
    writes = [writer.put() for _ in range(MANY)]
    for write in writes[::10]:
        writer.again(write)
    assert writer.version == MANY


def test_a_lease_may_be_long(url: str) -> None:
    """It is not only taken: others can look at it, and break it."""
    with dibs.connect(url, lease=LONGEST_LEASE) as client, dibs.connect(url) as other:
        hold = client.lock("a").acquire(timeout=30)
        assert hold is not None
        (holder,) = other.inspect("a").holders
        assert holder.token == hold.token
        assert holder.remaining > 0.99 * LONGEST_LEASE
        assert [info.name for info in other.locks()] == ["a"]
        other.break_("a", token=hold.token)
        with other.lock("a", timeout=30):
            pass
