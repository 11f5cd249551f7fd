"""A version column in the user's table: write a row only if it has not changed since it was read.

The check and the update are one statement. If another writer was first, or the row is gone, `Conflict` is raised and
nothing has changed. The key must select one row. If it selects several, all are changed before that is known: the error
says to roll back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from dibs.backends.sql.caller_connection import CallerConnection
from dibs.core.deadline import gaps
from dibs.core.runtime import Runtime
from dibs.errors import Conflict, StoreError

T = TypeVar("T")
TRIES = 40
"""Attempts with growing pauses: about 15 seconds."""
_SHOWN = 40


class Change:
    """A checked change of one row."""

    def __init__(self, table: object, key: object, changes: object, version: object, column: object) -> None:
        self.table = _parts(table)
        self.column = _name(column, "column")
        self.key = _columns(key, "key")
        self.changes = _columns(changes, "changes")
        if not self.key:
            raise ValueError("key must name at least one column: without it every row would be changed")
        if None in self.key.values():
            raise ValueError("a value of key is None, and no row is equal to that")
        if self.column in {*self.key, *self.changes}:
            raise ValueError(f"the version column {self.column!r} is written by dibs: leave it out of key and changes")
        if isinstance(version, bool) or not isinstance(version, int):
            raise TypeError(f"version must be an int, as it was read, not {version!r}")
        self.version = version

    def update(self, connection: CallerConnection) -> tuple[str, list[object]]:
        values: list[object] = []
        given = {**self.changes, self.column: self.version + 1}
        sets = ", ".join(_equals(connection, column, value, values) for column, value in given.items())
        where = self._where(connection, {**self.key, self.column: self.version}, values)
        return f"UPDATE {self._table(connection)} SET {sets} WHERE {where}", values  # noqa: S608  (quoted names, marks)

    def look(self, connection: CallerConnection) -> tuple[str, list[object]]:
        values: list[object] = []
        where = self._where(connection, self.key, values)
        return f"SELECT {connection.quote(self.column)} FROM {self._table(connection)} WHERE {where}", values  # noqa: S608  (as above)

    def row(self) -> str:
        """The row in error messages."""
        return f"{'.'.join(self.table)} {', '.join(f'{column}={_shown(value)}' for column, value in self.key.items())}"

    def _table(self, connection: CallerConnection) -> str:
        return ".".join(connection.quote(part) for part in self.table)

    @staticmethod
    def _where(connection: CallerConnection, wanted: Mapping[str, object], values: list[object]) -> str:
        return " AND ".join(_equals(connection, column, value, values) for column, value in wanted.items())


async def update(connection: CallerConnection, change: Change) -> int:
    """The new version."""
    try:
        changed, _ = await connection.run(*change.update(connection))
    except Exception as error:
        if not connection.is_conflict(error):
            raise
        raise _conflict(connection, change, "it was changed after this transaction began to read") from error
    if changed == 1:
        return change.version + 1
    if changed:
        raise StoreError(
            f"the key names {changed} rows, not one", name=change.row(), store=connection.server,
            step="roll back, and give a key that is unique",
        )  # fmt: skip
    _, rows = await connection.run(*change.look(connection))
    if not rows:
        raise _conflict(connection, change, "there is no such row")
    (there,) = rows[0]
    raise _conflict(
        connection, change,
        f"it has version {there}, not {change.version}: somebody else changed it" if there != change.version
        else "somebody else changed it after this transaction began to read",
    )  # fmt: skip


async def again(attempt: Callable[[], Awaitable[T]], tries: object, runtime: Runtime) -> T:
    """Retry with pauses while it raises Conflict; the last Conflict is raised."""
    if isinstance(tries, bool) or not isinstance(tries, int):
        raise TypeError(f"tries must be an int, not {tries!r}")
    if tries < 1:
        raise ValueError(f"tries must be at least 1, not {tries}")
    *before_the_last, _ = gaps(tries)
    for gap in before_the_last:
        try:
            return await attempt()
        except Conflict:
            await runtime.sleep(runtime.jitter(gap))
    return await attempt()


def _conflict(connection: CallerConnection, change: Change, what: str) -> Conflict:
    return Conflict(what, name=change.row(), store=connection.server, step="read the row again, in a new transaction")


def _equals(connection: CallerConnection, column: str, value: object, values: list[object]) -> str:
    values.append(value)
    return f"{connection.quote(column)} = {connection.mark(len(values))}"


def _parts(table: object) -> tuple[str, ...]:
    parts = (table,) if isinstance(table, str) else table
    if not isinstance(parts, tuple) or not 1 <= len(parts) <= 2:
        raise TypeError(f"table must be its name, or a tuple of its schema and its name, not {table!r}")
    return tuple(_name(part, "table") for part in parts)


def _columns(given: object, what: str) -> dict[str, object]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a mapping of columns to values, not {type(given).__name__}")
    return {_name(column, what): value for column, value in given.items()}


def _name(name: object, what: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name in {what} must be a str, not {name!r}")
    if not name or "\0" in name:
        raise ValueError(f"a name in {what} must not be empty, nor have a NUL in it")
    return name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
