"""A fence inside the caller's transaction, on PostgreSQL, MySQL or MariaDB.

The record is a row of the table `dibs_fence` in the caller's database. The check writes or locks the row until the
transaction ends, so no other token is admitted between the check and the change, and a rollback also undoes the record.
On PostgreSQL the first use creates the table inside the transaction. On MySQL that would commit the transaction, so the
table must exist.
"""

from __future__ import annotations

from dibs.backends.sql.caller_connection import CallerConnection, code_of
from dibs.errors import StoreError, Unsupported

MYSQL_TABLE = "CREATE TABLE dibs_fence (name VARBINARY(1600) NOT NULL PRIMARY KEY, token BIGINT NOT NULL)"
"""A namespace and a name have at most 512 bytes each, and may be encoded longer."""
_NO_SUCH_TABLE = 1146
_POSTGRESQL_TABLE = "CREATE TABLE IF NOT EXISTS dibs_fence (name text PRIMARY KEY, token bigint NOT NULL)"
_FIRST_USE = "SELECT pg_advisory_xact_lock(hashtextextended('dibs_fence', 0))"
_IS_THERE = "SELECT to_regclass('dibs_fence') IS NOT NULL"
_POSTGRESQL_ADMIT = (
    "INSERT INTO dibs_fence AS kept VALUES ({0}, {1}) ON CONFLICT (name) DO UPDATE SET token = "
    "CASE WHEN kept.token <= {2} THEN greatest(kept.token, excluded.token) ELSE kept.token END RETURNING token"
)
_MYSQL_ADMIT = (
    "INSERT INTO dibs_fence VALUES ({0}, {1}) "
    "ON DUPLICATE KEY UPDATE token = IF(token <= {2}, GREATEST(token, {3}), token)"
)
_MYSQL_HIGHEST = "SELECT token FROM dibs_fence WHERE name = {0} FOR UPDATE"


class OwnTransaction:
    """`Admits` of core/cells.py over a connection of the caller. Errors of the driver are raised unchanged: the caller
    handles them for its own transaction."""

    def __init__(self, connection: CallerConnection) -> None:
        self._connection = connection

    async def admit(self, name: str, token: int, shared: bool, until: float) -> int:
        """The highest exclusive token admitted before, or `token` itself if none was above it."""
        if self._connection.server == "sqlite":
            raise Unsupported(
                "on SQLite, a fence needs a sqlite3 connection", step="pass the sqlite3 connection below this one"
            )
        await self._connection.require_transaction("so others could write between check and change")
        given = 0 if shared else token
        highest = await (self._postgresql if self._connection.server == "postgresql" else self._mysql)(
            name, given, token
        )
        return max(highest, token)

    async def _postgresql(self, name: str, given: int, most: int) -> int:
        if not await self._one(_IS_THERE):
            await self._connection.run(_FIRST_USE, ())
            await self._connection.run(_POSTGRESQL_TABLE, ())
        return await self._one(_POSTGRESQL_ADMIT, name, given, most)

    async def _mysql(self, name: str, given: int, most: int) -> int:
        encoded = name.encode()
        try:
            await self._connection.run(self._connection.marked(_MYSQL_ADMIT, 4), (encoded, given, most, given))
        except Exception as error:
            if code_of(error) != _NO_SUCH_TABLE:
                raise
            raise StoreError("the table dibs_fence is missing in your database", step=MYSQL_TABLE) from error
        return await self._one(_MYSQL_HIGHEST, encoded)

    async def _one(self, text: str, *values: object) -> int:
        _, rows = await self._connection.run(self._connection.marked(text, len(values)), values)
        return int(rows[0][0])
