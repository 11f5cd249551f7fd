"""The peers that are measured beside dibs on each store: a floor, other lock libraries, and a bare message.

A *floor* is the least work that a lock must do; it excludes nobody. On an embedded store it is an insert and a delete,
each committed by itself, on a database with the same settings. A bare message is a datagram on a Unix socket.
"""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import redis_peers
import redisson
import sql_peers
import zookeeper_peers
from contest import FAIR, PROCESSES, UNFAIR, Contender, Maker
from crew import Side, one_way
from measure import Settings, Timed, dibs_lock, pair_of, timed

COMMITS, FILELOCK, FILELOCK_RW = (
    "floor_two_commits_sqlite",
    "filelock.FileLock",
    "filelock.ReadWriteLock (SQLite)",
)
WAKE = "bare Unix-socket wake"


class Peers(NamedTuple):
    floor: str
    floor_pair: Callable[[str, ExitStack], Timed]
    locks: Mapping[str, Callable[[str, ExitStack], Any]]
    """Python locks; each process creates its own."""
    pairs: Mapping[str, Callable[[str, Settings, ExitStack], Timed]] = {}
    """Peers that measure their own acquire-release pairs on a free lock."""
    contenders: Mapping[str, Callable[[str, Settings, ExitStack], Contender]] = {}
    """Contenders that start their own processes."""
    message: str = ""
    messages: Callable[[str, int], list[float]] | None = None
    """Measures a bare message from one process to another: the seconds of each."""


def two_commits(url: str, stack: ExitStack) -> Timed:
    connection = sqlite3.connect(_beside(url, "floor.db"), isolation_level=None)
    stack.callback(connection.close)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = normal")
    connection.execute("create table floor (name text primary key, holder text)")

    def once() -> None:
        connection.execute("insert into floor values ('name', 'me')")
        connection.execute("delete from floor where name = 'name'")

    return timed(once)


def file_lock(url: str, stack: ExitStack) -> Any:
    import filelock

    return filelock.FileLock(_beside(url, "lock"))


def file_lock_on_sqlite(url: str, settings: Settings, stack: ExitStack) -> Timed:
    import filelock

    lock = filelock.ReadWriteLock(_beside(url, "rw.db"))
    stack.callback(lock.close)

    def once() -> None:
        lock.acquire_write()
        lock.release()

    return timed(once)


def bare_wakes(url: str, turns: int) -> list[float]:
    def side(me: int, stack: ExitStack) -> Side:
        mine = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        places = [_beside(url, f"wake-{number}") for number in (me, 1 - me)]
        Path(places[0]).unlink(missing_ok=True)
        mine.bind(places[0])
        return lambda: mine.sendto(b"x", places[1]), lambda: mine.recv(16), lambda: None

    return one_way(side, turns)


def _beside(url: str, suffix: str) -> str:
    """The path of a file beside the database of that URL."""
    return f"{url.removeprefix('sqlite://').removesuffix('.db')}.{suffix}"


PEERS = {
    "sqlite": Peers(
        COMMITS, two_commits, {FILELOCK: file_lock}, {FILELOCK_RW: file_lock_on_sqlite},
        message=WAKE, messages=bare_wakes,
    ),
    "redis": Peers(
        redis_peers.FLOOR, redis_peers.two_scripts,
        {redis_peers.REDIS_LOCK: redis_peers.python_redis_lock, redis_peers.REDIS_PY: redis_peers.redis_py_lock},
        {
            redis_peers.TOOZ: lambda url, _, stack: pair_of(redis_peers.tooz_lock(url, stack)),
            redisson.LOCK: partial(redisson.pair, redisson.LOCK),
        },
        {kind: partial(redisson.contender, kind) for kind in redisson.KINDS},
        redis_peers.MESSAGE, redis_peers.bare_messages,
    ),
    "postgresql": Peers(
        sql_peers.FLOOR, sql_peers.two_commits, sql_peers.LOCKS,
        message=sql_peers.MESSAGE, messages=sql_peers.bare_messages,
    ),
    "mysql": Peers(sql_peers.FLOOR, sql_peers.two_commits, sql_peers.LOCKS),
    "zookeeper": Peers(
        zookeeper_peers.FLOOR, zookeeper_peers.create_delete, {zookeeper_peers.KAZOO: zookeeper_peers.kazoo_lock},
        {zookeeper_peers.CURATOR: zookeeper_peers.curator_pair},
        {
            zookeeper_peers.CURATOR: partial(zookeeper_peers.curator_contender, 1),
            zookeeper_peers.CURATORS: partial(zookeeper_peers.curator_contender, PROCESSES),
        },
    ),
}  # fmt: skip
"""tooz on Redis uses redis-py's Lock, which polls, so only its free pair is measured."""


def makers(kind: str, url: str) -> dict[str, Maker]:
    """Makers of the locks of one process: both of dibs, and those of the peers."""
    ours: dict[str, Maker] = {
        FAIR: lambda stack: dibs_lock(url, stack, "fair"),
        UNFAIR: lambda stack: dibs_lock(url, stack, "unfair", fair=False),
    }
    plain = url.partition("?")[0]
    return ours | {name: partial(make, plain) for name, make in PEERS[kind].locks.items()}
