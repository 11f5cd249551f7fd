"""The caller's own connections, for `dibs.sql`, fences and `within`: one way to run a statement with any driver.

A statement runs in the transaction that is open on the connection, or that the driver begins. Nothing here begins,
commits or rolls back, and errors of the driver are raised unchanged. The driver binds values; names are quoted by the
driver if it can, else by the rules of the server. Where the driver formats with `%`, a `%` in a name is doubled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dibs.errors import StoreError

Result = tuple[int, list[Any]]
"""The number of rows changed or found, and the rows."""
Run = Callable[[str, Sequence[object]], Awaitable[Result]]
_SQLITE_BUSY_SNAPSHOT = 517
_MARIADB_CHANGED_SINCE_LAST_READ = 1020
_CONFLICTS = ("40001", _MARIADB_CHANGED_SINCE_LAST_READ, _SQLITE_BUSY_SNAPSHOT)
_OF_MYSQL = ("pymysql", "asyncmy", "MySQLdb")
_IDLE = 0
"""libpq: the connection is in no transaction."""
_IN_TRANSACTION = 1
"""MySQL: the status bit of an open transaction."""


@dataclass(frozen=True)
class CallerConnection:
    server: str
    """`postgresql`, `mysql` or `sqlite`."""
    quote: Callable[[str], str]
    mark: Callable[[int], str]
    """The placeholder of the n-th value, from 1."""
    run: Run
    keeps: Callable[[], Awaitable[bool]]
    """Whether this statement and the next run in one transaction; False with autocommit."""
    awaits: bool
    """Whether the connection is for asyncio."""

    async def require_transaction(self, why: str) -> None:
        """`why`: what would go wrong without one."""
        if not await self.keeps():
            raise StoreError(f"this connection is not in a transaction, {why}", step="begin one first")

    def marked(self, text: str, count: int) -> str:
        """The statement with this driver's placeholders for `{0}`, `{1}`."""
        return text.format(*(self.mark(number) for number in range(1, count + 1)))

    @staticmethod
    def is_conflict(error: BaseException) -> bool:
        """Whether the server refused because the row was changed after the transaction's snapshot was taken."""
        return code_of(error) in _CONFLICTS


def code_of(error: BaseException) -> str | int | None:
    """The error code, also from below SQLAlchemy and Django: PostgreSQL's SQLSTATE, MySQL's number, SQLite's extended
    code. SQLSTATEs of MySQL are ignored: some mean something else on PostgreSQL."""
    found: BaseException | None = error
    while found is not None:
        if (code := _own_code(found)) is not None:
            return code
        found = getattr(found, "orig", None) or found.__cause__  # as SQLAlchemy and Django wrap it
    return None


def _own_code(error: BaseException) -> str | int | None:
    if type(error).__module__.partition(".")[0] in _OF_MYSQL:
        number = error.args[0] if error.args else None
        return number if isinstance(number, int) else None
    code: str | int | None = (
        getattr(error, "sqlstate", None)
        or getattr(error, "pgcode", None)  # psycopg2
        or getattr(error, "sqlite_errorcode", None)
    )
    return code


def of_sqlite(connection: Any) -> CallerConnection:
    async def run(text: str, values: Sequence[object]) -> Result:
        cursor = connection.cursor()
        cursor.row_factory = None
        cursor.execute(text, tuple(values))
        return cursor.rowcount, cursor.fetchall()

    async def keeps() -> bool:
        by_itself = connection.isolation_level is not None and getattr(connection, "autocommit", False) is not True
        return by_itself or bool(connection.in_transaction)

    return CallerConnection("sqlite", _in_double_quotes, _question_mark, run, keeps, awaits=False)


def of_psycopg(connection: Any, *, awaits: bool = False) -> CallerConnection:
    from psycopg import sql  # noqa: PLC0415  (optional driver)
    from psycopg.rows import tuple_row  # noqa: PLC0415  (optional driver)

    async def keeps() -> bool:
        return not connection.autocommit or connection.info.transaction_status != _IDLE

    def quote(name: str) -> str:
        return sql.Identifier(name).as_string(connection).replace("%", "%%")

    run = _by_cursor(partial(connection.cursor, row_factory=tuple_row), awaits=awaits)
    return CallerConnection("postgresql", quote, _percent, run, keeps, awaits)


