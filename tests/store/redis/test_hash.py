"""How a queue is stored: how long its key lasts, which tickets it gives, and how names are listed.
tests/store/test_rule.py checks that the chain stays whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

import dibs
from dibs.backends.redis import queue
from dibs.errors import Mismatch, StoreError
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab import suite
from lab.servers import shared_redis
from lab.servers.programs import require
from lab.servers.supervisor import until
from security.test_inputs import ODD_NAMES
from store.redis.hashes import SECOND, Head, Raw, digits

DAY_MS = 86_400_000
KEPT_MS = 20_000
"""An idle name keeps its last ticket for at most so long beyond the lease that was in use."""
MANY = 60
FREE = 43
"""Characters of the head of a free queue."""


def test_a_key_lasts_longer_than_whoever_stands_there(seat: Seat, raw: Raw) -> None:
    claim, _ = seat.joined(name="dibs:a", lease=10 * 86_400.0)
    assert 10 * DAY_MS < raw.queue().lasts() <= 10 * DAY_MS + KEPT_MS
    seat.leave(claim)
    assert 0 < raw.queue().lasts() <= KEPT_MS, "of a long lease nothing stays either"


@pytest.mark.gate
def test_names_that_are_used_once_do_not_pile_up(seats: Callable[[], Seat], raw: Raw) -> None:
    """However their claims ended: one key for all names lasts longer."""
    seat, other = seats(), seats()
    for number in range(MANY):
        claim, _ = seat.joined(name=f"dibs:{number}")
        waiter, _ = other.joined(name=f"dibs:{number}", lease=86_400.0)
        other.leave(waiter, answered=number % 2 == 0)
        if number % 3:
            seat.leave(claim)
    tried = [seat.claim(name=f"dibs:never-{number}") for number in range(MANY)]
    for claim in tried:
        seat.leave(claim, answered=False)
    lasting = [key for key in raw.all_keys() if raw.client.pttl(key) > KEPT_MS + 65_000]
    assert lasting == [raw.floor]
    assert 0 < raw.client.pttl(raw.floor) <= 2 * DAY_MS


@pytest.mark.gate
def test_names_of_a_cluster(tmp_path: Path) -> None:
    """A cluster has no floor: names keep their last tickets for some minutes."""
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
    """A renewal leaves a key alone that lasts long enough, which saves a command."""
    queue = raw.queue()
    claim, _ = seat.joined(name="dibs:a")
    before = queue.lasts()
    seat.renew(claim)
    assert queue.lasts() <= before
    soon = raw.now() // 1000 + 40_000
    raw.client.pexpireat(queue.key, soon)
    queue.change_head(keeps=soon // 1000)
    seat.renew(claim)
    assert raw.client.pexpiretime(queue.key) > soon + 10_000
    assert abs(queue.head().keeps * 1000 - raw.client.pexpiretime(queue.key)) < 10_000


@pytest.mark.gate
def test_nothing_stays_but_the_last_ticket(seats: Callable[[], Seat], raw: Raw) -> None:
    """Claims are released, expire, or are evicted; a tombstone keeps a late join out for a while."""
    ana, bob, queue = seats(), seats(), raw.queue()
    short, _ = ana.joined(name="dibs:a", lease=0.5)
    waiter, _ = bob.joined(name="dibs:a", waiting=0.5, by=30)
    last, standing = ana.joined(name="dibs:a", waiting=60)
    assert queue.own_fields() == {b"h", waiter.id, last.id, b">" + waiter.id}
    expiry = queue.record(last.id)["ASKED"] + SECOND // 2
    until(lambda: raw.now() > expiry, what="both have expired")
    held = ana.look(last)
    assert held is not None
    assert held.holds
    assert [record["ID"] for record in queue.check()] == [last.id]
    assert not ana.leave(short)
    assert not bob.leave(waiter, answered=False)
    assert ana.evict(standing.ticket, "dibs:a")
    assert not ana.leave(last)
    tombs = [b"!" + waiter.id, b"!" + last.id]
    assert queue.own_fields() <= {b"h", b"=" + digits(0), b"=" + digits(1), *tombs}
    for tomb in tombs:
        queue.write(tomb, digits(raw.now() - 1))
    again, standing = ana.joined(name="dibs:a")
    ana.leave(again)
    assert queue.own_fields() == {b"h"}, "tombstones are for a while, too"
    assert queue.head().top == standing.ticket
    assert len(queue.fields()[b"h"]) == FREE
    assert 0 < queue.lasts() <= 60_000 + KEPT_MS


def test_a_ticket_is_higher_though_the_clock_was_set_back_and_the_record_is_gone(seat: Seat, raw: Raw) -> None:
    """The clock showed an hour more when other names were used, or this one."""
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


@pytest.mark.gate
def test_every_ticket_is_below_the_floor(seat: Seat, raw: Raw) -> None:
    """Also for a name that is used again and again: the floor is raised a tenth of a second ahead, and no further."""
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
    claim, _ = seat.joined(name="dibs:a")
    token = raw.now() + 3600 * SECOND
    queue: Any = seat.queue
    assert step(queue.stamp(claim, token, seat.soon))
    raw.client.delete(raw.queue().key)
    assert seat.joined(name="dibs:a")[1].ticket > token


def test_a_damaged_floor(seat: Seat, raw: Raw) -> None:
    """Nothing is granted, and the key of the name is left alone."""
    for text in ("", "x", "1", "-1 0", "1 99999999999999999999", "9e99 1"):
        raw.client.set(raw.floor, text)
        with pytest.raises(StoreError, match="damaged"):
            seat.joined(name="dibs:a")
        assert not raw.client.exists(raw.queue().key), text


def test_a_queue_of_a_newer_layout_is_refused(seat: Seat, raw: Raw) -> None:
    seat.leave(seat.joined(name="dibs:a")[0])
    raw.queue().write("h", b"3" + raw.queue().fields()[b"h"][1:])
    before = raw.queue().fields(), raw.client.pexpiretime(raw.queue().key)
    with pytest.raises(Mismatch, match="a newer version of dibs uses the key"):
        seat.joined(name="dibs:a")
    assert (raw.queue().fields(), raw.client.pexpiretime(raw.queue().key)) == before


def test_keys_of_all_spaces_differ(url: str, raw: Raw) -> None:
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
            assert is_forever == (key != raw.floor and not key.endswith(b"|line")), "only a queue ends by itself"


@pytest.mark.gate
def test_listings_in_turn_go_through_the_keys_once_each(seat: Seat, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PAGE", 2)
    names = {letter: [f"dibs:{letter}{number}" for number in range(1, 6)] for letter in "ab"}
    for name in [*names["a"], *names["b"]]:
        seat.joined(name=name)

    def calls(command: str) -> int:
        return int(raw.client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])

    def scans(*letters: str) -> int:
        """Read these listings page by page, in turn."""
        before, found = calls("scan"), {letter: list[str]() for letter in letters}
        for _ in range(4):
            for letter in letters:
                page = seat.names(f"dibs:{letter}", "".join(found[letter][-1:]))
                assert len(page) <= 2
                found[letter] += page
        assert found == {letter: names[letter] for letter in letters}
        return calls("scan") - before

    scans("a")
    used = calls("keys")
    one = scans("a")
    assert scans("a", "b") < 4 * one, "eight pages, and each went through all keys"
    assert calls("keys") == used


def test_signs_with_a_meaning_have_none(url: str) -> None:
    """In a name, in the prefix of a listing, and in the store's own prefix."""
    signs = ["*", "?", "[a-z]", "[^a]", "\\", "\\*", "a*|line", "{a}"]
    names = [*ODD_NAMES, "plain", "apple", *signs, *(f"{sign}x" for sign in signs)]
    names = list(dict.fromkeys(names))
    with dibs.connect(url) as client:
        assert all(client.lock(name).acquire(timeout=30) for name in names)
        assert [info.name for info in client.locks()] == sorted(names)
        for name in names:
            expected = sorted(other for other in names if other.startswith(name))
            assert [info.name for info in client.locks(name)] == expected
    server = url.partition("?")[0]
    with (
        dibs.connect(server, prefix="app[1]*/") as client,
        dibs.connect(server, prefix="app1-other/") as other,
        client.lock("ours", timeout=30),
        other.lock("theirs", timeout=30),
    ):
        assert [info.name for info in client.locks()] == ["ours"]


