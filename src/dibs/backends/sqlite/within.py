"""A fence inside a SQLite transaction of the caller's own, in the caller's own database.

The record stands in the table `dibs_fence`, made on first use. Checking writes, also where nothing changes: that takes
the database's write lock, which the caller's transaction then keeps until it ends, so nobody can be admitted between
the check and the change. A transaction that is rolled back takes the record back with it.
"""

from __future__ import annotations

import sqlite3

from dibs.errors import StoreError

_MAKE = (  # no STRICT: programs with an older SQLite may read this database too
    "CREATE TABLE IF NOT EXISTS dibs_fence (name TEXT NOT NULL PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID"
)
_ADMIT = (
    "INSERT INTO dibs_fence VALUES (:name, :token) "
    "ON CONFLICT (name) DO UPDATE SET token = max(token, :token) WHERE token <= :most"
)
_HIGHEST = "SELECT token FROM dibs_fence WHERE name = :name"


class SqliteTransaction:
    """`Admits` of core/cells.py over a connection that somebody else opened. Its own errors surface as they are: who
    has a transaction has a way to deal with a busy database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        """The highest exclusive token admitted before, or `token` itself if none was above it."""
        self._check_transaction()
        theirs = self._connection.in_transaction
        given = {"name": name, "token": 0 if shared else token, "most": token}
        cursor = self._connection.cursor()
        cursor.row_factory = None
        try:
            cursor.execute(_ADMIT, given)
        except sqlite3.OperationalError as error:
            if "no such table: dibs_fence" not in str(error):
                raise
            cursor.execute(_MAKE)
            cursor.execute(_ADMIT, given)
        if cursor.rowcount == 1:
            return token
        (highest,) = cursor.execute(_HIGHEST, given).fetchone()
        if not theirs:  # it began with our check, which changed nothing: it need not keep others out any longer
            self._connection.rollback()
        if not isinstance(highest, int):
            raise StoreError(
                "the record of this fence is not a number", step="find the program that writes to dibs_fence"
            )
        return highest

    def _check_transaction(self) -> None:
        """Python begins one by itself at the first write, except where it was told not to."""
        by_hand = self._connection.isolation_level is None or getattr(self._connection, "autocommit", False) is True
        if by_hand and not self._connection.in_transaction:
            raise StoreError(
                "this connection is not in a transaction, so others could write between check and change",
                step='connection.execute("BEGIN IMMEDIATE") first',
            )
