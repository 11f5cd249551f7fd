"""What a line and a cell cost in Redis: a key that always ends, fields that go with whom they are of, as many commands
for hundreds who wait, or for hundreds of writes, as for ten; and how long a lease can be. That the chain is whole after
any verbs is seen in tests/store/test_rule.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import dibs
from dibs.core.cells import CELL, Spot, Write
from dibs.core.deadline import LONGEST_LEASE
from dibs.core.rule import Claim
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from store.redis.hashes import SECOND, Raw, packed, until_expired

DAY_MS = 86_400_000
MANY = 60
KEPT = {b"value", b"version", b"oldest"}
"""Fields of a cell that are not of one write."""
IDLE = {b"top", b"keeps"}


def test_a_key_lasts_a_day_longer_than_whoever_stands_there(seat: Seat, raw: Raw) -> None:
    seat.joined(name="dibs:a", lease=10 * 86_400.0)
    assert 11 * DAY_MS - 10_000 <= raw.line().lasts() <= 13 * DAY_MS


def test_a_renewal_prolongs_the_key(seat: Seat, raw: Raw) -> None:
    """As if the claim were kept since long; for less than a day the key is left alone, which saves a command."""
    line = raw.line()
    claim, _ = seat.joined(name="dibs:a")
    before = line.lasts()
    seat.renew(claim)
    assert line.lasts() <= before
    soon = raw.now() // 1000 + DAY_MS // 2
    raw.client.pexpireat(line.key, soon)
    line.write("keeps", b"%d" % (soon * 1000))
    seat.renew(claim)
    assert line.lasts() > DAY_MS
    assert abs(int(line.fields()[b"keeps"]) // 1000 - raw.now() // 1000 - line.lasts()) < 10_000


def test_nothing_stays_but_the_last_ticket(seats: Callable[[], Seat], raw: Raw) -> None:
    """However they went: given back, expired, evicted; a grave keeps a late join out for a while."""
    ana, bob, line = seats(), seats(), raw.line()
    short, _ = ana.joined(name="dibs:a", lease=0.5)
    waiter, _ = bob.joined(name="dibs:a", waiting=0.5, by=30)
    last, standing = ana.joined(name="dibs:a", waiting=60)
    assert set(line.fields()) > IDLE
    until_expired(raw, line.record(last.id)["ASKED"] + SECOND // 2)
    held = ana.look(last)
    assert held is not None
    assert held.holds
    assert [record["ID"] for record in line.check()] == [last.id]
    assert not ana.leave(short)
    assert not bob.leave(waiter, answered=False)
    assert ana.evict(standing.ticket, "dibs:a")
    assert not ana.leave(last)
    assert set(line.fields()) <= {*IDLE, b"tombs"}
    line.write("tombs", packed({waiter.id: raw.now() - 1}))
    again, standing = ana.joined(name="dibs:a")
    ana.leave(again)
    assert set(line.fields()) == IDLE, "graves are for a while, too"
    assert int(line.fields()[b"top"]) == standing.ticket
    assert 0 < line.lasts() <= 3 * DAY_MS


def test_a_ticket_is_higher_than_the_last_though_the_clock_is_behind(seat: Seat, raw: Raw) -> None:
    ahead = raw.now() + 3600 * SECOND
    raw.line().write("top", b"%d" % ahead)
    tickets = []
    for _ in range(3):
        claim, standing = seat.joined(name="dibs:a")
        seat.leave(claim)
        tickets.append(standing.ticket)
    assert tickets == [ahead + 1, ahead + 2, ahead + 3]


def test_a_ticket_is_the_time_where_nothing_is_known_of_earlier_ones(seat: Seat, raw: Raw) -> None:
    """After FLUSHALL, and once an idle key has expired: tokens go on rising."""
    claim, first = seat.joined(name="dibs:a")
    seat.leave(claim)
    raw.client.delete(raw.line().key)
    assert seat.joined(name="dibs:a")[1].ticket > first.ticket


def test_keys_of_all_spaces_differ(url: str, raw: Raw) -> None:
    """A name in each space, and names that look like the keys of others."""
    with dibs.connect(url) as client:
        for name in ("a", "a|line", "a|fence", "client:00", "identity"):
            client.cell(name).set(b"x", 0)
            client.fence(name).admit(1)
            client.latch(name).arm(1)
            client.lock(name).acquire(timeout=30)
        assert len(raw.all_keys()) == 4 * 5
        assert [info.name for info in client.locks()] == ["a", "a|fence", "a|line", "client:00", "identity"]
        for key in raw.all_keys():
            assert (raw.client.ttl(key) == -1) == (not key.endswith(b"|line")), "only a line ends by itself"


def commands(raw: Raw, verb: Callable[[], object]) -> dict[str, int]:
    """How often the server ran what on behalf of that."""

    def counts() -> dict[str, int]:
        stats = raw.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): told["calls"] for name, told in stats.items() if "info" not in name}

    before = counts()
    verb()
    return {name: count - before.get(name, 0) for name, count in counts().items() if count != before.get(name, 0)}


def crowd(seat: Seat, count: int, **options: Any) -> list[Claim]:
    """All of them stand until the test is over, however slow the machine is."""
    return [seat.joined(name="dibs:a", lease=900, waiting=900, by=60, **options)[0] for _ in range(count)]


def verbs_on_a_lock(seat: Seat, raw: Raw, waiters: int) -> list[dict[str, int]]:
    """Of a line with so many waiters."""
    claims = crowd(seat, 1 + waiters)
    middle, last = claims[waiters // 2], claims[-2]
    found = [
        commands(raw, lambda: claims.extend(crowd(seat, 1))),
        commands(raw, lambda: seat.renew(claims[0])),
        commands(raw, lambda: seat.renew(last)),
        commands(raw, lambda: seat.leave(middle)),
        commands(raw, lambda: seat.leave(claims[0])),
        commands(raw, lambda: seat.evict(claims[1].ticket or 0, "dibs:a")),
    ]
    raw.client.delete(raw.line().key)
    return found


def test_many_waiters_cost_a_lock_no_more_than_ten(seat: Seat, raw: Raw) -> None:
    few, many = verbs_on_a_lock(seat, raw, 10), verbs_on_a_lock(seat, raw, 300)
    print(f"figure: commands on a lock: join {many[0]}, a holder's leave {many[4]}")
    for told in (*few, *many):
        told.pop("eval", None)  # the first time, with the script's text
        told.pop("evalsha", None)
    assert few == many
    assert sum(many[4].values()) < 12


def reads(raw: Raw, verb: Callable[[], object]) -> int:
    return commands(raw, verb).get("hget", 0)


def test_a_semaphore_costs_what_its_holders_cost(seat: Seat, raw: Raw) -> None:
    size, waiters = 30, 90
    claims = crowd(seat, size + waiters, kind="semaphore", capacity=size)
    assert size <= reads(raw, lambda: seat.renew(claims[-1])) <= size + 3
    assert size <= reads(raw, lambda: seat.leave(claims[7])) <= size + 4


class Writer:
    """Of one cell, put by put."""

    def __init__(self, seat: Seat, raw: Raw) -> None:
        self._seat, self.raw = seat, raw
        self._cells = seat.store.open_cells(seat.runtime, seat.me)
        self._key = f"{raw.prefix}dibs:c|cell"
        self.close = self._cells.close
        self.version = 0

    def put(self) -> Write:
        id, by = self._seat.runtime.fresh_id(), self._seat.now() + 900
        write = Write(Spot(CELL, "dibs:c"), b"x%d" % self.version, self.version, id, by)
        self.again(write)
        self.version += 1
        return write

    def again(self, write: Write) -> None:
        assert step(self._cells.put(write, self._seat.soon)) == write.version + 1

    def remembered(self) -> list[bytes]:
        return [field for field in self.raw.client.hkeys(self._key) if field not in KEPT]

    def age(self) -> None:
        """As if the time of all of them were over."""
        fields = self.raw.client.hgetall(self._key)
        over = {field: told[:16] + b"1" for field, told in fields.items() if field not in KEPT}
        self.raw.client.hset(self._key, mapping=over)


@pytest.fixture
def writer(seat: Seat, raw: Raw) -> Iterator[Writer]:
    with closing(Writer(seat, raw)) as made:
        yield made


def test_a_put_costs_the_same_however_many_there_were(writer: Writer) -> None:
    writer.put()
    writer.put()
    few = commands(writer.raw, writer.put)
    for _ in range(MANY):
        writer.put()
    assert commands(writer.raw, writer.put) == few
    writer.age()
    worst = commands(writer.raw, writer.put)
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
