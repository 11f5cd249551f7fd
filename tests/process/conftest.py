"""The fixture `crew`: processes around one file, killed and reaped at the end however the test went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process.children import Crew


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    try:
        yield made
    finally:
        made.disband()
