"""What the tests of the MySQL store are given: a place of their own on the server that this process shares, or, to do
harm to, a server of their module's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dibs.testing.contract.seats import Seat
from lab import splitters
from lab.clock import Clock
from lab.proxy import Proxy
from lab.servers import ports, shared_mariadb
from lab.servers.mariadb import MariaDB
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.witness import fresh_name
from store.clocks import readable
from store.mysql.rows import Raw


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("mariadb")
    with Server(MariaDB()) as made:
        yield made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.mysql) as made:
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
def name() -> str:
    return fresh_name()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_mariadb.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    """The same place, past dibs."""
    with closing(Raw(shared_mariadb.mariadb().port, url.partition("prefix=")[2])) as made:
        yield made


@pytest.fixture
def seats(url: str) -> Iterator[Callable[[], Seat]]:
    """Makes seats at that place."""
    with ExitStack() as stack:

        def seat() -> Seat:
            made = Seat(url)
            stack.callback(made.close)
            return made

        yield seat


@pytest.fixture
def seat(seats: Callable[[], Seat]) -> Seat:
    return seats()
