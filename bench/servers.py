"""The stores to measure on: embedded ones, and real servers of tests/lab. Each runs alone and is warmed up.

PostgreSQL, MariaDB and ZooKeeper write to the disk of `--dir`, with their default durability: a commit is on the disk
before its reply. Redis keeps its data in memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from crew import Failed
from measure import dibs_lock, pair_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from lab.servers import guard
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.redis import Redis
from lab.servers.supervisor import Kind, Server
from lab.servers.zookeeper import ZooKeeper

TICK_MS = 2000
"""ZooKeeper's default. It allows sessions of 40 s, so that none expires while other contenders are measured."""
SERVERS: dict[str, Callable[[], Kind]] = {
    "redis": Redis,
    "postgresql": lambda: PostgreSQL("shared_preload_libraries=pg_stat_statements"),
    "mysql": MariaDB,
    "zookeeper": lambda: ZooKeeper(java=("-Xmx512m",)),
}
_WARM_UP = {"zookeeper": 1500}
"""Pairs before the first measurement: without them the first contender would meet a cold server or JVM."""
_fresh = count()


class Store(NamedTuple):
    url: str
    pid: int
    """The process id of the server; of an embedded store, that of this process."""


@contextmanager
def serving(kind: str, directory: Path, *, quick: bool = False) -> Iterator[Store]:
    """Start an empty store: `memory`, `sqlite` or one of SERVERS."""
    number = next(_fresh)
    if kind == "memory":
        yield Store(f"memory://bench-{number}", os.getpid())
    elif kind == "sqlite":
        yield Store(f"sqlite:///{directory / f'store-{number}'}.db", os.getpid())
    else:
        with ExitStack() as stack:
            server = stack.enter_context(_started(kind, directory))
            with ExitStack() as warming:
                pairs = 200 if quick else _WARM_UP.get(kind, 500)
                pair_of(dibs_lock(server.url(), warming, "warm-up"))(pairs)
            yield Store(server.url(), server.pid)


@contextmanager
def _started(kind: str, directory: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        if kind == "zookeeper":
            log = stack.enter_context(TemporaryDirectory(prefix="zookeeper-", dir=directory))
            yield stack.enter_context(Server(ZooKeeper(f"dataLogDir={log}", tick_ms=TICK_MS)))
        else:
            if kind != "redis":
                stack.enter_context(_on_disk(directory))
            yield stack.enter_context(Server(SERVERS[kind]()))


@contextmanager
def _on_disk(directory: Path) -> Iterator[None]:
    """Start a server whose data is on disk: the lab keeps its servers' data in memory, where a commit is free."""
    memory, guard.MEMORY = guard.MEMORY, directory
    in_memory, guard.root = guard.root, guard.once(guard.root.__wrapped__)
    for path in (directory, directory.parent):
        path.chmod(0o711)  # the server runs as another user and must pass through
    try:
        yield
    finally:
        guard.MEMORY, guard.root = memory, in_memory


@contextmanager
def a_core_each(pid: int) -> Iterator[None]:
    """Keep the server off the core of the calling thread. Sometimes the kernel would put both on one core, where a
    round trip costs half as much."""
    cores = os.sched_getaffinity(0)
    mine = {min(cores)}
    if mine == cores:
        raise Failed("there is one core only")
    os.sched_setaffinity(pid, cores - mine)
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        os.sched_setaffinity(pid, cores)
