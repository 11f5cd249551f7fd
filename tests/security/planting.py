"""What an attacker with this user's rights may write into a database of ours, by the sqlite3 module alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import dibs

Connect = Callable[..., dibs.Client]
FOREVER = 1e12
TICKET = 5


def made(connect: Connect, path: Path) -> None:
    """A database as a client leaves it."""
    client = connect(path)
    with client.lock("first", timeout=5):
        """Now it is there."""
    client.close()


def plant(path: Path, name: str = "a", **columns: Any) -> None:
    """A claim of nobody's, as it would stand in the queue of `name`, but for the columns given."""
    row = {
        "name": f"dibs:{name}", "ticket": TICKET, "id": os.urandom(16), "client": os.urandom(16), "kind": "mutex",
        "capacity": 1, "weight": 1, "until": FOREVER, "asked": 0.0, "held": 0.0, "revoked": 0, "about": "{}",
    } | columns  # fmt: skip
    marks = ", ".join("?" * len(row))
    execute(path, f"INSERT INTO claims VALUES ({marks})", *row.values())


def execute(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path, timeout=5)) as connection, connection:
        connection.execute(statement, values)


def reopened(connect: Connect, path: Path) -> tuple[dibs.Client, dibs.Client]:
    return connect(path), connect(path)
