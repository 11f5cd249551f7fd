"""A client whose events are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dibs
from core.observed import Seen


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def client(seen: Seen) -> Iterator[dibs.Client]:
    with dibs.connect("memory://events", observer=seen.append, owner="ana") as made:
        yield made
