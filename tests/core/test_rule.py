"""The rule against a naive re-statement of it, over random queues: expiry, amended weights, freed claims."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from dibs.core.rule import Entry, head

Drawn = tuple[list[Entry], float]
"""A queue as a store may find it, in the order of its tickets, and the time."""


@st.composite
def queues(draw: st.DrawFn) -> Drawn:
    capacity = draw(st.integers(1, 6))
    entries = []
    for ticket in range(draw(st.integers(0, 12))):
        weight = draw(st.integers(0, capacity))
        was = draw(st.none() | st.integers(weight, capacity))
        until = float(draw(st.integers(0, 20)))
        id = bytes([ticket])
        entries.append(Entry(ticket + 1, id, b"c", "semaphore", capacity, weight, until, 0.0, None, False, "", was))
    return entries, float(draw(st.integers(0, 20)))


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
    entries, now = drawn
    walked = []

    def walk() -> Iterator[Entry]:
        for entry in entries:
            walked.append(entry)
            yield entry

    seen = head(walk(), lambda entry: entry.until <= now)
    alive = [entry for entry in entries if entry.until > now]
    capacity = entries[0].capacity if entries else 1
    after = [(entry.ticket, entry.weight) for entry in alive]
    holding = prefix(naive_holding(after, capacity), after)
    assert tickets(seen.holding) == holding
    assert seen.used == sum(entry.weight for entry in alive if entry.ticket in holding)
    behind = [entry for entry in alive if entry.ticket not in holding]
    assert seen.blocked is (behind[0] if behind else None)
    # Claims are freed that did not hold before.
    before = [(entry.ticket, entry.weight if entry.was is None else entry.was) for entry in entries]
    held = naive_holding(before, capacity)
    assert tickets(seen.freed) == [entry.ticket for entry in seen.holding if entry.ticket not in held]
    # The walk ends at the first claim that waits, and reports every claim that is gone ahead of it.
    assert seen.blocked is None or walked[-1] is seen.blocked
    assert tickets(seen.gone) == [entry.ticket for entry in walked if entry.until <= now]
    assert seen.next == min((entry.until for entry in (*seen.holding, *behind[:1])), default=inf)


@given(queues(), st.integers(0, 11))
def test_who_holds_goes_on_holding_when_others_leave(drawn: Drawn, leaver: int) -> None:
    # The argument on top of rule.py: the weight ahead of a claim can only fall, so a grant is never taken back.
    entries, _ = drawn
    for entry in entries:
        entry.was = None
    before = head(entries, lambda _: False).holding
    after = head([entry for entry in entries if entry.ticket != leaver + 1], lambda _: False).holding
    assert set(tickets(before)) - {leaver + 1} <= set(tickets(after))


@given(queues(), st.data())
def test_who_holds_goes_on_holding_when_a_weight_falls(drawn: Drawn, data: st.DataObject) -> None:
    entries, _ = drawn
    for entry in entries:
        entry.was = None
    before = tickets(head(entries, lambda _: False).holding)
    if entries:
        entry = data.draw(st.sampled_from(entries))
        entry.was, entry.weight = entry.weight, data.draw(st.integers(0, entry.weight))
    seen = head(entries, lambda _: False)
    assert set(before) <= set(tickets(seen.holding))
    assert tickets(seen.freed) == [ticket for ticket in tickets(seen.holding) if ticket not in before]
