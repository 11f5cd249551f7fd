"""Fixtures: a prefix on the shared server, or, for faults, a server of the module's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.clock import Clock
from lab.servers import shared_mariadb
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from store.clocks import readable
from store.mysql.rows import Raw


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("mariadb")
    with Server(MariaDB()) as made:
        yield made


@pytest.fixture
def hands() -> Iterator[Clock]:
    require("mariadb")
    with readable() as made:
        yield made


@pytest.fixture
def stepped(hands: Clock) -> Iterator[Server]:
    """A server whose clock those set."""
    with Server(MariaDB(), hands.env()) as made:
        yield made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_mariadb.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    """The same place, past dibs."""
    with closing(Raw(shared_mariadb.mariadb().port, url.partition("prefix=")[2])) as made:
        yield made
