"""The server that most tests here share, a fresh chroot on it, a client of another program, and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Request
from lab.servers import certificates, ports, shared
from lab.servers.certificates import Certificates
from lab.servers.programs import require
from lab.servers.supervisor import Server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all tests of that server, so that no other worker starts one."""
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
def url(server: Server, tmp_path: Path) -> str:
    return shared.fresh(tmp_path)


@pytest.fixture(scope="session")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    require("openssl")
    return certificates.make(tmp_path_factory.mktemp("pems"))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """All requests of this process, as they are encoded."""
    seen: list[Request] = []
    encode = codec.encode

    def noting(xid: int, request: Request) -> bytes:
        seen.append(request)
        return encode(xid, request)

    monkeypatch.setattr(codec, "encode", noting)
    return seen


@pytest.fixture
def kazoo(server: Server) -> Iterator[KazooClient]:
    """Not longer than a test: its threads draw random numbers, which would disturb hypothesis."""
    client = KazooClient(f"{ports.HOST}:{server.port}", timeout=20)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
