"""What a queue and a cell cost in Redis: a key that always ends, fields that go with whom they are of, as many commands
for hundreds who wait, or for hundreds of writes, as for ten; and how long a lease can be. That the chain is whole after
any verbs is seen in tests/store/test_rule.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import dibs
from dibs.core.cells import CELL, CellKey, Write
from dibs.core.deadline import LONGEST_LEASE
from dibs.core.rule import Claim
from dibs.errors import StoreError
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab import suite
from lab.servers.programs import require
from store.redis.hashes import SECOND, Head, Raw, digits, until_expired

DAY_MS = 86_400_000
KEPT_MS = 20_000
"""How long an idle name keeps its last ticket, at most, beyond the lease that was in use."""
MANY = 60
FREE = 43
"""Characters of the head of a free queue."""
KEPT = {b"value", b"version", b"oldest"}
"""Fields of a cell that are not of one write."""


def test_a_key_lasts_longer_than_whoever_stands_there(seat: Seat, raw: Raw) -> None:
    claim, _ = seat.joined(name="dibs:a", lease=10 * 86_400.0)
    assert 10 * DAY_MS < raw.queue().lasts() <= 10 * DAY_MS + KEPT_MS
    seat.leave(claim)
    assert 0 < raw.queue().lasts() <= KEPT_MS, "of a long lease nothing stays either"


def test_names_that_are_used_once_do_not_pile_up(seats: Callable[[], Seat], raw: Raw) -> None:
    """However many there are, and however they went: what stays for longer is one key for all."""
    seat, other = seats(), seats()
    for number in range(MANY):
        claim, _ = seat.joined(name=f"dibs:{number}", lease=2.0)
        waiter, _ = other.joined(name=f"dibs:{number}", lease=86_400.0)
        other.leave(waiter, answered=number % 2 == 0)
        if number % 3:
            seat.leave(claim)
    tried = [seat.claim(name=f"dibs:never-{number}") for number in range(MANY)]
    for claim in tried:
        seat.leave(claim, answered=False)
    lasting = [key for key in raw.all_keys() if raw.client.pttl(key) > KEPT_MS + 5_000]
    assert lasting == [raw.floor]
    assert 0 < raw.client.pttl(raw.floor) <= 2 * DAY_MS


def test_names_of_a_cluster(tmp_path: Path) -> None:
    """They have no floor, and keep their last tickets for some minutes."""
    require("redis")
    url = suite.cluster(tmp_path)
    host, _, port = url.partition("://")[2].partition(",")[0].partition(":")
    with closing(Seat(url)) as seat, closing(redis.RedisCluster(host=host, port=int(port))) as client:
        claim, first = seat.joined(name="dibs:a", lease=86_400.0)
        seat.leave(claim)
        (key,) = client.scan_iter(f"{url.partition('prefix=')[2]}*")
        assert 5 * 60_000 < client.pttl(key) <= 10 * 60_000
        assert Head(client.hget(key, "h")).covered == b"9" * 16
        assert seat.joined(name="dibs:a")[1].ticket > first.ticket


def test_a_renewal_prolongs_the_key(seat: Seat, raw: Raw) -> None:
    """As if the claim were kept since long; while there is time enough the key is left alone, which saves a command."""
    queue = raw.queue()
    claim, _ = seat.joined(name="dibs:a")
    before = queue.lasts()
    seat.renew(claim)
    assert queue.lasts() <= before
    soon = raw.now() // 1000 + 15_000
    raw.client.pexpireat(queue.key, soon)
    queue.change_head(keeps=soon // 1000)
    seat.renew(claim)
    assert queue.lasts() > 20_000
    assert abs(queue.head().keeps * 1000 - raw.now() // 1000 - queue.lasts()) < 10_000


def test_nothing_stays_but_the_last_ticket(seats: Callable[[], Seat], raw: Raw) -> None:
    """However they went: given back, expired, evicted; a grave keeps a late join out for a while."""
    ana, bob, line = seats(), seats(), raw.queue()
    short, _ = ana.joined(name="dibs:a", lease=0.5)
    waiter, _ = bob.joined(name="dibs:a", waiting=0.5, by=30)
    last, standing = ana.joined(name="dibs:a", waiting=60)
    assert line.own_fields() == {b"h", waiter.id, last.id, b">" + waiter.id}
    until_expired(raw, line.record(last.id)["ASKED"] + SECOND // 2)
    held = ana.look(last)
    assert held is not None
    assert held.holds
    assert [record["ID"] for record in line.check()] == [last.id]
    assert not ana.leave(short)
    assert not bob.leave(waiter, answered=False)
    assert ana.evict(standing.ticket, "dibs:a")
    assert not ana.leave(last)
    tombs = [b"!" + waiter.id, b"!" + last.id]
    assert line.own_fields() <= {b"h", b"=" + digits(0), b"=" + digits(1), *tombs}
    for tomb in tombs:
        line.write(tomb, digits(raw.now() - 1))
    again, standing = ana.joined(name="dibs:a")
    ana.leave(again)
    assert line.own_fields() == {b"h"}, "tombstones are for a while, too"
    assert line.head().top == standing.ticket
    assert len(line.fields()[b"h"]) == FREE
    assert 0 < line.lasts() <= 60_000 + KEPT_MS


def test_a_ticket_is_higher_than_the_last_though_the_clock_is_behind(seat: Seat, raw: Raw) -> None:
    ahead = raw.now() + 3600 * SECOND
    claim, _ = seat.joined(name="dibs:a")
    seat.leave(claim)
    raw.queue().change_head(top=ahead)
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
    raw.client.delete(raw.queue().key)
    assert seat.joined(name="dibs:a")[1].ticket > first.ticket


def test_a_ticket_is_higher_though_the_clock_was_set_back_and_the_record_is_gone(seat: Seat, raw: Raw) -> None:
    """As if the clock had shown an hour more when other names were used, or this one."""
    claim, before = seat.joined(name="dibs:a")
    seat.leave(claim)
    ahead = raw.now() + 3600 * SECOND
    raw.client.set(raw.floor, b"%d 0" % ahead)
    tickets = []
    for name in ("dibs:a", "dibs:b", "dibs:a"):
        raw.client.delete(raw.queue(name).key)
        tickets.append(seat.joined(name=name)[1].ticket)
        raw.client.delete(raw.queue(name).key)
    assert before.ticket < ahead < tickets[0]
    assert tickets == sorted(set(tickets))
    claim, passed = seat.joined(name="dibs:c")
    seat.leave(claim)
    raw.client.set(raw.floor, b"%d %d" % (raw.now() - SECOND, passed.ticket))
    raw.client.delete(raw.queue("dibs:c").key)
    assert seat.joined(name="dibs:c")[1].ticket == passed.ticket + 1, "the clock was set right, and has not come so far"


def test_every_ticket_is_below_the_floor(seat: Seat, raw: Raw) -> None:
    """Of a name that is used again and again, too: it is raised a tenth of a second ahead, and no further."""
    for _ in range(3):
        before = raw.now()
        while raw.now() < before + SECOND // 8:
            claim, standing = seat.joined(name="dibs:a")
            seat.leave(claim)
            base, high = map(int, raw.client.get(raw.floor).split())
            assert standing.ticket <= max(base + SECOND // 10, high)
            assert base <= raw.now()
            assert high == 0


def test_a_ticket_that_a_quorum_agreed_on_is_below_the_floor(seat: Seat, raw: Raw) -> None:
    """Its clocks may be ahead of this server's."""
    claim, _ = seat.joined(name="dibs:a")
    token = raw.now() + 3600 * SECOND
    queue: Any = seat.queue
    assert step(queue.stamp(claim, token, seat.soon))
    raw.client.delete(raw.queue().key)
    assert seat.joined(name="dibs:a")[1].ticket > token


