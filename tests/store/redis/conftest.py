"""Fixtures for the Redis store: a prefix on the server that this process shares, or a server of the module's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from dibs.testing.contract.seats import Seat
from lab import splitters
from lab.proxy import Proxy
from lab.servers import certificates, ports, shared_redis
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.redis.hashes import Raw
from store.redis.kit import PatientSeat

HERE = Path(__file__).parent
ASYNC = {"aio", "asyncio"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first tier uses the sync API; most tests that run with both use the other one in the gate."""
    for item in items:
        variant = item.nodeid.partition("[")[2].rstrip("]").split("-")
        if item.path.is_relative_to(HERE) and ASYNC.intersection(variant) and not item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.gate)


@pytest.fixture
def seats(url: str) -> Iterator[Callable[[], Seat]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(PatientSeat(url)))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    with Server(Redis()) as made:
        yield made


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.resp) as made:
        yield made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_redis.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    """The same prefix, accessed directly."""
    with closing(redis.Redis.from_url(url.partition("?")[0], protocol=2)) as client:
        yield Raw(client, url.partition("prefix=")[2])
