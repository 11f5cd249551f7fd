"""Hostile rows in the tables of SQLite that are no claims. Hostile claims: test_claims.py."""

from __future__ import annotations

import socket
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import dibs
from security.hostile import FOREVER, HUGE, Connect, attempts, execute, made, plant
from store.sqlite.places import Taking, rows, until

WRONG_TYPES: list[tuple[str, Any]] = [
    ("weight", "much"), ("weight", 0.5), ("weight", "9223372036854775808"), ("capacity", None), ("kind", b"mutex"),
    ("id", "id"), ("until", "soon"),
]  # fmt: skip


def test_a_row_of_the_wrong_types_cannot_be_written(path: Path, connect: Connect) -> None:
    made(connect, path)
    for column, value in WRONG_TYPES:
        with pytest.raises(sqlite3.IntegrityError):
            plant(path, **{column: value})
    with connect(path).lock("a", timeout=30):
        """Nothing of it is there."""


@pytest.mark.parametrize("column", ["kind", "about", "name"])
def test_text_that_is_no_text(path: Path, connect: Connect, column: str) -> None:
    """Bytes that are no UTF-8, in a column of text: SQLite does not look."""
    made(connect, path)
    plant(path)
    execute(path, f"UPDATE claims SET {column} = CAST(x'646962733aff1b5b324a' AS TEXT)")
    client, errors = connect(path), []
    for attempt in attempts(client)[3:] if column == "name" else attempts(client):
        try:
            assert not isinstance(attempt(), dibs.Hold)
        except dibs.DibsError as error:
            errors.append(str(error))
    assert "[2J" not in "".join(errors), "what is no text is not repeated"
    assert all(error.isprintable() for error in errors)
    with client.lock("b", timeout=30) as hold:
        hold.check()


STORE_ROWS = {
    "no row": "DELETE FROM store",
    "no table": "DROP TABLE store",
    "no table of clients": "DROP TABLE clients",
    "no table of outsiders": "DROP TABLE outsiders",
    "the greatest base": "UPDATE store SET base = 9223372036854775807",
    "the greatest reservation": "UPDATE store SET reserved = 9223372036854775807, base = 9223372036854775807",
    "an empty boot": "UPDATE store SET boot = ''",
    "a boot of 2 MB": f"UPDATE store SET boot = hex(zeroblob({HUGE}))",
    "an empty id": "UPDATE store SET id = ''",
}


@pytest.mark.parametrize("case", STORE_ROWS)
def test_a_hostile_store_is_refused_or_used_by_one_at_a_time(path: Path, connect: Connect, case: str) -> None:
    made(connect, path)
    execute(path, STORE_ROWS[case])
    holds = []
    for client in (connect(path), connect(path)):
        with suppress(dibs.DibsError):
            holds.append(client.lock("a").acquire(timeout=0.1))
    assert len([hold for hold in holds if hold is not None]) <= 1


def test_a_planted_client_cannot_point_at_files_elsewhere(path: Path, connect: Connect, tmp_path: Path) -> None:
    """Its liveness file is judged and, once it counts as dead, swept: that must not reach out of our directory."""
    made(connect, path)
    victims = [tmp_path / name for name in ("live", "socket", "absolute")]
    for victim in victims:
        victim.write_text("precious")
    found = victims[0].stat()
    for number, address in enumerate(["../socket", str(victims[2])]):
        execute(
            path, "INSERT INTO clients VALUES (?, '../live', ?, ?, ?)",
            bytes([number]), found.st_dev, found.st_ino, address,
        )  # fmt: skip
    with connect(path).lock("a", timeout=30):
        """The newcomer has swept."""
    assert [victim.name for victim in victims if not victim.exists()] == [], "files of somebody else were removed"


def test_a_planted_client_is_not_written_to_elsewhere(path: Path, connect: Connect, tmp_path: Path) -> None:
    """A wake-up for it is no datagram to a socket outside of our directory."""
    client = connect(path)
    hold = client.lock("a").acquire(timeout=30)
    assert hold is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as elsewhere:
        elsewhere.bind(str(tmp_path / "theirs"))
        elsewhere.setblocking(False)
        execute(path, "INSERT INTO clients VALUES (x'aa', 'aa.live', 1, 1, '../theirs')")
        plant(path, client=b"\xaa", ticket=2**62, until=FOREVER)
        hold.release()
        with pytest.raises(BlockingIOError):
            elsewhere.recv(100)


@pytest.mark.gate
def test_a_planted_outsider_costs_nothing(path: Path, connect: Connect) -> None:
    """A hundred thousand of them, for a name that is in use: the next one is served, and soon they are gone."""
    made(connect, path)
    execute(
        path,
        "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100000) "
        "INSERT INTO outsiders SELECT 'dibs:a', CAST(i AS BLOB), x'bb', 0 FROM n",
    )
    client, other = connect(path), connect(path)
    hold = client.lock("a").acquire(timeout=30)
    assert hold is not None
    waiter = Taking(other.lock("a"), 20)
    until(lambda: client.inspect("a").waiters, what="the waiter")
    hold.release()
    waiter.got().release()
    assert rows(path, "SELECT count(*) FROM outsiders") == [(0,)]
