"""A database of the caller's own, connections to it of every kind, and a fence: for the tests of `within=`."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
import dibs.aio

Open = Callable[..., sqlite3.Connection]
BY_HAND: dict[str, dict[str, Any]] = {"isolation_level=None": {"isolation_level": None}}
"""Where Python begins no transaction by itself."""
BY_ITSELF: dict[str, dict[str, Any]] = {
    "default": {},
    "IMMEDIATE": {"isolation_level": "IMMEDIATE"},
    "EXCLUSIVE": {"isolation_level": "EXCLUSIVE"},
}
if sys.version_info >= (3, 12):
    BY_HAND["autocommit=True"] = {"autocommit": True}
    BY_ITSELF["autocommit=False"] = {"autocommit": False}


@pytest.fixture
def resource(tmp_path: Path) -> Path:
    """The caller's own database."""
    path = tmp_path / "stock.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE stock (pieces INTEGER)")
        connection.execute("INSERT INTO stock VALUES (10)")
    return path


@pytest.fixture
def open_(resource: Path) -> Iterator[Open]:
    made: list[sqlite3.Connection] = []

    def connect(**options: Any) -> sqlite3.Connection:
        made.append(sqlite3.connect(resource, **{"timeout": 0, **options}))
        return made[-1]

    yield connect
    for one in made:
        one.close()


@pytest.fixture
def fence() -> Iterator[dibs.Fence]:
    with dibs.connect("memory://within") as client:
        yield client.fence("stock")


def records(resource: Path) -> dict[str, int]:
    with closing(sqlite3.connect(resource)) as connection:
        try:
            return dict(connection.execute("SELECT name, token FROM dibs_fence").fetchall())
        except sqlite3.OperationalError:
            return {}


def pieces(resource: Path) -> int:
    with closing(sqlite3.connect(resource)) as connection:
        return int(connection.execute("SELECT pieces FROM stock").fetchone()[0])


def begin(connection: sqlite3.Connection, options: dict[str, Any]) -> None:
    if options in BY_HAND.values():
        connection.execute("BEGIN")


def end(connection: sqlite3.Connection, how: str) -> None:
    """`commit()` and `rollback()` do nothing where transactions are made by hand."""
    if connection.in_transaction and getattr(connection, "autocommit", None) is True:
        connection.execute(how)
    else:
        getattr(connection, how.lower())()
