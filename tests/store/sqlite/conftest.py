"""Fixtures: the path of a fresh database, and clients of it that are closed at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from process.children import Crew
from store.sqlite.places import url_of


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
        closing = [threading.Thread(target=client.close, daemon=True) for client in made]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(30)
        assert not any(thread.is_alive() for thread in closing), "a client's close() hangs"


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes around the same path."""
    made = Crew(tmp_path)
    try:
        yield made
    finally:
        made.disband()
