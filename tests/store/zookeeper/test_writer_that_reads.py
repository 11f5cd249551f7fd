"""A writer that reads too, as Curator has it since 5.5: two nodes of one number, each with its own id, one claim."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from kazoo.client import KazooClient

import dibs
from lab.servers import ports
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


def test_it_is_one_holder_and_is_broken_as_one(server: Server) -> None:
    other = KazooClient(f"{ports.HOST}:{server.port}")
    with closing(other), dibs.connect(server.url(), namespace="") as client:
        other.start()
        try:
            writing = other.create(
                f"/rw/_c_{uuid.uuid4()}-__WRIT__", b"java", ephemeral=True, sequence=True, makepath=True
            )
            other.create(f"/rw/_c_{uuid.uuid4()}-__READ__{writing[-10:]}", b"java", ephemeral=True)
            info = client.inspect("/rw")
            (holder,) = info.holders
            assert (info.kind, info.waiters, holder.owner) == ("rw", (), "java")
            client.break_("/rw", token=holder.token)
            assert other.get_children("/rw") == [], "neither of its nodes stays"
            with client.rwlock("/rw").write.acquire(timeout=5) as hold:
                assert hold.token > holder.token
        finally:
            other.stop()
