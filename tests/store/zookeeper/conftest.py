"""The server of all tests here that do no harm to it, and a client of somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from lab.servers import ports, shared
from lab.servers.supervisor import Server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all who use that server, so that no other starts one."""
    here = Path(__file__).parent
    for item in items:
        if "server" in getattr(item, "fixturenames", ()) and item.path.is_relative_to(here):
            made = item._fixtureinfo.name2fixturedefs["server"][-1]  # type: ignore[attr-defined]
            if made.scope == "session":
                item.add_marker(pytest.mark.xdist_group("zookeeper"))


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
