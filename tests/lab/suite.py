"""The contract suite on servers that all workers of a run share: a pytest plugin, loaded by conftest.py.

    pytest src/dibs/testing/contract --dibs-store zookeeper=lab.suite:zookeeper

Each test has a store of its own on them: a chroot, a prefix, a schema. Tests of a store whose programs are missing are
left out, or, with DIBS_REQUIRE_SERVERS=1, the run fails.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.testing.contract.stores import Subject
from lab.faults import Latency
from lab.proxy import Proxy
from lab.servers import ports, programs, redis_groups
from lab.servers.groups import GROUPS
from lab.servers.postgresql import NAME
from lab.servers.shared import (
    fresh,
    fresh_mariadb,
    fresh_postgresql,
    fresh_redis,
    hosts,
    in_schema,
    runs,
    share,
    unique,
)

zookeeper, redis, postgresql = fresh, fresh_redis, fresh_postgresql
_HOP = 0.05
"""Seconds that a message to a far server is on its way."""


def three(_: Path) -> str:
    return f"zookeeper://{hosts('three')}/{unique()}"


def redisson(place: Path) -> str:
    return f"{fresh_redis(place)}&layout=redisson"


def sentinel(_: Path) -> str:
    return f"redis+sentinel://{hosts('sentinel')}/{redis_groups.MAIN}?prefix={unique()}:"


def cluster(_: Path) -> str:
    return f"redis+cluster://{hosts('cluster')}?prefix={unique()}:"


def five(_: Path) -> str:
    return f"quorum+redis://{hosts('five')}?prefix={unique()}:&guard=0"


def postgresql_session(place: Path) -> str:
    """Each lock belongs to a connection."""
    return f"{postgresql(place)}&mode=session"


def pgbouncer(place: Path) -> str:
    """PostgreSQL behind a pooler that shares connections by transaction."""
    return in_schema(f"postgresql://{NAME}:{NAME}@{hosts('pgbouncer')}/postgres", place)


def mariadb(place: Path) -> str:
    """Under its own name: other tests say mysql."""
    return fresh_mariadb(place).replace("mysql", "mariadb", 1)


def mariadb_session(place: Path) -> str:
    return f"{mariadb(place)}&mode=session"


def far_zookeeper(place: Path) -> str:
    return _far(zookeeper(place))


def far_redis(place: Path) -> str:
    return _far(redis(place))


def far_postgresql(place: Path) -> str:
    return _far(postgresql(place))


def far_mariadb(place: Path) -> str:
    url = mariadb(place)
    if runs():
        _have_tables(url.partition("?")[0])
    return _far(url)


@cache
def _have_tables(url: str) -> None:
    """Making them takes many round trips; all tests share them."""
    with dibs.connect(url) as near:
        near.inspect("x")


def _far(url: str) -> str:
    """The same server, a tenth of a second away."""
    return re.sub(r"(127\.0\.0\.1):(\d+)", lambda found: f"{found[1]}:{_proxy(int(found[2])).port}", url)


_proxies: dict[int, Proxy] = {}


def _proxy(port: int) -> Proxy:
    if port not in _proxies:
        _proxies[port] = Proxy((ports.HOST, port))
        _proxies[port].add(Latency(_HOP))
    return _proxies[port]


def _close_proxies() -> None:
    while _proxies:
        with suppress(ExceptionGroup):  # of broken connections: each test has judged its own
            _proxies.popitem()[1].close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = set(_absent(config))
    if left_out := {item for item in items if _store(item) in absent}:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _store(item: pytest.Item) -> str | None:
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    subject = params["world"][0] if "world" in params else params.get("seats")
    return subject.name if isinstance(subject, Subject) else None


def pytest_configure(config: pytest.Config) -> None:
    if (absent := _absent(config)) and os.environ.get("DIBS_REQUIRE_SERVERS") == "1":
        raise pytest.UsageError(f"servers are not installed for {', '.join(absent)}; scripts/servers installs them")
    share(config)
    config.add_cleanup(_close_proxies)


def _absent(config: pytest.Config) -> list[str]:
    """The names of the stores of this run whose programs are missing."""
    wishes = [wish.partition("=lab.suite:") for wish in config.getoption("dibs_store")]
    programs_of = {name: GROUPS[_group(which)].program for name, _, which in wishes if which}
    return sorted(name for name, program in programs_of.items() if programs.missing(program))


def _group(which: str) -> str:
    """The servers of a store of this module."""
    return "redis" if which == "redisson" else which.removeprefix("far_").removesuffix("_session")
