"""Who holds, by the names of nodes: equal to the one rule over the same line, whatever stands there and whoever wrote
it; and whoever waits watches one that must go before it may hold."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.backends.zookeeper.queue_rule import (  # fmt: skip
    LATCH,
    LEASE,
    LOCK,
    READ,
    WRITE,
    Listing,
    Verdict,
    owner_of,
    parse,
    prefix_of,
    uuid_of,
    word_of,
)
from dibs.core.queue import ELECTION
from dibs.core.rule import RW_CAPACITY, Claim, Entry, head

UUID = "00010203-0405-0607-0809-0a0b0c0d0e0f"
WORDS = {"mutex": [LOCK], ELECTION: [LATCH], "rw": [READ, WRITE], "striped": ["striped-8-"]}
CAPACITIES = {"mutex": 1, ELECTION: 1, "rw": RW_CAPACITY, "striped": 8}
STRANGE = ["locks", "leases", "x", "lock", "lock-1", "lock-000000001", "LOCK-0000000001", "%written", "%cell", "%",
           "0000000001", "lock-0000000001x", "__READ__", "_c_-", f"{'0' * 32}__lock__0000000001", "lock-0000000001.tmp",
           "-000000001", "__READ__-000000001", "READ__0000000001"]  # fmt: skip

fewer = settings(max_examples=40)
kinds = st.sampled_from(sorted(WORDS))
protections = st.one_of(
    st.just(""),
    st.uuids().map(lambda own: f"_c_{own}-"),
    st.uuids().map(lambda own: f"_c_{own.hex}-"),  # as Go's clients write it
    st.sampled_from(["lock-", "__WRIT__", "_c_lock-0000000001-", "latch-0000000001-", "my lock for "]),
)
numbers = st.one_of(st.integers(0, 12), st.sampled_from([2**31 - 1, -(2**31), 2**30, 999_999_999]))


def judge(children: list[str], own: str, claim: Claim) -> Verdict:
    return Listing(children).judge(own, claim)


def would_hold(children: list[str], claim: Claim) -> tuple[bool, str, str]:
    return Listing(children).would_hold(claim)


def claim_of(kind: str, weight: int = 1) -> Claim:
    return Claim(bytes(16), "x", kind, CAPACITIES[kind], weight, 30.0, 5.0, inf, b"me", "{}")


@st.composite
def lines(draw: st.DrawFn, kind: str) -> list[str]:
    """Names of one kind. Each number is given once, but a READ may bear that of a WRIT: a writer that reads too."""
    found: dict[str, None] = {}
    for number in draw(st.lists(numbers, unique=True, max_size=12)):
        word = draw(st.sampled_from(WORDS[kind]))
        owner = draw(protections)
        found[f"{owner}{word}{number:010d}"] = None
        if word == WRITE and draw(st.booleans()):
            found[f"{owner}{READ}{number:010d}"] = None
    return draw(st.permutations(list(found)))


@st.composite
def named_queues(draw: st.DrawFn) -> tuple[str, list[str]]:
    kind = draw(kinds)
    return kind, draw(lines(kind))


def weight_of(name: str, kind: str) -> int:
    if kind == "striped":
        return 0
    return RW_CAPACITY if kind == "rw" and name[:-10].removesuffix("-").endswith(WRITE) else 1


def rank(name: str) -> tuple[str, bool]:
    """Curator's order: by the text behind the word; of a tie the writer comes first, as it was there first."""
    at = max(name.rfind(word) + len(word) for words in WORDS.values() for word in words if word in name)
    return name[at:], WRITE not in name[at - len(WRITE) : at]


def entries(kind: str, names: list[str]) -> list[Entry]:
    return [
        Entry(ticket, name.encode(), b"c", kind, CAPACITIES[kind], weight_of(name, kind), inf, 0.0, None, False, "")
        for ticket, name in enumerate(sorted(names, key=rank), 1)
    ]


def holders(kind: str, names: list[str]) -> set[str]:
    """By the one rule."""
    return {entry.id.decode() for entry in head(entries(kind, names), lambda _: False).holding}


@given(named_queues(), st.booleans(), st.data())
def test_who_holds_and_whom_the_others_watch_is_the_rules(
    drawn: tuple[str, list[str]], writes: bool, data: st.DataObject
) -> None:
    kind, names = drawn
    claim, line = claim_of(kind), [entry.id.decode() for entry in entries(kind, names)]
    verdicts = {name: judge(names, name, claim) for name in names}
    assert all(verdict.is_listed and not verdict.foreign for verdict in verdicts.values())
    assert {name for name, verdict in verdicts.items() if verdict.holds} == holders(kind, names)
    assert [one.name for one in Listing(names).queue] == line
    for name, verdict in verdicts.items():
        assert bool(verdict.watch) != verdict.holds
        if not verdict.holds:  # while the one it watches stands, whoever else went, it does not hold
            before = line[: line.index(name)]
            writers = [other for other in before if weight_of(other, kind) > 1]
            assert verdict.watch == (writers if kind == "rw" and weight_of(name, kind) == 1 else before)[-1]
            left = [other for other in names if other in (name, verdict.watch) or data.draw(st.booleans())]
            assert not judge(left, name, claim).holds
    weight = 0 if kind == "striped" else RW_CAPACITY if kind == "rw" and writes else 1
    newcomer = Entry(99, b"new", b"c", kind, CAPACITIES[kind], weight, inf, 0.0, None, False, "")
    walked = head([*entries(kind, names), newcomer], lambda _: False)
    assert would_hold(names, claim_of(kind, weight)) == (newcomer in walked.holding, line[-1] if line else "", "")


