"""Who was overtaken: first come, first served among fair claims, where a history proves that it was broken.

The rule: a claim holds only if the weight ahead of it and its own fit into the capacity. So of two that do not fit
together, the later one cannot be valid while the earlier one still stands in line, whatever the earlier one knows of
its own luck. Everything hangs on two proofs: that A stood *ahead of* B, and that it *still stood* when B was valid.
When a call began proves neither: it may have been slow to join, or have lost its place and joined again.

By ticket. Where the token is the place in line (all stores that dibs keeps lines in), A ahead of B means that its
token is lower. A was granted with that same token, so it never lost its place; B was first valid before A was, so at
that instant A stood ahead of it: an overtake.

By sight. Where tokens are given with the grant they say nothing of the line. But somebody looked: A was seen waiting
at a place before B even called, so A is ahead; and it was seen waiting *at the same place* after B was valid, so it
had stood there all the time, because a place once left is never given again: an overtake.

Neither accuses where one of the two may barge (`fair=False`), or where both fit together: then both may have been
granted, and the earlier one be slow to hear of it.
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
    """Of the grants of one name."""
    fair = [use for use in uses if use.fair and use.valid is not None]
    return [*_by_ticket(fair), *_by_sight(fair, sights)]


def conflict(one: int, other: int, capacity: int) -> bool:
    return one + other > capacity


def _by_ticket(uses: Sequence[Use]) -> Iterator[Overtake]:
    """From the end of the line to its front; of those behind, the earliest valid one of each weight is enough."""
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
    """A look saw the line at some instant between its call and its return."""
    seen: dict[tuple[str, int], _Stood] = {}
    for sight in sights:
        for use, place in sight.waiting:
            old = seen.get((use, place), _Stood(use, place, sight.returned, sight.called))
            seen[use, place] = _Stood(use, place, min(old.since, sight.returned), max(old.until, sight.called))
    return [stood for stood in seen.values() if stood.since < stood.until]


def _told(use: Use, other: str, place: int, how: str) -> Overtake:
    return f"{use} overtook {other} at place {place} ({how})", (use.id, other)
