"""Data of nodes: ours is read back as written; data of other programs is shown, but not trusted."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dibs.backends.zookeeper.queue_rule import REVOKE, participant, ticket_of, written
from dibs.backends.zookeeper.wire.codec import Node, Stat
from dibs.info import Participant, write_description

CZXID = 1000
MADE_AT = 1_700_000_000_000
ABOUT = write_description("ana", "web-3", 4121, "main", {"order": 42})
texts = st.text(max_size=20)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(
    st.sampled_from(["owner", "host", "pid", "thread", "info", "session", "ticket", "held"]) | texts,
    anything,
    max_size=8,
)


def node(data: bytes, czxid: int = CZXID, made_at: int = MADE_AT) -> Node:
    return Node(data, Stat(czxid, czxid, made_at, made_at, 0, 0, 0, 7, len(data), 0, czxid))


def seen(data: bytes, **description: int) -> Participant:
    return participant(node(data, **description), 1, 12.0)


def json_node(**said: object) -> bytes:
    return json.dumps(said).encode()


@given(
    description=st.builds(
        write_description, texts, texts, st.integers(0, 2**22), texts, st.dictionaries(texts, texts, max_size=3)
    )
    | st.just("{}"),
    timeout=st.floats(0.5, 1e6),
    ticket=st.integers(0, CZXID - 1),
    held=st.booleans(),
)
def test_a_node_has_one_json_object_with_the_whole_description(
    description: str, timeout: float, ticket: int, held: bool
) -> None:
    said = json.loads(written(description, timeout, ticket, held))
    session, number, since = said.pop("session"), said.pop("ticket", 0), said.pop("held", None)
    assert said == json.loads(description)
    assert session == pytest.approx(timeout, rel=1e-5)
    assert (number, since is not None) == (ticket, held)


def test_a_claim_is_shown_by_its_data_and_its_node() -> None:
    shown = participant(node(written(ABOUT, 9.0)), 3, 12.0)
    assert shown == Participant(
        owner="ana", host="web-3", pid=4121, thread="main", since=datetime.fromtimestamp(MADE_AT / 1000, UTC),
        remaining=9.0, token=CZXID, weight=3, info={"order": 42},
    )  # fmt: skip


def test_a_waiter_holds_since_its_grant() -> None:
    before = time.time()
    since = seen(written(ABOUT, 9.0, held=True)).since.timestamp()
    assert before - 0.001 <= since <= time.time() + 0.001


def test_a_node_that_took_the_place_of_another_bears_the_first_ones_ticket() -> None:
    data = written(ABOUT, 9.0, ticket=600)
    assert ticket_of(node(data)) == seen(data).token == 600


IMPOSSIBLE = {
    "ticket": [0, -5, CZXID, CZXID + 1, 2**80, True, False, 1.5, "600", None, [600], {"a": 1}, float("nan")],
    "held": [0, -1, MADE_AT - 1, 10**15, 10**400, True, 1.5, "x", None, []],
    "session": [0, -1, 2**63, 10**400, True, "9", None, [], float("inf"), float("nan")],
}
"""A ticket is a whole number below the node's own: a later node took the place of an earlier one."""


def test_an_impossible_value_is_ignored() -> None:
    for field, value in ((field, value) for field, values in IMPOSSIBLE.items() for value in values):
        data = json_node(**{field: value})
        shown = seen(data)
        assert (ticket_of(node(data)), shown.token, shown.remaining) == (CZXID, CZXID, 12.0), value
        assert type(shown.token) is int
        assert shown.since == datetime.fromtimestamp(MADE_AT / 1000, UTC), value


def test_a_node_made_at_an_impossible_instant_is_shown() -> None:
    for made_at in (-(2**63), -1, 0, 2**63 - 1):
        assert seen(b"", made_at=made_at).since.tzinfo is UTC


def test_data_of_other_programs_is_shown_as_the_owner() -> None:
    for data, owner in (
        (b"10.0.0.5", "10.0.0.5"),
        (b'"quoted"', '"quoted"'),
        (b"[1, 2]", "[1, 2]"),
        (b"", "?"),
        (REVOKE, "?"),
        (b"\x1b[31mred\x00", "\\x1b[31mred\\x00"),
        (b"\xff\xfe\x00", "\ufffd\ufffd\\x00"),
        (b"x" * 5000, "x" * 200),
        (b'{"owner": "cut o', '{"owner": "cut o'),
    ):
        shown = seen(data)
        assert (shown.owner, shown.token, shown.remaining) == (owner, CZXID, 12.0)
        assert shown.label.isprintable()


def is_sound(shown: Participant) -> bool:
    return (
        (type(shown.token), type(shown.remaining), type(shown.since)) == (int, float, datetime)
        and 0 < shown.token <= CZXID
        and 0 < shown.remaining < 2**62
        and isinstance(shown.pid, int)
        and isinstance(shown.info, dict)
        and shown.label.isprintable()
    )


@given(st.binary(max_size=80) | objects.map(lambda said: json.dumps(said).encode()))
@example(b"[" * 200_000)
@example(b'{"a":' * 200_000)
@example(b"9" * 100_000)
@example(b'{"ticket": ' + b"9" * 10_000 + b"}")
@example(b"{" + b" " * 10**6)
def test_any_data_is_shown(data: bytes) -> None:
    assert is_sound(seen(data))
