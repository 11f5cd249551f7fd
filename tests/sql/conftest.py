"""Databases of this process, and one kind of connection for each test."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sql.databases import own_database
from sql.drivers import Driver


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
def driver(request: pytest.FixtureRequest, urls: Callable[[str], str]) -> Driver:
    server, kind = request.param
    return Driver(server, kind, urls(server))