@fewer
@given(named_queues(), st.permutations(STRANGE), st.integers(0, 3), st.data())
def test_what_is_no_contender_is_foreign_unless_it_is_ours(
    drawn: tuple[str, list[str]], strange: list[str], count: int, data: st.DataObject
) -> None:
    kind, names = drawn
    there = strange[:count]
    children = data.draw(st.permutations([*names, *there]))
    expected = [name for name in children if name in there and not name.startswith("%")]
    for name in names:
        verdict = judge(children, name, claim_of(kind))
        assert verdict.foreign == (expected[0] if expected else "")
        assert verdict._replace(foreign="") == judge(names, name, claim_of(kind))
    assert would_hold(children, claim_of(kind))[2] == (expected[0] if expected else "")


@fewer
@given(named_queues(), named_queues())
def test_another_kind_is_foreign_to_all_who_stand_behind_it(
    drawn: tuple[str, list[str]], other: tuple[str, list[str]]
) -> None:
    kind, names = drawn
    kind_there, there = other
    taken = {rank(name)[0] for name in names}
    there = [name for name in there if rank(name)[0] not in taken] if kind != kind_there else []
    for name in names:
        behind = [one for one in there if rank(one) < rank(name)]
        verdict = judge([*names, *there], name, claim_of(kind))
        assert bool(verdict.foreign) == bool(behind)
        assert verdict.foreign in (behind or [""])
    assert bool(would_hold([*names, *there], claim_of(kind))[2]) == bool(there)


@pytest.mark.parametrize("other", ["striped-4-", "striped-80-", "lease-", "foo-1-"])
def test_another_size_or_kind_of_the_same_shape_is_foreign(other: str) -> None:
    first, own = f"_c_{UUID}-{other}0000000001", "striped-8-0000000002"
    assert judge([first, own], own, claim_of("striped")).foreign == first
    assert judge([own, f"{other}0000000003"], own, claim_of("striped")).foreign == ""
    assert would_hold([first], claim_of("mutex"))[2] == first


def test_a_newcomer_passes_nobody_who_waits() -> None:
    """A reader that would fit beside the readers who hold."""
    line = ["__READ__0000000001", "__WRIT__0000000002"]
    assert would_hold(line, claim_of("rw")) == (False, line[-1], "")


def test_whoever_is_not_there_does_not_stand() -> None:
    verdict = judge(["lock-0000000001"], "lock-0000000002", claim_of("mutex"))
    assert (verdict.is_listed, verdict.holds, verdict.watch) == (False, False, "")


def test_a_writer_that_reads_too_is_ahead_of_all_others_with_both() -> None:
    """The READ that bears its number comes after it, and before whoever came later."""
    writer, tie, reader = "a-__WRIT__0000000005", "a-__READ__0000000005", "b-__READ__0000000006"
    claim = claim_of("rw")
    assert judge([reader, tie, writer], writer, claim).holds
    assert judge([reader, tie, writer], reader, claim).watch == writer
    assert judge([reader, tie], reader, claim).holds
    assert judge(["c-__WRIT__0000000007", reader, tie], "c-__WRIT__0000000007", claim).watch == reader


LONG = "9" * 5000


@pytest.mark.parametrize(
    "name",
    [f"striped-{LONG}-0000000001", f"a-{LONG}-0000000001", f"lock-{LONG}", f"__READ__{LONG}", "a" * 200_000,
     f"{'a' * 9000}-1-0000000001", "striped-\u0661-0000000001", f"lock-{chr(0x661) * 10}"],
    ids=range(8),
)  # fmt: skip
def test_no_name_of_others_can_do_more_than_be_foreign(name: str) -> None:
    own = "lock-0000000002"
    verdict = judge([name, own], own, claim_of("mutex"))
    assert verdict.is_listed
    assert verdict.foreign == name
    assert would_hold([name], claim_of("mutex"))[2] == name


@given(st.text(max_size=30).map(lambda text: text + "lock-0000000001") | st.text(max_size=60))
def test_any_name_is_a_contender_or_none(name: str) -> None:
    found = parse(name)
    if found is not None:
        assert name.endswith(found.word + found.number)
        assert (found.weight, found.capacity) >= (0, 0)


# What we write is what we read.


@pytest.mark.parametrize("kind", sorted(WORDS))
def test_the_word_that_we_write_is_read_as_the_same_kind(kind: str) -> None:
    for weight in (1, RW_CAPACITY) if kind == "rw" else (weight_of("", kind),):
        claim = claim_of(kind, weight)
        name = f"{prefix_of(claim.id)}{word_of(claim)}0000000042"
        found = parse(name)
        assert found is not None
        assert (found.kind, found.capacity, found.weight, found.number) == (
            kind,
            CAPACITIES[kind],
            weight,
            "0000000042",
        )


@given(st.binary(min_size=16, max_size=16), st.sampled_from([LOCK, LATCH, LEASE, READ, WRITE, "striped-8-"]))
def test_the_nodes_of_one_claim_are_known_by_their_protection(id: bytes, word: str) -> None:
    assert len(uuid_of(id)) == 36
    assert owner_of(f"{prefix_of(id)}{word}0000000001") == prefix_of(id)
    undashed = f"_c_{id.hex()}-"
    assert owner_of(f"{undashed}{word}0000000001") == undashed
    assert owner_of(f"{word}0000000001") == f"{word}0000000001"
