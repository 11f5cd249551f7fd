"""The published suite on servers, which all workers of a run share: a pytest plugin.

    PYTHONPATH=tests pytest -p lab.suite --pyargs dibs.testing.contract --dibs-store zookeeper=lab.suite:zookeeper

Each test has a store of its own on them: a chroot, a prefix, a schema. Where the programs of one are missing nothing is
collected, or, with DIBS_REQUIRE_SERVERS=1, the run fails. `--variant NAME` runs only the part of the suite on this
store that differs most from store to store, `DIFFERS`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dibs.testing.contract.stores import Subject
from lab.servers import programs, redis_groups
from lab.servers.groups import GROUPS
from lab.servers.postgresql import NAME
from lab.servers.shared import (
    fresh,
    fresh_mariadb,
    fresh_postgresql,
    fresh_redis,
    hosts,
    in_schema,
    share,
    unique,
)

zookeeper, redis, postgresql = fresh, fresh_redis, fresh_postgresql
DIFFERS = frozenset(
    f"test_{part}"
    for part in (
        "cells_seam", "doctor", "life", "looking", "lost_answers", "seam", "seam_wake", "sessions", "time", "votes",
        "waiting",
    )
)  # fmt: skip
"""The modules of the suite about queues and cells as stores keep them; the others are about what is built on these."""


def three(_: Path) -> str:
    """On an ensemble, all of whose servers are named."""
    return f"zookeeper://{hosts('three')}/{unique()}"


def sentinel(_: Path) -> str:
    return f"redis+sentinel://{hosts('sentinel')}/{redis_groups.MAIN}?prefix={unique()}:"


def cluster(_: Path) -> str:
    return f"redis+cluster://{hosts('cluster')}?prefix={unique()}:"


def five(_: Path) -> str:
    """A quorum."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--variant", action="append", default=[], metavar="NAME", help="a store on which only a part of the suite runs"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    variants = set(config.getoption("variant"))
    left_out = [item for item in items if _store(item) in variants and item.path.stem not in DIFFERS]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _store(item: pytest.Item) -> str | None:
    """The name of the store under test."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    subject = params["world"][0] if "world" in params else params.get("seats")
    return subject.name if isinstance(subject, Subject) else None


def pytest_configure(config: pytest.Config) -> None:
    if (absent := _absent(config)) and os.environ.get("DIBS_REQUIRE_SERVERS") == "1":
        raise pytest.UsageError(f"not installed: {', '.join(absent)}; scripts/servers installs them")
    share(config)


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return True if _absent(config) else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No tests are no failure where the servers are missing."""
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and _absent(session.config):
        session.exitstatus = pytest.ExitCode.OK


def _absent(config: pytest.Config) -> list[str]:
    """The missing programs of the stores that this run wants."""
    words = [wish.rpartition(":")[2] for wish in config.getoption("dibs_store") if "lab.suite:" in wish]
    wanted = {GROUPS[word.removesuffix("_session")].program for word in words}
    return sorted({part for program in wanted for part in programs.missing(program)})
