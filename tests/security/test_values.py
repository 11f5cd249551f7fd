"""Hostile values in Redis (case 24): whatever stands at a line's key, nobody is granted by it and nobody crashes.

Whoever may write these could as well delete the claims of others. What counts here is that nonsense never becomes a
grant, a crash of somebody else's program, or a script that does not end.
"""

# ruff: noqa: PT017  (whether it is refused is free, how is not)

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import redis

import dibs
from lab.servers import shared_redis
from security.planted import is_said_well, nothing_comes_of_it, others_are_served
from store.redis.hashes import SECOND, Line, Raw, packed

HUGE = 2_000_000
DAY = 86_400 * SECOND
RECORDS: dict[str, dict[str, Any]] = {
    "a weight below nothing": {"WEIGHT": -5},
    "the least weight": {"WEIGHT": -(2**63)},
    "the greatest weight": {"WEIGHT": 2**63 - 1},
    "a weight that is no number": {"WEIGHT": nan},
    "a weight beyond all numbers": {"WEIGHT": inf},
    "a weight below all numbers": {"WEIGHT": -inf},
    "a weight in letters": {"WEIGHT": b"much"},
    "a weight in digits": {"WEIGHT": b"-5"},
    "no weight": {"WEIGHT": None},
    "a list for a weight": {"WEIGHT": [1]},
    "the greatest capacity": {"CAPACITY": 2**63 - 1},
    "a capacity that is no number": {"CAPACITY": nan},
    "a capacity beyond all numbers": {"CAPACITY": inf},
    "a capacity below nothing": {"CAPACITY": -1},
    "truth for a capacity": {"CAPACITY": True},
    "the greatest ticket": {"TICKET": 2**63 - 1},
    "a ticket of 2^63": {"TICKET": 2**63},
    "a ticket below nothing": {"TICKET": -1},
    "a ticket that is no number": {"TICKET": nan},
    "a ticket beyond all numbers": {"TICKET": inf},
    "a ticket in letters": {"TICKET": b"first"},
    "a lease without an end": {"LEASE": inf, "UNTIL": inf},
    "a lease that is no number": {"LEASE": nan, "UNTIL": inf},
    "a lease and an end that are no numbers": {"LEASE": nan, "UNTIL": nan},
    "an end that is no number": {"UNTIL": nan},
    "an end in letters": {"UNTIL": b"never"},
    "a lease of a thousand years": {"LEASE": 365_000 * DAY, "UNTIL": 2**62},
    "a waiting lease that is no number": {"WAITING": nan},
    "held since the end of time": {"HELD": inf, "ASKED": inf},
    "held since no time": {"HELD": nan, "ASKED": nan},
    "asked in letters": {"ASKED": b"now", "HELD": b"now"},
    "revoked by all means": {"REVOKED": 2**63 - 1},
    "revoked in letters": {"REVOKED": b"yes"},
    "about 2 MB": {"ABOUT": b"x" * HUGE},
    "about no JSON": {"ABOUT": b"{"},
    "about no text": {"ABOUT": bytes(range(128, 256))},
    "about a number": {"ABOUT": 7},
    "about nothing": {"ABOUT": None},
    "about something deep": {"ABOUT": b'{"owner": ' + b"[" * 3000 + b"]" * 3000 + b"}"},
    "about lone surrogates": {"ABOUT": b'{"owner": "\\ud800", "host": "\\udfff"}'},
    "about another's types": {"ABOUT": b'{"owner": {}, "host": [], "pid": "x", "thread": null, "info": 5}'},
    "about numbers without end": {"ABOUT": json.dumps({"pid": 10**300}).encode()},
    "about words for a terminal": {
        "ABOUT": b'{"owner": "\\u001b]0;owned\\u0007", "info": {"\\u001b[2J": "\\u001b[2J"}}'
    },
    "a kind of its own": {"KIND": b"\x1b]0;owned\x07\x1b[2J"},
    "a kind of 2 MB": {"KIND": b"k" * HUGE},
    "a kind that is a number": {"KIND": 7},
    "no kind": {"KIND": None},
    "a client that is none": {"CLIENT": None},
    "a client that is a list": {"CLIENT": [b"a"]},
    "behind itself": {"BEHIND": "own"},
    "before itself": {"BEFORE": "own"},
    "behind it nobody": {"BEHIND": os.urandom(16)},
    "behind it a number": {"BEHIND": 7},
    "behind it the first of all": {"BEHIND": b"first"},
    "behind it nothing": {"BEHIND": None},
    "another's id": {"ID": os.urandom(16)},
    "an id that is a number": {"ID": 7},
}
TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "no MessagePack": b"\xc1" * 40,
    "cut off": packed([b"x" * 16, 1])[:-3],
    "a number": packed(7),
    "a list without anything": packed([]),
    "a list that is too long": packed([1] * 1000),
    "a list that is announced and does not come": b"\xdd\xff\xff\xff\xff",
    "a hundred thousand lists in lists": b"\x91" * 100_000,
    "2 MB": b"x" * HUGE,
    "a map": packed({b"TICKET": 1}),
}
META: dict[str, dict[str, bytes]] = {
    "the greatest last ticket": {"top": b"9223372036854775807"},
    "a last ticket of 2^63": {"top": b"9223372036854775808"},
    "a last ticket of 2^53": {"top": b"9007199254740992"},
    "a last ticket in letters": {"top": b"high"},
    "a last ticket beyond all numbers": {"top": b"inf"},
    "a last ticket that is no number": {"top": b"nan"},
    "a last ticket below nothing": {"top": b"-9223372036854775808"},
    "ends that do not exist": {"first": b"x" * 16, "last": b"y" * 16},
    "a first without a last": {"first": b"x" * 16},
    "ends that are fields of the line itself": {"first": b"top", "last": b"top", "top": b"7"},
    "graves in letters": {"tombs": b"none"},
    "graves that are a number": {"tombs": packed(7)},
    "graves without number": {"tombs": b"0 99999999999999999999"},
    "graves of nobody": {"tombs": b"0 3"},
    "graves until soon": {"tombs": b"0 1", "#0": b"x" * 16, "~" + "x" * 16: b"soon"},
    "graves without an end": {"tombs": b"0 1", "#0": b"x" * 16, "~" + "x" * 16: b"inf"},
    "an end of the key in letters": {"keeps": b"long"},
    "an end of the key without an end": {"keeps": b"inf"},
    "outsiders in letters": {"outside": b"many"},
    "outsiders for ever": {"outside": b"1e300"},
}
HARMLESS = {
    "graves in letters",
    "graves that are a number",
    "graves of nobody",
    "graves until soon",
    "graves without an end",
    "outsiders for ever",
    "an end of the key without an end",
}
"""A line with that is used by one at a time all the same."""


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
def case_of(line: Line, case: str) -> Iterator[None]:
    """One of many: an error says which, and the line is removed."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case}")
        raise
    finally:
        line._client.delete(line.key)


def planted(line: Line, case: str) -> bytes:
    id = os.urandom(16)
    changed = {field: id if value == "own" else value for field, value in RECORDS[case].items()}
    return line.plant(id, **changed)


FIELDS = sorted({next(iter(changed)) for changed in RECORDS.values()})


def cases_of(field: str) -> list[str]:
    return [case for case, changed in RECORDS.items() if next(iter(changed)) == field]


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_record_of_a_holder(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, field: str
) -> None:
    """It stands there as a holder: the name is busy, or an error says what is wrong. On others' nobody notices."""
    for case in cases_of(field):
        with case_of(hostile.line(), case):
            planted(hostile.line(), case)
            nothing_comes_of_it(clients[0], url)
            others_are_served(*clients)


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_record_beside_a_holder(clients: tuple[dibs.Client, dibs.Client], hostile: Raw, field: str) -> None:
    """Behind one, in the line of a name that is held: nobody gets in beside the holder, whose own hold is honest."""
    client, other = clients
    for case in cases_of(field):
        with case_of(hostile.line(), case):
            hold = client.lock("a").acquire(timeout=10)
            assert hold is not None
            planted(hostile.line(), case)
            for fair in (None, False):
                with suppress(dibs.DibsError):
                    assert other.lock("a", fair=fair).acquire(timeout=0) is None, "granted beside a holder"
            hold.check()
            with suppress(dibs.DibsError):
                hold.release()


