"""Fixtures: the path of a fresh database, and clients of it that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process.children import Crew
from store.sqlite.places import url_of

import dibs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def connect(path: Path) -> Iterator[Callable[..., dibs.Client]]:
    made: list[dibs.Client] = []

    def connect(where: Path = path, **options: Any) -> dibs.Client:
        made.append(dibs.connect(url_of(where), **options))
        return made[-1]

    try:
        yield connect
    finally:
        for client in made:
            client.close()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes around the same path."""
    made = Crew(tmp_path)
    try:
        yield made
    finally:
        made.disband()
