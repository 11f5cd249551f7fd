"""Hostile values in Redis (case 24): whatever stands at a queue's key, nobody is granted by it and nobody crashes.

Whoever may write these could as well delete the claims of others. What counts here is that nonsense never becomes a
grant, a crash of somebody else's program, or a script that does not end.
"""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

import dibs
from lab.servers import shared_redis
from security.planted import is_said_well, nothing_comes_of_it, others_are_served
from store.redis.hashes import SECOND, Queue, Raw, usual

HUGE = 2_000_000
DAY = 86_400 * SECOND
RECORDS: dict[str, dict[str, Any]] = {
    "a weight below nothing": {"WEIGHT": b"-000000000000005"},
    "the greatest weight": {"WEIGHT": b"9" * 16},
    "a weight of 2^53": {"WEIGHT": 2**53},
    "a weight in letters": {"WEIGHT": b"much".ljust(16)},
    "a weight that is no number": {"WEIGHT": b"nan".rjust(16)},
    "a weight beyond all numbers": {"WEIGHT": b"inf".rjust(16)},
    "a weight in hexadecimal": {"WEIGHT": b"0x00000000000001"},
    "a short weight": {"WEIGHT": b"1"},
    "a long weight": {"WEIGHT": b"0" * 20 + b"1"},
    "no weight": {"WEIGHT": b""},
    "the greatest capacity": {"CAPACITY": b"9" * 16},
    "a capacity below nothing": {"CAPACITY": b"-000000000000001"},
    "the greatest ticket": {"TICKET": b"9" * 16},
    "a ticket of 2^53": {"TICKET": 2**53},
    "no ticket": {"TICKET": 0},
    "a ticket in letters": {"TICKET": b"first".ljust(16)},
    "a ticket above the last one": {"TICKET": 2**53 - 2},
    "a lease without an end": {"LEASE": b"9" * 16, "SPAN": b"9" * 16},
    "a lease that is no number": {"LEASE": b"nan".rjust(16)},
    "no lease": {"LEASE": 0, "SPAN": 0},
    "a lease of two hundred years": {"LEASE": 73_000 * DAY, "SPAN": 73_000 * DAY},
    "a span without an end": {"SPAN": b"9" * 16},
    "a span in letters": {"SPAN": b"never".ljust(16)},
    "since the end of time": {"SINCE": b"9" * 16},
    "since no time": {"SINCE": b"inf".rjust(16)},
    "a waiting lease that is no number": {"WAITING": b"nan".rjust(16)},
    "held since the end of time": {"HELD": b"9" * 16, "ASKED": b"9" * 16},
    "held since no time": {"HELD": b"nan".rjust(16), "ASKED": b"nan".rjust(16)},
    "asked in letters": {"ASKED": b"now".ljust(16), "HELD": b"now".ljust(16)},
    "revoked by all means": {"REVOKED": b"9"},
    "revoked in letters": {"REVOKED": b"y"},
    "about 2 MB": {"ABOUT": b"x" * HUGE},
    "about no JSON": {"ABOUT": b"{"},
    "about no text": {"ABOUT": bytes(range(128, 256))},
    "about nothing": {"ABOUT": b""},
    "about something deep": {"ABOUT": b'{"owner": ' + b"[" * 3000 + b"]" * 3000 + b"}"},
    "about lone surrogates": {"ABOUT": b'{"owner": "\\ud800", "host": "\\udfff"}'},
    "about another's types": {"ABOUT": b'{"owner": {}, "host": [], "pid": "x", "thread": null, "info": 5}'},
    "about numbers without end": {"ABOUT": json.dumps({"pid": 10**300}).encode()},
    "about words for a terminal": {
        "ABOUT": b'{"owner": "\\u001b]0;owned\\u0007", "info": {"\\u001b[2J": "\\u001b[2J"}}'
    },
    "a kind of its own": {"KIND": b"\x1b]0;owned\x07\x1b[2J"},
    "a kind of 2 MB": {"KIND": b"k" * HUGE},
    "no kind": {"KIND": b""},
    "a client without a name": {"CLIENT": b""},
    "a client that is longer than the record": {"CLIENT": b"x", "ABOUT": b""},
    "before itself": {"BEFORE": "own"},
    "before it nobody": {"BEFORE": os.urandom(16)},
    "before it a number": {"BEFORE": b"7"},
    "another's id": {"ID": os.urandom(16)},
    "an id that is a number": {"ID": b"7"},
}
TEXTS: dict[str, bytes] = {
    "no record": b"\xc1" * 400,
    "digits": b"1" * 400,
    "cut off": usual(1, ID=b"x" * 16)[:150],
    "2 MB": b"x" * HUGE,
}
_FREE = b"2" + b"0" * 16 + b"9" * 16 + b"9" * 10
HEADS: dict[str, bytes] = {
    "nothing": b"",
    "one sign": b"2",
    "the greatest last ticket": b"2" + b"9" * 42,
    "a last ticket of 2^53": b"2" + b"9007199254740992" + _FREE[17:],
    "a last ticket in letters": b"2" + b"high".ljust(16) + _FREE[17:],
    "a last ticket below nothing": b"2" + b"-922337203685477" + _FREE[17:],
    "a last ticket that sorts before all numbers": b"2" + b" " * 16 + _FREE[17:],
    "covered in letters": _FREE[:17] + b"z" * 16 + _FREE[33:],
    "an end of the key in letters": _FREE[:33] + b"long".ljust(10),
    "an end of the key without an end": _FREE,
    "one sign too few": _FREE[:-1],
    "one sign too many": _FREE + b" ",
    "a record that is cut off": _FREE + b"a" + b"x" * 150,
    "no record": _FREE + b"a",
    "no record behind the link": _FREE + b"q" + b"x" * 64,
    "something special that is cut off": _FREE + b"s" + b"0" * 30,
    "something special in letters": _FREE + b"s" + b"x" * 49,
    "tombstones without number": _FREE + b"s" + b"0" * 32 + b"9" * 16 + b"0",
    "more tombstones that are over than there are": _FREE + b"s" + b"0" * 16 + b"9".rjust(16, b"0") + b"0" * 17,
    "tombstones of nobody": _FREE + b"s" + b"0" * 32 + b"3".rjust(16, b"0") + b"0",
    "unfair waiters for ever": _FREE + b"s" + b"9" * 16 + b"0" * 33,
    "another layout": b"{}",
    "a layout of the future": b"3" + _FREE[1:],
    "the layout before this": b"1" + _FREE[1:],
    "2 MB": b"2" * HUGE,
}
HARMLESS = {
    "an end of the key without an end",
    "tombstones of nobody",
    "unfair waiters for ever",
}
"""A queue with that is used by one at a time all the same."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_redis.fresh(tmp_path)


@pytest.fixture
def hostile(url: str) -> Iterator[Raw]:
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, url.partition("prefix=")[2])


@pytest.fixture
def clients(url: str) -> Iterator[tuple[dibs.Client, dibs.Client]]:
    with dibs.connect(url, retry=2) as one, dibs.connect(url, retry=2) as other:
        yield one, other


@contextmanager
def case_of(queue: Queue, case: str) -> Iterator[None]:
    """One of many: an error says which, and the queue is removed."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case}")
        raise
    finally:
        queue._client.delete(queue.key)