@pytest.mark.parametrize("text", ["", "x", "1", "-1 0", "1 99999999999999999999", "9e99 1"])
def test_a_damaged_floor(seat: Seat, raw: Raw, text: str) -> None:
    """Nothing is granted, and the key of the name is left alone."""
    raw.client.set(raw.floor, text)
    with pytest.raises(StoreError, match="damaged"):
        seat.joined(name="dibs:a")
    assert not raw.client.exists(raw.queue().key)


def test_keys_of_all_spaces_differ(url: str, raw: Raw) -> None:
    """A name in each space, and names that look like the keys of others."""
    with dibs.connect(url) as client:
        for name in ("a", "a|line", "a|fence", "client:00", "identity"):
            client.cell(name).set(b"x", 0)
            client.fence(name).admit(1)
            client.latch(name).arm(1)
            client.lock(name).acquire(timeout=30)
        assert len(raw.all_keys()) == 4 * 5 + 1
        assert [info.name for info in client.locks()] == ["a", "a|fence", "a|line", "client:00", "identity"]
        for key in raw.all_keys():
            is_forever = raw.client.ttl(key) == -1
            assert is_forever == (key != raw.floor and not key.endswith(b"|line")), "only a line ends by itself"


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
    """The commands of each operation with that many waiters. One join in each tenth of a second raises the floor: the
    join that is counted does."""
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
    """All commands, two EVALSHA and a PUBLISH among them. Every tenth of a second a join raises the floor, besides."""

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
        write = Write(CellKey(CELL, "dibs:c"), b"x%d" % self.version, self.version, id, by)
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
