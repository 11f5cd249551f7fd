"""The fixture `crew`: processes around one store, killed and reaped at the end however the test went.

It is around a SQLite file unless a test names other stores (stores.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process.children import Crew
from process.guarded import guarded_directory
from process.stores import CREWS

__all__ = ["guarded_directory"]


@pytest.fixture
def crew(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Crew]:
    made = CREWS[getattr(request, "param", "sqlite")](tmp_path)
    try:
        yield made
    finally:
        made.disband()
