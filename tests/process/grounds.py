"""The stores on which processes are killed, stopped and forked.

    @every_store
    def test_it(crew: Crew) -> None: ...

A file's clients are seen to be dead by the kernel, at once. Elsewhere a lease must run out, or a session, whose end the
server counts in whole ticks: there the crew's own lease is a short one, and who is to live through a test on a noisy
machine says so by `crew.worker(STEADY)`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab.servers import shared, shared_mariadb, shared_postgresql, shared_redis
from process.children import Crew

STEADY = 30.0
"""A lease that outlives any pause of this machine."""
LASTING = 3.0
"""A short one, which a machine that stands still for a second does not end."""
SLACK = 8.0
"""For busy cores, which may have to start an interpreter meanwhile; a session of STEADY would outlast it."""


def _zookeeper(directory: Path) -> Crew:
    lease = 1.5 * LASTING  # of a session's, less than a quarter may be certain at any moment
    noticed = lease + shared.TICK_MS / 1000 + SLACK
    return Crew(directory, shared.fresh(directory), lease=lease, noticed=noticed, lasting=lease)


def _redis(directory: Path) -> Crew:
    return Crew(directory, shared_redis.fresh(directory), lease=LASTING, noticed=LASTING + SLACK)


def _postgresql(directory: Path) -> Crew:
    return Crew(directory, shared_postgresql.fresh(directory), lease=LASTING, noticed=LASTING + SLACK)


def _mysql(directory: Path) -> Crew:
    return Crew(directory, shared_mariadb.fresh(directory), lease=LASTING, noticed=LASTING + SLACK)


GROUNDS: dict[str, Callable[[Path], Crew]] = {
    "sqlite": Crew,
    "zookeeper": _zookeeper,
    "redis": _redis,
    "postgresql": _postgresql,
    "mysql": _mysql,
}
every_store = pytest.mark.parametrize("crew", GROUNDS, indirect=True)