def test_what_is_no_record(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """The error names the key."""
    line = hostile.line()
    for case, text in TEXTS.items():
        with case_of(line, case):
            line.write(line.plant(), text)
            said = nothing_comes_of_it(clients[0], url)
            assert len(said) >= 6
            answered = [one for one in said if "in time" not in one]  # a busy server takes a while to read a long one
            assert answered
            assert all(line.key.decode() in one for one in answered)
            others_are_served(*clients)


def test_what_is_no_line(url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """The error names the key, and what stands there is left alone; a listing of all names is not ended by it."""
    key = hostile.line().key
    plants: dict[str, Callable[[], object]] = {
        "string": lambda: hostile.client.set(key, "x"),
        "list": lambda: hostile.client.rpush(key, "x"),
        "set": lambda: hostile.client.sadd(key, "x"),
        "zset": lambda: hostile.client.zadd(key, {"x": 1}),
        "stream": lambda: hostile.client.xadd(key, {"x": 1}),
        "another's hash": lambda: hostile.client.hset(key, mapping={"first": "ana", "last": "bob"}),
    }
    for kind, plant in plants.items():
        with case_of(hostile.line(), kind):
            hostile.client.delete(key)  # a claim of the case before, given back late, leaves a tombstone
            plant()
            before = hostile.client.dump(key)
            said = nothing_comes_of_it(clients[0], url)
            assert all(key.decode() in text for text in said if "not held" not in text)
            assert hostile.client.dump(key) == before
            others_are_served(*clients)


@pytest.mark.parametrize("case", META)
def test_a_hostile_line_is_refused_or_used_by_one_at_a_time(
    url: str, clients: tuple[dibs.Client, dibs.Client], hostile: Raw, case: str
) -> None:
    for field, value in META[case].items():
        hostile.line().write(field, value)
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
    line = hostile.line()
    ids = [line.plant(CAPACITY=100, KIND=b"semaphore") for _ in range(5)]
    line.replant(ids[-1], BEHIND=ids[1])
    said = nothing_comes_of_it(clients[0], url)
    assert any("damaged" in text for text in said)
    with suppress(dibs.DibsError):
        assert clients[0].semaphore("a", 100).acquire(timeout=0) is None
    others_are_served(*clients)


def test_a_record_that_lasts_for_ever_can_be_broken(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    line = hostile.line()
    ticket = line.record(line.plant(LEASE=73_000 * DAY, UNTIL=8 * 10**15))["TICKET"]
    client = clients[0]
    assert client.lock("a").acquire(timeout=0) is None
    with pytest.raises(dibs.NotHeld):
        client.break_("a", token=ticket + 1)
    client.break_("a", token=ticket)
    with client.lock("a", timeout=30) as hold:
        assert hold.token > ticket


def test_a_crowd_of_planted_claims(clients: tuple[dibs.Client, dibs.Client], hostile: Raw) -> None:
    """Five thousand that have expired, more than Lua takes arguments: whoever comes sweeps them, and is served."""
    line = hostile.line()
    line.plant_many(5000, UNTIL=hostile.now() - DAY)
    client, other = clients
    with client.lock("a", timeout=10) as hold:
        assert other.lock("a").acquire(timeout=0) is None
        hold.check()
    assert line.check() == []


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
