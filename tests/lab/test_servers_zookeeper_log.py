"""The counter of a directory, raised by hand: the server counts on from there, and what happens at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError

from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from lab.servers.zookeeper_log import last_zxid, raise_counter

MOST = 2**31 - 1


@pytest.fixture(autouse=True)
def _installed() -> None:
    require("zookeeper")


@contextmanager
def peer(server: Server) -> Iterator[KazooClient]:
    with closing(KazooClient(f"{ports.HOST}:{server.port}")) as client:
        client.start()
        try:
            yield client
        finally:
            client.stop()


def number(client: KazooClient, prefix: str = "x") -> int:
    """Of one more child."""
    path: str = client.create(f"/locks/a/{prefix}-", sequence=True)
    return int(path.rpartition("-")[2])


def test_the_server_counts_on_from_there() -> None:
    with Server(ZooKeeper()) as server:
        with peer(server) as client:
            client.create("/locks/a", b"kept", makepath=True)
            assert [number(client) for _ in range(3)] == [0, 1, 2]
        before = last_zxid(server.data)
        assert f"Zxid: {before:#x}" in server.ask("srvr").splitlines()
        raise_counter(server, "/locks/a", 2**30)
        assert last_zxid(server.data) == before + 2, "one child came and went"
        with peer(server) as client:
            assert client.get("/locks/a")[0] == b"kept"
            assert len(client.get_children("/locks/a")) == 3, "what was there is there, and nothing else"
            assert [number(client) for _ in range(2)] == [2**30, 2**30 + 1]
        server.restart()
        with peer(server) as client:
            assert number(client) == 2**30 + 2, "its own log and the one behind it are both read again"
            client.delete("/locks/a", recursive=True)
            client.create("/locks/a")
            assert number(client) == 0, "a directory made anew counts anew"


def test_a_counter_at_its_end_gives_the_last_number_to_everybody() -> None:
    """Why a lock must turn back long before: here order and uniqueness both end, and nobody is told."""
    with Server(ZooKeeper()) as server:
        with peer(server) as client:
            client.create("/locks/a", makepath=True)
        raise_counter(server, "/locks/a", MOST - 1)
        with peer(server) as client:
            assert [number(client, prefix) for prefix in "abcd"] == [MOST - 1, MOST, MOST, MOST]
            with pytest.raises(NodeExistsError):
                number(client, "d")
