"""Find overtaken claims: first come, first served among fair claims.

A claim holds only if the weight ahead of it and its own fit into the capacity. So of two that do not fit together, the
later one cannot be valid while the earlier one is in the queue. That needs two proofs: A was ahead of B, and A was
still in the queue when B was valid. The begin of a call proves neither.

By ticket: where the token is the place in the queue, A with the lower token was ahead. It was granted with that token,
so it never lost its place; if B was first valid before A was, B overtook A.

By sight: where tokens are given with the grant, A was seen at a place before B called, and at the same place after B
was valid. A place is never given again, so A was in the queue all the time.

Neither applies to `fair=False`, or where both fit together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from lab.history import Sight, Use

Overtake = tuple[str, tuple[str, ...]]


class _Stood(NamedTuple):
    """A waiter seen at one place from before `since` until after `until`."""

    use: str
    place: int
    since: float
    until: float


def overtakes(uses: Sequence[Use], sights: Sequence[Sight]) -> list[Overtake]:
    fair = [use for use in uses if use.fair and use.valid is not None]
    return [*_by_ticket(fair), *_by_sight(fair, sights)]


def conflict(one: int, other: int, capacity: int) -> bool:
    return one + other > capacity


def _by_ticket(uses: Sequence[Use]) -> Iterator[Overtake]:
    """From the end of the queue to its front; of those behind, the earliest valid one of each weight is enough."""
    earliest: dict[int, Use] = {}
    for token, same in groupby(sorted(uses, key=_token, reverse=True), _token):
        here = list(same)
        for use in here:
            for weight, other in earliest.items():
                if other.known < use.known and conflict(weight, use.weight, use.capacity):
                    yield _told(other, use.id, token, "by ticket")
        for use in here:
            best = earliest.get(use.weight)
            if best is None or use.known < best.known:
                earliest[use.weight] = use


def _token(use: Use) -> int:
    return use.token


def _by_sight(uses: Sequence[Use], sights: Sequence[Sight]) -> Iterator[Overtake]:
    if not uses:
        return
    later = sorted(uses, key=lambda use: use.called)
    calls = [use.called for use in later]
    weights = {use.id: use.weight for use in uses}
    for stood in _standing([sight for sight in sights if sight.name == uses[0].name]):
        weight = weights.get(stood.use)
        if weight is None:
            continue  # it gave up, or may barge
        for use in later[bisect_left(calls, stood.since) : bisect_left(calls, stood.until)]:
            if use.known < stood.until and conflict(use.weight, weight, use.capacity):
                yield _told(use, stood.use, stood.place, "by sight")


def _standing(sights: Sequence[Sight]) -> list[_Stood]:
    """A look saw the queue at some instant between its call and its return."""
    seen: dict[tuple[str, int], _Stood] = {}
    for sight in sights:
        for use, place in sight.waiting:
            old = seen.get((use, place), _Stood(use, place, sight.returned, sight.called))
            seen[use, place] = _Stood(use, place, min(old.since, sight.returned), max(old.until, sight.called))
    return [stood for stood in seen.values() if stood.since < stood.until]


def _told(use: Use, other: str, place: int, how: str) -> Overtake:
    return f"{use} overtook {other} at place {place} ({how})", (use.id, other)
