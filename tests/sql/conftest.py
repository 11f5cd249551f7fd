"""A desk for each kind of connection, in databases of this process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sql.databases import own_database
from sql.desks import Desk


@pytest.fixture
def urls(tmp_path: Path) -> Callable[[str], str]:
    def url(server: str) -> str:
        if server == "sqlite":
            file = tmp_path / "own.db"
            sqlite3.connect(file).execute("PRAGMA journal_mode=WAL").connection.close()
            return f"sqlite:///{file}"
        return own_database(server)

    return url


@pytest.fixture
def desk(request: pytest.FixtureRequest, urls: Callable[[str], str]) -> Desk:
    """Its parameter says which: see desks.py."""
    server, kind = request.param
    return Desk(server, kind, urls(server))
