"""The published suite on servers: a pytest plugin that starts them once for all workers of a run.

    PYTHONPATH=tests pytest -p lab.suite --pyargs dibs.testing.contract --dibs-store zookeeper=lab.suite:zookeeper

Each test has a store of its own on them: a chroot, a prefix. Where the programs of one are missing nothing is
collected, or, with DIBS_REQUIRE_SERVERS=1, the run fails. `--variant NAME` says that of this store only that part is
asked which differs most from store to store, `DIFFERS`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.contract.stores import Subject
from lab.servers import programs, redis_groups
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import NAME, PgBouncer, PostgreSQL
from lab.servers.redis import Redis
from lab.servers.schemas import Schemas
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper, ensemble

TICK_MS = 200
"""Sessions of 0.4 to 4 s: the suite asks for 2 and more."""
DIFFERS = frozenset(
    f"test_{part}"
    for part in (
        "cells_seam", "doctor", "life", "looking", "lost_answers", "seam", "seam_wake", "sessions", "time", "votes",
        "waiting",
    )
)  # fmt: skip
"""The modules of the suite about lines and cells as stores keep them; the others are about what is made of these."""
_VARIABLE = "DIBS_SUITE_{}"
_NOWHERE = "127.0.0.1:1"
"""While tests are collected nothing is opened."""


@contextlib.contextmanager
def _zookeeper() -> Iterator[list[Server]]:
    with Server(ZooKeeper(tick_ms=TICK_MS)) as server:
        yield [server]


@contextlib.contextmanager
def _three() -> Iterator[list[Server]]:
    with ensemble(tick_ms=TICK_MS) as servers:
        yield list(servers)


@contextlib.contextmanager
def _redis() -> Iterator[list[Server]]:
    with Server(Redis()) as server:
        yield [server]


@contextlib.contextmanager
def _mariadb() -> Iterator[list[Server]]:
    with Server(MariaDB()) as server:
        yield [server]


@contextlib.contextmanager
def _mariadb_sessions() -> Iterator[list[Server]]:
    """Whoever holds or waits has a connection of its own."""
    with Server(MariaDB("--max-connections=1000")) as server:
        yield [server]


@contextlib.contextmanager
def _sentinel() -> Iterator[list[Server]]:
    with redis_groups.replicated(replicas=1, sentinels=3, down_after_ms=10_000) as group:
        yield list(group.sentinels)


@contextlib.contextmanager
def _cluster() -> Iterator[list[Server]]:
    with redis_groups.cluster(node_timeout_ms=10_000) as nodes:
        yield list(nodes[:3])


@contextlib.contextmanager
def _five() -> Iterator[list[Server]]:
    with redis_groups.independent(5) as nodes:
        yield list(nodes)


@contextlib.contextmanager
def _postgresql() -> Iterator[list[Server]]:
    with Server(PostgreSQL("max_connections=400")) as server:
        yield [server]


@contextlib.contextmanager
def _pgbouncer() -> Iterator[list[Server]]:
    """Transactions of all clients share a few connections."""
    with (
        Server(PostgreSQL("max_connections=400")) as server,
        Server(PgBouncer(server.port, "max_client_conn = 1000", "default_pool_size = 20", mode="transaction")) as pool,
    ):
        yield [pool]


_GROUPS: dict[str, tuple[str, Callable[[], contextlib.AbstractContextManager[list[Server]]]]] = {
    "zookeeper": ("zookeeper", _zookeeper),
    "three": ("zookeeper", _three),
    "redis": ("redis", _redis),
    "sentinel": ("redis", _sentinel),
    "cluster": ("redis", _cluster),
    "five": ("redis", _five),
    "postgresql": ("postgresql", _postgresql),
    "postgresql_session": ("postgresql", _postgresql),
    "pgbouncer": ("pgbouncer", _pgbouncer),
    "mariadb": ("mariadb", _mariadb),
    "mariadb_session": ("mariadb", _mariadb_sessions),
}
"""By the name of the function below: the program it needs, and the servers."""


def zookeeper(place: Path) -> str:
    """The URL of a fresh store on one server."""
    return f"zookeeper://{_hosts('zookeeper')}/{_unique()}"


def three(place: Path) -> str:
    """The same on an ensemble, all of whose servers are named."""
    return f"zookeeper://{_hosts('three')}/{_unique()}"


def redis(place: Path) -> str:
    return f"redis://{_hosts('redis')}?prefix={_unique()}:"


def sentinel(place: Path) -> str:
    return f"redis+sentinel://{_hosts('sentinel')}/{redis_groups.MAIN}?prefix={_unique()}:"


def cluster(place: Path) -> str:
    return f"redis+cluster://{_hosts('cluster')}?prefix={_unique()}:"


def five(place: Path) -> str:
    """A quorum."""
    return f"quorum+redis://{_hosts('five')}?prefix={_unique()}:&guard=0"


def postgresql(place: Path) -> str:
    return _in_schema("postgresql", place)


def postgresql_session(place: Path) -> str:
    """The same, where each lock is a connection's."""
    return f"{_in_schema('postgresql_session', place)}&mode=session"


