"""A fence inside the caller's transaction, in the caller's own SQLite database.

The record is a row of the table `dibs_fence`, which is created on first use. Every check writes, even if it changes no
value, so the transaction has the write lock of the database until it ends: no other token is admitted between the check
and the change. A rollback also undoes the record.
"""

from __future__ import annotations

import sqlite3

from dibs.errors import StoreError

_MAKE = (  # not STRICT: programs with an older SQLite may read this database, too
    "CREATE TABLE IF NOT EXISTS dibs_fence (name TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID"
)
_ADMIT = (
    "INSERT INTO dibs_fence VALUES (:name, :token) "
    "ON CONFLICT (name) DO UPDATE SET token = max(token, :token) WHERE token <= :most"
)
_HIGHEST = "SELECT token FROM dibs_fence WHERE name = :name"


class SqliteTransaction:
    """`Admits` of core/cells.py over a connection of the caller. Errors of sqlite3 are raised unchanged: the caller
    handles them for its own transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        """The highest exclusive token admitted before, or `token` itself if none was above it."""
        self._check_transaction()
        was_open = self._connection.in_transaction
        values = {"name": name, "token": 0 if shared else token, "most": token}
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            cursor.execute(_ADMIT, values)
        except sqlite3.OperationalError as error:
            if "no such table: dibs_fence" not in str(error):
                raise
            cursor.execute(_MAKE)
            cursor.execute(_ADMIT, values)
        if cursor.rowcount == 1:
            return token
        (highest,) = cursor.execute(_HIGHEST, values).fetchone()
        if not was_open:  # our check began this transaction and changed nothing
            self._connection.rollback()
        if not isinstance(highest, int):
            raise StoreError(
                "the record of this fence is not a number", step="find the program that writes to dibs_fence"
            )
        return highest

    def _check_transaction(self) -> None:
        """sqlite3 begins a transaction at the first write, unless the connection is in an autocommit mode."""
        autocommits = self._connection.isolation_level is None or getattr(self._connection, "autocommit", False) is True
        if autocommits and not self._connection.in_transaction:
            raise StoreError(
                "this connection is not in a transaction, so others could write between check and change",
                step='connection.execute("BEGIN IMMEDIATE") first',
            )
