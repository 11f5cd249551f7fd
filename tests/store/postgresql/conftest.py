"""Fixtures: a schema on the shared server, or, for faults, a server of the module's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.proxy import Proxy
from lab.servers import ports, shared_postgresql
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.postgresql.rows import Raw, opened


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("postgresql")
    with Server(PostgreSQL()) as made:
        yield made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port)) as made:
        yield made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_postgresql.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    """The same place, past dibs."""
    with opened(url) as made:
        yield made
