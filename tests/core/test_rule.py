"""The rule against a naive re-statement of it, over random lines: expiry, amended weights, who is freed."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from dibs.core.rule import Entry, fits, head


@dataclass
class Drawn:
    """A queue as a store may find it, in ticket order."""

    entries: list[Entry]
    now: float


@st.composite
def queues(draw: st.DrawFn) -> Drawn:
    capacity = draw(st.integers(1, 6))
    entries = []
    for ticket in range(draw(st.integers(0, 12))):
        weight = draw(st.integers(0, capacity))
        was = draw(st.none() | st.integers(weight, capacity))
        until = draw(st.integers(0, 20))
        entries.append(
            Entry(
                ticket + 1,
                bytes([ticket]),
                b"c",
                "semaphore",
                capacity,
                weight,
                float(until),
                0.0,
                None,
                False,
                "",
                was,
            )
        )
    return Drawn(entries, float(draw(st.integers(0, 20))))


def naive_holding(queue: list[tuple[int, int]], capacity: int) -> list[int]:
    """Tickets of those who hold: all that is ahead, plus one's own, is at most the capacity."""
    holding = []
    for place, (ticket, weight) in enumerate(queue):
        ahead = sum(other for _, other in queue[:place])
        if ahead + weight <= capacity:
            holding.append(ticket)
    return holding


def prefix(holding: list[int], queue: list[tuple[int, int]]) -> list[int]:
    """Nobody passes: as soon as one must wait, so must all behind it."""
    found = []
    for ticket, _ in queue:
        if ticket not in holding:
            break
        found.append(ticket)
    return found


def tickets(entries: list[Entry]) -> list[int]:
    return [entry.ticket for entry in entries]


@given(queues())
def test_head_is_the_rule(drawn: Drawn) -> None:
    entries, now = drawn.entries, drawn.now
    seen = head(entries, lambda entry: entry.until <= now)
    alive = [entry for entry in entries if entry.until > now]
    capacity = entries[0].capacity if entries else 1
    after = [(entry.ticket, entry.weight) for entry in alive]
    holding = prefix(naive_holding(after, capacity), after)
    assert tickets(seen.holding) == holding
    assert seen.used == sum(entry.weight for entry in alive if entry.ticket in holding)
    behind = [entry for entry in alive if entry.ticket not in holding]
    assert seen.blocked is (behind[0] if behind else None)


@given(queues())
def test_freed_are_exactly_those_who_did_not_hold_before(drawn: Drawn) -> None:
    entries, now = drawn.entries, drawn.now
    seen = head(entries, lambda entry: entry.until <= now)
    capacity = entries[0].capacity if entries else 1
    before = [(entry.ticket, entry.weight if entry.was is None else entry.was) for entry in entries]
    held = naive_holding(before, capacity)
    assert tickets(seen.freed) == [entry.ticket for entry in seen.holding if entry.ticket not in held]


@given(queues())
def test_everything_gone_ahead_of_the_first_that_waits_is_seen(drawn: Drawn) -> None:
    entries, now = drawn.entries, drawn.now
    seen = head(entries, lambda entry: entry.until <= now)
    looked_at = entries if seen.blocked is None else entries[: entries.index(seen.blocked)]
    assert tickets(seen.gone) == [entry.ticket for entry in looked_at if entry.until <= now]


@given(queues())
def test_next_is_the_first_end_of_anything_seen_alive(drawn: Drawn) -> None:
    entries, now = drawn.entries, drawn.now
    seen = head(entries, lambda entry: entry.until <= now)
    alive = [*seen.holding, *([seen.blocked] if seen.blocked else [])]
    assert seen.next == min((entry.until for entry in alive), default=inf)


@given(queues(), st.integers(0, 11))
def test_who_holds_goes_on_holding_when_others_leave(drawn: Drawn, leaver: int) -> None:
    # The argument on top of rule.py: the weight ahead of a claim can only fall, so a grant is never taken back.
    entries = drawn.entries
    for entry in entries:
        entry.was = None
    before = head(entries, lambda _: False).holding
    after = head([entry for entry in entries if entry.ticket != leaver + 1], lambda _: False).holding
    assert set(tickets(before)) - {leaver + 1} <= set(tickets(after))


@given(queues(), st.data())
def test_who_holds_goes_on_holding_when_a_weight_falls(drawn: Drawn, data: st.DataObject) -> None:
    entries = drawn.entries
    for entry in entries:
        entry.was = None
    before = tickets(head(entries, lambda _: False).holding)
    if entries:
        entry = data.draw(st.sampled_from(entries))
        entry.was, entry.weight = entry.weight, data.draw(st.integers(0, entry.weight))
    seen = head(entries, lambda _: False)
    assert set(before) <= set(tickets(seen.holding))
    assert tickets(seen.freed) == [ticket for ticket in tickets(seen.holding) if ticket not in before]


@given(queues())
def test_the_walk_goes_no_further_than_the_rule_looks(drawn: Drawn) -> None:
    walked = []

    def queue() -> object:
        for entry in drawn.entries:
            walked.append(entry)
            yield entry

    seen = head(queue(), lambda entry: entry.until <= drawn.now)  # type: ignore[arg-type]
    if seen.blocked is not None:
        assert walked[-1] is seen.blocked


def test_the_rule_itself() -> None:
    assert fits(0, 1, 1)
    assert not fits(1, 1, 1)
    assert fits(1, 0, 1)
    assert fits(2, 3, 5)
    assert not fits(3, 3, 5)
