"""The fixture `stage`: a schedule written by hand, let go of at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.sim.bury()
