"""The server of all tests here that do no harm to it, and a client of somebody else's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from lab.servers import ports, shared
from lab.servers.supervisor import Server


@pytest.fixture(scope="session")
def server() -> Server:
    return shared.zookeeper()


@pytest.fixture
def kazoo(server: Server) -> Iterator[KazooClient]:
    """No longer than a test: its threads draw random numbers, which hypothesis takes for the strategies' doing."""
    client = KazooClient(f"{ports.HOST}:{server.port}", timeout=20)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
