"""Peers on PostgreSQL and MariaDB: the floors, a bare message, and the locks that people use today.

The floor is a row that is inserted and deleted, each in a commit of its own; it is no lock. By hand: the server's own
session locks as people write them, on a connection that stays open. These, tooz and sqlalchemy-dlock, which wrap them,
have no lease, no queue to inspect, and no token.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from crew import Side, one_way
from measure import Timed, timed

FLOOR, BY_HAND, TOOZ, DLOCK = "floor_two_commits", "by hand", "tooz", "sqlalchemy-dlock"
MESSAGE = "bare NOTIFY to message"
_TABLE = "CREATE TABLE floor (name VARCHAR(64) PRIMARY KEY, holder VARCHAR(64))"
_TAKE = "INSERT INTO floor VALUES ('name', 'me')"
_GIVE = "DELETE FROM floor WHERE name = 'name'"


class Dialect(NamedTuple):
    """How one of the two servers is used."""

    execute: Callable[[str, ExitStack], Callable[[str], Any]]
    """Connects, and returns a function that runs a statement in a commit of its own."""
    take: str
    give: str
    """Its session lock."""
    alchemy: str
    """The URL's scheme for SQLAlchemy."""
    counter: Callable[[str, ExitStack], Callable[[], float]]
    """Connects, and returns a function that counts the statements of all clients but its own."""


def _postgresql(url: str, stack: ExitStack) -> Any:
    import psycopg

    return stack.enter_context(psycopg.connect(url, autocommit=True))


def _on_postgresql(url: str, stack: ExitStack) -> Callable[[str], Any]:
    connection = _postgresql(url, stack)
    return lambda statement: connection.execute(statement, prepare=True)


def _mysql_cursor(url: str, stack: ExitStack) -> Any:
    import pymysql

    parts = urlsplit(url)
    connection = pymysql.connect(
        host=parts.hostname or "", port=parts.port or 0, user=parts.username, password=parts.password or "",
        database=parts.path[1:], autocommit=True,
    )  # fmt: skip
    stack.callback(connection.close)
    return connection.cursor()


def _on_mysql(url: str, stack: ExitStack) -> Callable[[str], Any]:
    execute: Callable[[str], Any] = _mysql_cursor(url, stack).execute
    return execute


def _counted_by_postgresql(url: str, stack: ExitStack) -> Callable[[], float]:
    execute = _on_postgresql(url, stack)
    execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    others = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements WHERE toplevel AND query NOT LIKE '%pg_stat%'"
    return lambda: float(execute(others).fetchone()[0])


def _counted_by_mysql(url: str, stack: ExitStack) -> Callable[[], float]:
    cursor, asked = _mysql_cursor(url, stack), count(1)

    def counted() -> float:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
        return float(cursor.fetchone()[1]) - next(asked)

    return counted


DIALECTS = {
    "postgresql": Dialect(
        _on_postgresql, "SELECT pg_advisory_lock(42)", "SELECT pg_advisory_unlock(42)", "postgresql+psycopg",
        _counted_by_postgresql,
    ),
    "mysql": Dialect(
        _on_mysql, "SELECT GET_LOCK('by-hand', 60)", "SELECT RELEASE_LOCK('by-hand')", "mysql+pymysql",
        _counted_by_mysql,
    ),
}  # fmt: skip


def dialect(url: str) -> Dialect:
    return DIALECTS[urlsplit(url).scheme]


def two_commits(url: str, stack: ExitStack) -> Timed:
    execute = dialect(url).execute(url, stack)
    execute(_TABLE)

    def once() -> None:
        execute(_TAKE)
        execute(_GIVE)

    return timed(once)


class ByHand:
    def __init__(self, url: str, stack: ExitStack) -> None:
        self._execute = dialect(url).execute(url, stack)
        self._take, self._give = dialect(url).take, dialect(url).give

    def acquire(self) -> None:
        self._execute(self._take)

    def release(self) -> None:
        self._execute(self._give)


def tooz_lock(url: str, stack: ExitStack) -> Any:
    from tooz import coordination

    coordinator = coordination.get_coordinator(url, b"bench")
    coordinator.start()
    stack.callback(coordinator.stop)
    return coordinator.get_lock(b"tooz")


class Dlock:
    """On one connection that stays open, as by hand."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        import sqlalchemy
        from sqlalchemy_dlock import create_sadlock

        engine = sqlalchemy.create_engine(dialect(url).alchemy + url[url.index("://") :])
        stack.callback(engine.dispose)
        connection = stack.enter_context(engine.connect())
        self._make = lambda: create_sadlock(connection, "dlock")

    def acquire(self) -> None:
        self._lock = self._make()
        self._lock.acquire(timeout=60)  # MariaDB requires one

    def release(self) -> None:
        self._lock.release()


LOCKS: dict[str, Callable[[str, ExitStack], Any]] = {BY_HAND: ByHand, TOOZ: tooz_lock, DLOCK: Dlock}


def bare_messages(url: str, turns: int) -> list[float]:
    """NOTIFY on one connection of PostgreSQL, and its arrival on another, by libpq alone."""

    def side(me: int, stack: ExitStack) -> Side:
        subscribed, other = (_postgresql(url, stack).pgconn for _ in range(2))
        subscribed.exec_(b"LISTEN bare_%d" % me)
        message = b"NOTIFY bare_%d, '%s'" % (1 - me, b"x" * 40)

        def receive() -> None:
            while subscribed.notifies() is None:
                select.select([subscribed.socket], [], [])
                subscribed.consume_input()

        return lambda: other.exec_(message), receive, lambda: None

    return one_way(side, turns)
