"""The stores that interrupts are tried on: a name, a URL that is fresh for each test, and how long a lease is there.

A session is certain for less than a quarter of its time-out at any moment, and hundreds of interrupted runs on a noisy
machine need more than that of a short one. On memory it is so long that no test waits for a renewal to notice a claim
that nobody wants: it must be given back at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from lab.servers import shared, shared_mariadb, shared_postgresql, shared_redis

_fresh = count(1)

STORES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: f"memory://interrupts-{next(_fresh)}",
    "sqlite": lambda folder: f"sqlite:///{folder}/locks-{next(_fresh)}.db",
    "zookeeper": shared.fresh,
    "redis": shared_redis.fresh,
    "postgresql": shared_postgresql.fresh,
    "mysql": shared_mariadb.fresh,
}
LEASES = {"memory": 400.0, "sqlite": 4.5, "zookeeper": 6.0, "redis": 4.5, "postgresql": 4.5, "mysql": 4.5}
SERVERS = frozenset({"zookeeper", "redis", "postgresql", "mysql"})
"""Each try waits for a server there: most are for `scripts/soak`."""
