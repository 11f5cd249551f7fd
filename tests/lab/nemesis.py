"""The nemesis: does harm to a crowd of workers by a seeded schedule, always heals, and counts only what it saw happen.

A `Fault` begins now and gives what ends it, and when; kills end at once. What happens inside the workers (a hogged
interpreter, a fork, a cancelled call, a body past its lease) they draw themselves, from `habits` of their spec and the
same seed, and note once it happened. What a store suffers (a restart, a cut line) joins as one more entry of FAULTS,
made for a `Place` that knows the store.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.crowd import Crowd
from lab.surface import clock


@dataclass(frozen=True)
class Place:
    """What a fault may harm."""

    crowd: Crowd
    dice: random.Random
    lease: float
    store: Path
    """Where the store keeps what it has, if it is a file."""


Ending = tuple[float, Callable[[], None]]
"""After so many seconds, do this."""
Fault = Callable[[Place], Ending | None]


def kill(place: Place) -> Ending | None:
    """kill -9 of one or two workers, whatever they are doing; others take their places."""
    crowd = place.crowd
    victims = place.dice.sample(sorted(crowd.running), min(place.dice.choice((1, 1, 2)), len(crowd.running)))
    crowd.kill(*victims)
    for victim in victims:
        crowd.successor(victim)
    return None


def stop_briefly(place: Place) -> Ending | None:
    return _stop(place, place.dice.uniform(0.1, 0.6), "stopped for less than a lease")


def stop_past_the_lease(place: Place) -> Ending | None:
    return _stop(place, place.dice.uniform(1.1, 2.0), "stopped for more than a lease")


def _stop(place: Place, leases: float, fault: str) -> Ending | None:
    if not place.crowd.running:
        return None
    victim = place.dice.choice(sorted(place.crowd.running))
    place.crowd.stop(victim)
    return leases * place.lease, lambda: place.crowd.go_on(victim, fault)


def stand_still(place: Place) -> Ending | None:
    """A process stops in its transaction: nobody gets anything from the store."""
    if not place.store.exists():
        return None
    pid = place.crowd.stand_still(place.store)
    return place.dice.uniform(0.2, 1.3) * place.lease, lambda: place.crowd.end_standstill(pid)


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "stop briefly": stop_briefly,
    "stop past the lease": stop_past_the_lease,
    "standstill": stand_still,
}


class Nemesis:
    """One run of harm."""

    def __init__(self, place: Place, faults: dict[str, int], gap: float) -> None:
        """`faults`: the names of those that apply, and how often each comes; `gap`: the mean time between two."""
        self._place, self._faults, self._gap = place, faults, gap
        self._upcoming = place.dice.sample(sorted(faults), len(faults))
        self._endings: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def rage(self, seconds: float) -> None:
        """Harm for so long; then whatever still lasts ends, and all is healed."""
        end = clock() + seconds
        upcoming = clock() + self._gap
        try:
            while (now := clock()) < end:
                self._end_what_is_due(now)
                if now >= upcoming:
                    self._begin()
                    upcoming = clock() + self._place.dice.expovariate(1 / self._gap)
                time.sleep(0.005)
        finally:
            self._end_what_is_due(float("inf"))
            self._place.crowd.heal()

    def _begin(self) -> None:
        """Each once, then as it comes."""
        if not self._upcoming:
            self._upcoming = self._place.dice.choices(list(self._faults), list(self._faults.values()), k=10)
        ending = FAULTS[self._upcoming.pop()](self._place)
        if ending is not None:
            after, end = ending
            self._count += 1
            heapq.heappush(self._endings, (clock() + after, self._count, end))

    def _end_what_is_due(self, now: float) -> None:
        while self._endings and self._endings[0][0] <= now:
            heapq.heappop(self._endings)[2]()
