"""The servers that the tests of a run share, by name. Limits are for eight workers at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.servers import redis_groups
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PgBouncer, PostgreSQL
from lab.servers.redis import Redis
from lab.servers.supervisor import Kind, Server
from lab.servers.zookeeper import ZooKeeper, ensemble

TICK_MS = 750
"""ZooKeeper's tick. Sessions last from 1.5 s to 60 s, or to 15 s in the ensemble."""

Ports = Callable[[str], tuple[int, ...]]
"""The ports of another group, which is started if need be."""
Servers = contextlib.AbstractContextManager[tuple[Server, ...]]


@dataclass(frozen=True)
class Group:
    program: str
    start: Callable[[Ports], Servers]


@contextlib.contextmanager
def _one(kind: Kind) -> Iterator[tuple[Server, ...]]:
    with Server(kind) as server:
        yield (server,)


def _zookeeper(_: Ports) -> Servers:
    lines = ("maxClientCnxns=0", "maxSessionTimeout=60000")
    return _one(ZooKeeper(*lines, tick_ms=TICK_MS, java=["-Xmx512m"]))


@contextlib.contextmanager
def _sentinel(_: Ports) -> Iterator[tuple[Server, ...]]:
    with redis_groups.replicated(replicas=1, sentinels=3, down_after_ms=10_000) as group:
        yield group.sentinels


@contextlib.contextmanager
def _cluster(_: Ports) -> Iterator[tuple[Server, ...]]:
    with redis_groups.cluster(node_timeout_ms=10_000) as nodes:
        yield nodes[:3]


def _pgbouncer(ports: Ports) -> Servers:
    """Transactions of all clients share a few connections."""
    (behind,) = ports("postgresql")
    return _one(PgBouncer(behind, "max_client_conn = 1000", "default_pool_size = 20", mode="transaction"))


GROUPS = {
    "zookeeper": Group("zookeeper", _zookeeper),
    "three": Group("zookeeper", lambda _: ensemble(tick_ms=TICK_MS)),
    "redis": Group("redis", lambda _: _one(Redis())),
    "sentinel": Group("redis", _sentinel),
    "cluster": Group("redis", _cluster),
    "five": Group("redis", lambda _: redis_groups.independent(5)),
    "postgresql": Group("postgresql", lambda _: _one(PostgreSQL("max_connections=800"))),
    "pgbouncer": Group("pgbouncer", _pgbouncer),
    "mariadb": Group("mariadb", lambda _: _one(MariaDB("--max-connections=1000"))),
}
