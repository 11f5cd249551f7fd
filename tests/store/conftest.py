"""Fixtures for the tests of one store: names, and queues of the store at `url`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from dibs.testing.contract.seats import Seat
from lab import witness
from lab.witness import fresh_name


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some conditions after each other, with an end of a minute each: servers restart, on machines that are busy."""
    monkeypatch.setattr(witness, "LONGEST", 120.0)


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