def planted(queue: Queue, case: str) -> bytes:
    id = os.urandom(16)
    changed = {field: id if value == "own" else value for field, value in RECORDS[case].items()}
    return queue.plant(id, **changed)


FIELDS = sorted({next(iter(changed)) for changed in RECORDS.values()})


def cases_of(field: str) -> list[str]:
    return [case for case, changed in RECORDS.items() if next(iter(changed)) == field]


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_record_of_a_holder(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, field: str
) -> None:
    """It stands there as a holder: the name is busy, or an error says what is wrong. On others' nobody notices."""
    for case in cases_of(field):
        with case_of(hostile.queue(), case):
            planted(hostile.queue(), case)
            nothing_comes_of_it(clients[0], url)
            others_are_served(*clients)


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_record_beside_a_holder(clients: tuple[dibs.Client, dibs.Client], hostile: Raw, field: str) -> None:
    """Behind one, in the queue of a name that is held: nobody gets in beside the holder, whose own hold is honest."""
    client, other = clients
    for case in cases_of(field):
        with case_of(hostile.queue(), case):
            hold = client.lock("a").acquire(timeout=10)
            assert hold is not None
            planted(hostile.queue(), case)
            for fair in (None, False):
                with suppress(dibs.DibsError):
                    assert other.lock("a", fair=fair).acquire(timeout=0) is None, "granted beside a holder"
            hold.check()
            with suppress(dibs.DibsError):
                hold.release()


