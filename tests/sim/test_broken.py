"""Every safeguard is needed: without any one of them the simulator finds a violation, and soon."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from dibs.backends.common import atomic_queue
from dibs.core.rule import Entry
from sim.broken import BROKEN, WAITING, broken
from sim.broken_cells import CELLS_BROKEN
from sim.explore import QUORUM, explore
from sim.quorum import QUORUM_BROKEN
from sim.schedule import CELLS, QUEUES

FIRST, WITHIN = 14_000, 2_000
"""The first seed, and how many are tried: a change of the core may move a violation to another schedule."""
FROM = {
    "margin": 14_144,
    "left taken from the store": 14_191,
    "no extension by a repeated join": 14_191,
    "no extension by a message": 15_125,
    "no renewal past the deadline": 14_092,
    "by": 14_114,
    "tombstone": 14_031,
    "eviction signals": 15_289,
    "global order of multi": 14_251,
    "doubt about an unanswered join": 14_031,
    "a confirmation that is not over": 14_051,
    "all of multi given back": 14_346,
    "id of a write": 14_033,
    "one id for one wish": 14_033,
    "by of a put": 14_513,
    "the unknown is said to be unknown": 14_290,
    "generation of a count": 14_110,
    "stale tokens are refused": 14_031,
    "the mark never falls": 14_073,
    "free path: counted from before the send": 14_951,
}
"""Where the search begins instead, for violations that not every tenth schedule shows."""
IN_FIRST_TIER = {"deadline from before the send", "idempotent join", "owner check on leave", "version of a put"}
EVERY = [
    pytest.param(of, name, marks=() if of == QUORUM or name in IN_FIRST_TIER else pytest.mark.gate)
    for of, names in ((QUEUES, BROKEN), (CELLS, CELLS_BROKEN), (QUORUM, (*QUORUM_BROKEN, "margin")))
    for name in names
]


@pytest.mark.parametrize(("of", "safeguard"), EVERY)
def test_the_simulator_finds_what_is_broken(of: str, safeguard: str) -> None:
    first = FROM.get(safeguard, FIRST)
    with broken(safeguard):
        total = explore(first, WITHIN, of=of, until_found=True)
    assert total.found, f"{WITHIN} schedules from {first} without «{safeguard}» and nothing was found"
    assert not total.found[0].crashed, f"the twin itself fails: {total.found[0].what}"
    assert not explore(total.found[0].seed, 1, of=of).found, f"«{safeguard}» is in place, and does not help"


def test_a_short_renewal_is_harmless_as_long_as_it_shortens_nothing() -> None:
    """The twin of «renewing never shortens» differs from this in nothing but the maximum."""

    def extended(entry: Entry, length: float, now: float) -> float:
        return max(entry.until, now + min(length, WAITING))

    with patch.object(atomic_queue, "extended", extended):
        assert not explore(FIRST, 60).found
