"""Every safeguard is needed: without any one of them the simulator finds a violation, and soon."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from dibs.backends import ledger
from dibs.core.rule import Entry
from sim.broken import BROKEN, WAITING, broken
from sim.broken_cells import CELLS_BROKEN
from sim.explore import explore
from sim.schedule import CELLS, LINES

FIRST, WITHIN = 14_000, 2_000
"""The first seed, and how many are tried. The rarest violation shows in about one schedule of a thousand, so with some
first seeds it takes longer."""


EVERY = [*((LINES, name) for name in BROKEN), *((CELLS, name) for name in CELLS_BROKEN)]


@pytest.mark.parametrize(("of", "safeguard"), EVERY)
def test_the_simulator_finds_what_is_broken(of: str, safeguard: str) -> None:
    with broken(safeguard):
        total = explore(FIRST, WITHIN, of=of, until_found=True)
    assert total.found, f"{WITHIN} schedules without «{safeguard}» and nothing was found"
    assert not total.found[0].crashed, f"the twin itself fails: {total.found[0].what}"


def test_a_short_renewal_is_harmless_as_long_as_it_shortens_nothing() -> None:
    """The twin of «renewing never shortens» differs from this in nothing but the maximum."""

    def extended(entry: Entry, length: float, now: float) -> float:
        return max(entry.until, now + min(length, WAITING))

    with patch.object(ledger, "extended", extended):
        assert not explore(0, 200).found


def test_afterwards_nothing_is_broken_any_more() -> None:
    for _, safeguard in EVERY:
        with broken(safeguard):
            pass
    assert not explore(0, 20).found
    assert not explore(0, 20, of=CELLS).found


def test_no_two_safeguards_bear_one_name() -> None:
    assert not set(BROKEN) & set(CELLS_BROKEN)
