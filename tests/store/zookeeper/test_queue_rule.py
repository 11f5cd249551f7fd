"""The names of nodes decide as core/rule.py does over the same queue, also beside nodes of other programs. A waiter
watches a node that must go before it may hold."""

from __future__ import annotations

from math import inf

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
def queues(draw: st.DrawFn, kind: str) -> list[str]:
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
    return kind, draw(queues(kind))


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
def test_holders_and_watches_follow_the_rule(drawn: tuple[str, list[str]], writes: bool, data: st.DataObject) -> None:
    kind, names = drawn
    claim, queue = claim_of(kind), [entry.id.decode() for entry in entries(kind, names)]
    verdicts = {name: judge(names, name, claim) for name in names}
    assert all(verdict.is_listed and not verdict.foreign for verdict in verdicts.values())
    assert {name for name, verdict in verdicts.items() if verdict.holds} == holders(kind, names)
    assert [one.name for one in Listing(names).queue] == queue
    for name, verdict in verdicts.items():
        assert bool(verdict.watch) != verdict.holds
        if not verdict.holds:  # it does not hold while the watched node exists, even if others are gone
            before = queue[: queue.index(name)]
            writers = [other for other in before if weight_of(other, kind) > 1]
            assert verdict.watch == (writers if kind == "rw" and weight_of(name, kind) == 1 else before)[-1]
            left = [other for other in names if other in (name, verdict.watch) or data.draw(st.booleans())]
            assert not judge(left, name, claim).holds
    weight = 0 if kind == "striped" else RW_CAPACITY if kind == "rw" and writes else 1
    newcomer = Entry(99, b"new", b"c", kind, CAPACITIES[kind], weight, inf, 0.0, None, False, "")
    walked = head([*entries(kind, names), newcomer], lambda _: False)
    assert would_hold(names, claim_of(kind, weight)) == (newcomer in walked.holding, queue[-1] if queue else "", "")


@fewer
@given(named_queues(), st.permutations(STRANGE), st.integers(0, 3), st.data())
def test_other_nodes_are_foreign_unless_dibs_made_them(
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
def test_another_kind_is_foreign_to_all_claims_behind_it(
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


def test_another_size_or_kind_of_the_same_shape_is_foreign() -> None:
    for other in ("striped-4-", "striped-80-", "lease-", "foo-1-"):
        first, own = f"_c_{UUID}-{other}0000000001", "striped-8-0000000002"
        assert judge([first, own], own, claim_of("striped")).foreign == first
        assert judge([own, f"{other}0000000003"], own, claim_of("striped")).foreign == ""
        assert would_hold([first], claim_of("mutex"))[2] == first


def test_a_missing_node_is_not_listed() -> None:
    verdict = judge(["lock-0000000001"], "lock-0000000002", claim_of("mutex"))
    assert (verdict.is_listed, verdict.holds, verdict.watch) == (False, False, "")


LONG = "9" * 5000


def test_odd_names_of_other_programs_are_only_foreign() -> None:
    for name in (
        f"striped-{LONG}-0000000001", f"a-{LONG}-0000000001", f"lock-{LONG}", f"__READ__{LONG}", "a" * 200_000,
        f"{'a' * 9000}-1-0000000001", "striped-\u0661-0000000001", f"lock-{chr(0x661) * 10}",
    ):  # fmt: skip
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


def test_our_words_are_read_as_the_same_kind() -> None:
    for kind in WORDS:
        for weight in (1, RW_CAPACITY) if kind == "rw" else (weight_of("", kind),):
            claim = claim_of(kind, weight)
            found = parse(f"{prefix_of(claim.id)}{word_of(claim)}0000000042")
            assert found is not None
            wanted = (kind, CAPACITIES[kind], weight, "0000000042")
            assert (found.kind, found.capacity, found.weight, found.number) == wanted


@given(st.binary(min_size=16, max_size=16), st.sampled_from([LOCK, LATCH, LEASE, READ, WRITE, "striped-8-"]))
def test_the_nodes_of_one_claim_are_known_by_their_protection(id: bytes, word: str) -> None:
    assert len(uuid_of(id)) == 36
    assert owner_of(f"{prefix_of(id)}{word}0000000001") == prefix_of(id)
    undashed = f"_c_{id.hex()}-"
    assert owner_of(f"{undashed}{word}0000000001") == undashed
    assert owner_of(f"{word}0000000001") == f"{word}0000000001"
