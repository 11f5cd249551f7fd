"""What the tests of a store are given: names, and clients of the seam at the place that their `url` says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from dibs.testing.contract.seats import Seat
from lab.witness import fresh_name


@pytest.fixture
def name() -> str:
    return fresh_name()


@pytest.fixture
def seats(url: str) -> Iterator[Callable[[], Seat]]:
    """Makes seats at that place."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Seat(url)))


@pytest.fixture
def seat(seats: Callable[[], Seat]) -> Seat:
    return seats()
