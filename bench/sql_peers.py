"""What the rows on PostgreSQL and MariaDB run against, and beside: the servers, the floors, and the locks of today.

The servers write to a disk as they do by default: a commit is on it when it is answered. The
floor is the least that could work, a row that is inserted and deleted, each in a commit of its own; it is no lock. By
hand: the server's own session locks as people write them, on a connection that stays open. Neither these nor tooz and
sqlalchemy-dlock, which are the same with a coat, have a lease, a line to look at, or a token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from measure import Settings, Timed, timed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from lab.servers import guard
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.supervisor import Server

FLOOR, BY_HAND, TOOZ, DLOCK = "floor_two_commits", "by hand", "tooz", "sqlalchemy-dlock"
_TABLE = "CREATE TABLE floor (name VARCHAR(64) PRIMARY KEY, holder VARCHAR(64))"
_TAKE = "INSERT INTO floor VALUES ('name', 'me')"
_GIVE = "DELETE FROM floor WHERE name = 'name'"


class Place(NamedTuple):
    """One of the two servers: how it is started, and what is tried on it."""

    start: Callable[[], Any]
    execute: Callable[[str, ExitStack], Callable[[str], Any]]
    """Of its URL: a function that runs a statement, in a commit of its own."""
    take: str
    give: str
    """Its session lock."""
    alchemy: str
    """The URL's scheme for SQLAlchemy."""
    counter: Callable[[str, ExitStack], Callable[[], float]]
    """Of its URL: a function that gives how many statements clients have sent, its own not among them."""


def _on_postgresql(url: str, stack: ExitStack) -> Callable[[str], Any]:
    import psycopg

    connection = stack.enter_context(psycopg.connect(url, autocommit=True))
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


def _postgresql_that_counts() -> Any:
    return PostgreSQL("shared_preload_libraries=pg_stat_statements")


PLACES = {
    "postgresql": Place(
        _postgresql_that_counts, _on_postgresql, "SELECT pg_advisory_lock(42)", "SELECT pg_advisory_unlock(42)",
        "postgresql+psycopg", _counted_by_postgresql,
    ),
    "mysql": Place(
        MariaDB, _on_mysql, "SELECT GET_LOCK('by-hand', 60)", "SELECT RELEASE_LOCK('by-hand')", "mysql+pymysql",
        _counted_by_mysql,
    ),
}  # fmt: skip


@contextmanager
def serving(place: Place, settings: Settings) -> Iterator[str]:
    """The URL of a fresh server on the disk that `--dir` names: the lab's own are in memory, where a commit is free."""
    memory, guard.MEMORY = guard.MEMORY, settings.directory
    in_memory, guard.root = guard.root, guard.once(guard.root.__wrapped__)
    settings.directory.chmod(0o711)  # a server that runs as somebody else passes through
    try:
        with Server(place.start()) as server:
            yield server.url()
    finally:
        guard.MEMORY, guard.root = memory, in_memory


def two_commits(place: Place, url: str, stack: ExitStack) -> Timed:
    execute = place.execute(url, stack)
    execute(_TABLE)

    def once() -> None:
        execute(_TAKE)
        execute(_GIVE)

    return timed(once)


class ByHand:
    def __init__(self, place: Place, url: str, stack: ExitStack) -> None:
        self._execute = place.execute(url, stack)
        self._take, self._give = place.take, place.give

    def acquire(self) -> None:
        self._execute(self._take)

    def release(self) -> None:
        self._execute(self._give)


def tooz_lock(place: Place, url: str, stack: ExitStack) -> Any:
    from tooz import coordination

    coordinator = coordination.get_coordinator(url, b"bench")
    coordinator.start()
    stack.callback(coordinator.stop)
    return coordinator.get_lock(b"tooz")


class Dlock:
    """On one connection that stays open, as by hand."""

    def __init__(self, place: Place, url: str, stack: ExitStack) -> None:
        import sqlalchemy
        from sqlalchemy_dlock import create_sadlock

        engine = sqlalchemy.create_engine(place.alchemy + url[url.index("://") :])
        stack.callback(engine.dispose)
        connection = stack.enter_context(engine.connect())
        self._make = lambda: create_sadlock(connection, "dlock")

    def acquire(self) -> None:
        self._lock = self._make()
        self._lock.acquire(timeout=60)  # without one MariaDB gives an error

    def release(self) -> None:
        self._lock.release()


LOCKS: dict[str, Callable[[Place, str, ExitStack], Any]] = {BY_HAND: ByHand, TOOZ: tooz_lock, DLOCK: Dlock}


def pair_of(lock: Any) -> Timed:
    def once() -> None:
        lock.acquire()
        lock.release()

    return timed(once)


def dibs_lock(url: str, stack: ExitStack, name: str, **options: Any) -> Any:
    import dibs

    return stack.enter_context(dibs.connect(url)).lock(name, **options)
