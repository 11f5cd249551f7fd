"""What the tests of the Redis store are given: a place of their own on the server that this process shares, or, to do
harm to, a server of their module's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from lab import splitters
from lab.proxy import Proxy
from lab.servers import ports, shared_redis
from lab.servers.programs import require
from lab.servers.redis import Redis
from lab.servers.supervisor import Server
from store.redis.hashes import Raw


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("redis")
    with Server(Redis()) as made:
        yield made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy((ports.HOST, server.port), splitter=splitters.resp) as made:
        yield made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_redis.fresh(tmp_path)


@pytest.fixture
def raw(url: str) -> Iterator[Raw]:
    """The same place, past dibs."""
    with closing(redis.Redis(port=shared_redis.redis().port, protocol=2)) as client:
        yield Raw(client, url.partition("prefix=")[2])