def test_what_is_no_record(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """The error names the key."""
    queue = hostile.queue()
    for case, text in TEXTS.items():
        with case_of(queue, case):
            queue.plant()
            queue.change_head(record=text)
            said = nothing_comes_of_it(clients[0], url)
            assert len(said) >= 6
            answered = [one for one in said if "in time" not in one]  # a busy server takes a while to read a long one
            assert answered
            assert all(queue.key.decode() in one for one in answered)
            others_are_served(*clients)


def test_what_is_no_line(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """The error names the key, and what stands there is left alone; a listing of all names is not ended by it."""
    key = hostile.queue().key
    plants: dict[str, Callable[[], object]] = {
        "string": lambda: hostile.client.set(key, "x"),
        "list": lambda: hostile.client.rpush(key, "x"),
        "set": lambda: hostile.client.sadd(key, "x"),
        "zset": lambda: hostile.client.zadd(key, {"x": 1}),
        "stream": lambda: hostile.client.xadd(key, {"x": 1}),
        "another's hash": lambda: hostile.client.hset(key, mapping={"first": "ana", "last": "bob"}),
    }
    for kind, plant in plants.items():
        with case_of(hostile.queue(), kind):
            hostile.client.delete(key)  # a claim of the case before, given back late, leaves a tombstone
            plant()
            before = hostile.client.dump(key)
            said = nothing_comes_of_it(clients[0], url)
            assert all(key.decode() in text for text in said if "not held" not in text)
            assert hostile.client.dump(key) == before
            others_are_served(*clients)


@pytest.mark.parametrize("case", HEADS)
def test_a_hostile_line_is_refused_or_used_by_one_at_a_time(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, case: str
) -> None:
    hostile.queue().write("h", HEADS[case])
    client, other = clients
    holds, errors = [], list[dibs.DibsError]()
    for one in (client, other, client):
        try:
            holds.append(one.lock("a").acquire(timeout=0.1))
        except dibs.DibsError as error:
            assert is_said_well(error, url), str(error)[:300]
            errors.append(error)
    got = [hold for hold in holds if hold is not None]
    assert len(got) <= 1, "two holders"
    assert errors or case in HARMLESS, "neither refused nor known to be harmless"
    assert all(hold.token > 0 for hold in got), "a token that no fence would take"
    others_are_served(client, other)


def test_a_circle_of_claims(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """A script that does not end would keep the server from everybody."""
    queue = hostile.queue()
    ids = [queue.plant(CAPACITY=100, KIND=b"semaphore") for _ in range(5)]
    queue.relink(ids[-1], ids[1])
    queue.change_head(last=b"x" * 16)
    said = nothing_comes_of_it(clients[0], url)
    assert any("damaged" in text for text in said)
    with suppress(dibs.DibsError):
        assert clients[0].semaphore("a", 100).acquire(timeout=0) is None
    others_are_served(*clients)


def test_a_record_that_lasts_for_ever_can_be_broken(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    queue = hostile.queue()
    ticket = queue.record(queue.plant(LEASE=73_000 * DAY, SPAN=73_000 * DAY))["TICKET"]
    client = clients[0]
    assert client.lock("a").acquire(timeout=0) is None
    with pytest.raises(dibs.NotHeld):
        client.break_("a", token=ticket + 1)
    client.break_("a", token=ticket)
    with client.lock("a", timeout=30) as hold:
        assert hold.token > ticket


def test_a_crowd_of_planted_claims(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """Five thousand that have expired, more than Lua takes arguments: whoever comes sweeps them, and is served."""
    queue = hostile.queue()
    queue.plant_many(5000, SINCE=hostile.now() - DAY)
    client, other = clients
    with client.lock("a", timeout=10) as hold:
        assert other.lock("a").acquire(timeout=0) is None
        hold.check()
    assert queue.check() == []


CELLS: list[dict[str, str]] = [
    {"value": "x"}, {"version": "1"}, {"value": "x", "version": "-1"}, {"value": "x", "version": "many"},
    {"value": "x" * HUGE, "version": "1"}, {"value": "9" * 400, "version": "1"}, {"value": "-1", "version": "1"},
    {"value": "1", "version": "1", "writes": "garbage"}, {"value": "1", "version": "9" * 30},
]  # fmt: skip


@pytest.mark.parametrize("space", ["latch", "cell", "fence"])
def test_hostile_values_of_cells(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, space: str) -> None:
    """An error that names the key or the thing, or a plain answer; nothing else."""
    client = clients[0]
    uses: dict[str, list[Callable[[], object]]] = {
        "latch": [lambda: client.latch("a").count(), lambda: client.latch("a").wait(timeout=0)],
        "cell": [lambda: client.cell("a").get(), lambda: client.cell("a").set(b"mine", 1)],
        "fence": [lambda: client.fence("a").admit(5), lambda: client.fence("a").admit(6, shared=True)],
    }
    key = f"{hostile.prefix}dibs:a|{space}"
    for fields in CELLS:
        hostile.client.delete(key)
        hostile.client.hset(key, mapping=fields)
        for use in uses[space]:
            try:
                use()
            except dibs.DibsError as error:
                assert is_said_well(error, url), str(error)[:300]
    assert client.latch("b").count() == 0


def test_a_fence_of_another_type_admits_nobody(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    hostile.client.set(f"{hostile.prefix}dibs:a|fence", "5")
    with pytest.raises(dibs.StoreError, match=r"\|fence"):
        clients[0].fence("a").admit(7)
