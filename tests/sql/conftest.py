"""Servers once for each module, and a desk for each kind of connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import pytest

from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import require
from lab.servers.supervisor import Server
from sql.desks import Desk
from sql.openers import OPENERS

KINDS = [(server, kind) for server, kinds in OPENERS.items() for kind in kinds]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    require("mariadb", "postgresql")
    file = tmp_path_factory.mktemp("sql") / "own.db"
    sqlite3.connect(file).execute("PRAGMA journal_mode=WAL").connection.close()
    with Server(MariaDB()) as mariadb, Server(PostgreSQL()) as postgresql:
        found = {"sqlite": f"sqlite:///{file}", "mysql": mariadb.url(), "postgresql": postgresql.url()}
        yield found.__getitem__


@pytest.fixture(params=KINDS, ids=["-".join(kind) for kind in KINDS])
def desk(request: pytest.FixtureRequest, urls: Callable[[str], str]) -> Desk:
    return Desk(*request.param, urls(request.param[0]))
