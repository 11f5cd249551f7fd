"""One Java process for all tests in this directory, which go to one worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from lab.redisson import PATIENCE, Redisson
from lab.servers import ports, programs, shared_redis
from lab.servers.shared import unique
from lab.servers.supervisor import Server
from store.redis.redisson.peers import Raw
from store.sides import APIS, Python, python

HERE = Path(__file__).parent


FIRST_TIER = {"test_each_waits_for_the_other[lock-blocking]", "test_each_waits_for_the_other[fair-blocking]"}
"""The tests with Java that do not wait for the gate."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "java" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("redisson"))
            item.add_marker(pytest.mark.slow)
            if item.name not in FIRST_TIER:
                item.add_marker(pytest.mark.gate)
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(600), append=False)  # the first one may wait for Maven


@pytest.fixture(scope="session")
def prefix() -> str:
    """A NameMapper of Java and the option of Python put it before every name."""
    programs.require("redis")
    return f"{unique()}:"


@pytest.fixture(scope="session")
def java(prefix: str) -> Iterator[Redisson]:
    programs.require("redisson")
    with Redisson(f"{ports.HOST}:{shared_redis.redis().port}", prefix=prefix, watchdog=30.0, timeout=PATIENCE) as java:
        yield java


@pytest.fixture
def url(prefix: str) -> str:
    return f"{shared_redis.redis().url()}?layout=redisson&prefix={prefix}"


@pytest.fixture(params=APIS)
def side(url: str, request: pytest.FixtureRequest) -> Iterator[Python]:
    with python(request.param, url) as side:
        yield side


@pytest.fixture
def raw(prefix: str) -> Iterator[Raw]:
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, prefix)


@pytest.fixture
def apart() -> Iterator[Raw]:
    """A prefix of this test alone."""
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, f"{unique()}:")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of this test alone: the server is shared."""
    return request.node.name.replace("[", "-").strip("]")


@pytest.fixture
def own(server: Server) -> Iterator[Raw]:
    """The server of one module, which no other test uses."""
    with closing(redis.Redis(port=server.port, protocol=2)) as client:
        yield Raw(client, "")


@pytest.fixture(params=APIS)
def here(server: Server, request: pytest.FixtureRequest) -> Iterator[Python]:
    with python(request.param, f"{server.url()}?layout=redisson") as side:
        yield side