def test_prefixes_keep_apart(tmp_path: Path) -> None:
    """Also if one begins like another; and each is a store with an id of its own."""
    url, _, prefix = shared_redis.fresh(tmp_path).partition("?prefix=")
    with dibs.connect(url, prefix=prefix) as short, dibs.connect(url, prefix=f"{prefix}dibs:") as long:
        assert short.lock("a").acquire(timeout=0)
        assert long.lock("a").acquire(timeout=0)
        short.fence("f").admit(5)
        long.fence("f").admit(3)
        assert long.cell("c").set(b"x", 0) == 1
        assert short.cell("c").get() == (None, 0)
        assert [info.name for info in long.locks()] == ["a"]
    seats = [Seat(f"{url}?prefix={prefix}{more}") for more in ("", "", "dibs:")]
    try:
        found = [step(seat.queue.identity(seat.soon)) for seat in seats]
    finally:
        for seat in seats:
            seat.close()
    assert found[0] == found[1] != found[2]


def test_keys_of_others_are_not_listed(url: str, raw: Raw) -> None:
    """Foreign keys, keys of other spaces, and a name that is no longer in use."""
    for key in (b"\xff\xfe|line", b"x|cell", b"dibs:x|fence", b"dibs:y"):
        raw.client.set(raw.prefix.encode() + key, "theirs")
    with dibs.connect(url) as client:
        assert client.lock("a").acquire(timeout=30)
        with client.lock("idle", timeout=30):
            """Its last ticket stays for some seconds."""
        assert raw.client.exists(raw.queue("dibs:idle").key)
        assert [info.name for info in client.locks()] == ["a"]