def pgbouncer(place: Path) -> str:
    """The same behind a pooler that shares connections by transaction."""
    return _in_schema("pgbouncer", place)


def mariadb(place: Path) -> str:
    return f"mariadb://{NAME}:{NAME}@{_hosts('mariadb')}/{NAME}?prefix={_unique()}:"


def mariadb_session(place: Path) -> str:
    return f"mariadb://{NAME}:{NAME}@{_hosts('mariadb_session')}/{NAME}?prefix={_unique()}:&mode=session"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--variant", action="append", default=[], metavar="NAME", help="a store of which a part is asked")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    variants = set(config.getoption("variant"))
    left_out = [item for item in items if _store(item) in variants and item.path.stem not in DIFFERS]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _store(item: pytest.Item) -> str | None:
    """The name of the store that the suite asks there."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    subject = params["world"][0] if "world" in params else params.get("seats")
    return subject.name if isinstance(subject, Subject) else None


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    absent = _absent(config)
    if absent and os.environ.get("DIBS_REQUIRE_SERVERS") == "1":
        raise pytest.UsageError(f"not installed: {', '.join(absent)}; scripts/servers installs them")
    if absent or config.option.collectonly:
        return
    servers = contextlib.ExitStack()
    config.add_cleanup(servers.close)
    with ThreadPoolExecutor() as pool:  # they mostly wait: for a group that forms, for a machine that starts
        started = {which: pool.submit(servers.enter_context, _GROUPS[which][1]()) for which in _wanted(config)}
    for which, group in started.items():
        os.environ[_VARIABLE.format(which)] = ",".join(f"127.0.0.1:{server.port}" for server in group.result())


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if _absent(config) else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing to collect is no failure, where nothing was to be had."""
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and _absent(session.config):
        session.exitstatus = pytest.ExitCode.OK


def _wanted(config: pytest.Config) -> list[str]:
    words = [wish.rpartition(":")[2] for wish in config.getoption("dibs_store") if "lab.suite:" in wish]
    return sorted(set(words))


def _absent(config: pytest.Config) -> list[str]:
    return sorted({program for which in _wanted(config) for program in programs.missing(_GROUPS[which][0])})


def _hosts(which: str) -> str:
    return os.environ.get(_VARIABLE.format(which), _NOWHERE)


def _in_schema(which: str, place: Path) -> str:
    url = f"postgresql://{NAME}:{NAME}@{_hosts(which)}/postgres"
    return f"{url}?schema={_schemas(url).fresh(place) if _NOWHERE not in url else _unique()}"


@functools.cache
def _schemas(url: str) -> Schemas:
    return Schemas(url)


def _unique() -> str:
    return f"suite-{secrets.token_hex(6)}"
