"""Clients with an observer: `client` on the real clock, `timed` on the clock of the test kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dibs
from core.observed import Seen
from dibs.testing.kit import KitClient


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def client(seen: Seen) -> Iterator[dibs.Client]:
    with dibs.connect("memory://events", observer=seen.append, owner="ana") as made:
        yield made


@pytest.fixture
def timed(dibs_client: KitClient, seen: Seen) -> KitClient:
    return dibs_client.another(observer=seen.append)
