"""The fixture `stage`: programs around one store, killed and reaped at the end however the test went."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from process.guarded import guarded_directory
from recipes.programs import Connect, Stage

__all__ = ["guarded_directory"]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.disband()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Connect]:
    """Connections to the application's own database, `shop.db` in the programs' directory."""
    with ExitStack() as connections:

        def connect() -> sqlite3.Connection:
            made = sqlite3.connect(tmp_path / "shop.db", isolation_level=None, timeout=60)
            return connections.enter_context(closing(made))

        yield connect