of_async_psycopg = partial(of_psycopg, awaits=True)


def of_pymysql(connection: Any) -> CallerConnection:
    from pymysql.cursors import Cursor  # noqa: PLC0415  (optional driver)

    return _mysql(connection, Cursor, awaits=False)


def of_asyncmy(connection: Any) -> CallerConnection:
    from asyncmy.cursors import Cursor  # noqa: PLC0415  (optional driver)

    return _mysql(connection, Cursor, awaits=True)


def _mysql(connection: Any, cursor_class: Any, *, awaits: bool) -> CallerConnection:
    async def keeps() -> bool:
        return not connection.get_autocommit() or bool(connection.server_status & _IN_TRANSACTION)

    run = _by_cursor(partial(connection.cursor, cursor_class), awaits=awaits)
    return CallerConnection("mysql", _in_backquotes, _percent, run, keeps, awaits)


def _by_cursor(open_cursor: Callable[[], Any], *, awaits: bool) -> Run:
    async def run(text: str, values: Sequence[object]) -> Result:
        with open_cursor() as cursor:
            cursor.execute(text, tuple(values))
            return cursor.rowcount, list(cursor.fetchall()) if cursor.description else []

    async def run_async(text: str, values: Sequence[object]) -> Result:
        async with open_cursor() as cursor:
            await cursor.execute(text, tuple(values))
            return cursor.rowcount, list(await cursor.fetchall()) if cursor.description else []

    return run_async if awaits else run


def of_sqlalchemy(given: Any, *, awaits: bool = False) -> CallerConnection:
    """A connection, or a session, whose current connection is used each time."""
    is_session = hasattr(given, "get_bind")

    async def current() -> Any:
        found = given.connection() if is_session else given
        return await found if is_session and awaits else found

    async def run(text: str, values: Sequence[object]) -> Result:
        result = (await current()).exec_driver_sql(text, tuple(values))
        if awaits:
            result = await result
        return result.rowcount, [tuple(row) for row in result] if result.returns_rows else []

    async def keeps() -> bool:
        connection = await current()
        return not _commits_itself(connection.sync_connection if awaits else connection)

    dialect = (given.get_bind() if is_session else given).dialect
    mark = {"qmark": _question_mark, "numeric_dollar": _dollar}.get(dialect.paramstyle, _percent)
    quote = dialect.identifier_preparer.quote_identifier
    return CallerConnection(_known(dialect.name), quote, mark, run, keeps, awaits)


of_async_sqlalchemy = partial(of_sqlalchemy, awaits=True)


def of_django(connection: Any) -> CallerConnection:
    """Its cursors take `%s` on every database. Django's own quoting trusts names, so it is not used."""

    async def keeps() -> bool:
        return bool(connection.in_atomic_block or not connection.get_autocommit())

    server = _known(connection.vendor)
    quote = _in_backquotes if server == "mysql" else _in_double_quotes_twice_percent
    run = _by_cursor(lambda: connection.cursor(), awaits=False)  # noqa: PLW0108  (a proxy: one connection per thread)
    return CallerConnection(server, quote, _percent, run, keeps, awaits=False)


def _commits_itself(connection: Any) -> bool:
    """Whether the driver's connection is in autocommit mode."""
    raw = connection.connection.dbapi_connection
    by_asking = getattr(raw, "get_autocommit", None)
    return bool(by_asking() if by_asking else getattr(raw, "autocommit", False))


def _known(server: str) -> str:
    name = "mysql" if server == "mariadb" else server
    if name not in ("postgresql", "mysql", "sqlite"):
        raise TypeError(f"a connection to PostgreSQL, MySQL, MariaDB or SQLite is needed, not to {server}")
    return name


def _in_double_quotes(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _in_double_quotes_twice_percent(name: str) -> str:
    return _in_double_quotes(name).replace("%", "%%")


def _in_backquotes(name: str) -> str:
    doubled = name.replace("`", "``").replace("%", "%%")
    return f"`{doubled}`"


def _question_mark(_: int) -> str:
    return "?"


def _percent(_: int) -> str:
    return "%s"


def _dollar(number: int) -> str:
    return f"${number}"
