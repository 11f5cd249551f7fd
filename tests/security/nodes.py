"""What anybody who may write there plants below a chroot of a ZooKeeper server, by kazoo alone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from dibs.url import parse

AHEAD = "0000000000"
"""The number of a node that was planted before anybody else's came."""


class Planter:
    """Nodes of one chroot; names are dibs' own, in the namespace that is everybody's default."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client

    def plant(self, name: str, node: str, data: bytes = b"") -> str:
        """A child of the queue's directory that no session ends; gives its path."""
        path = f"{directory(name)}/{node}"
        self.client.create(path, data, makepath=True)
        return path

    def claim(self, name: str = "a", word: str = "lock-", number: str = AHEAD, data: bytes = b"{}") -> str:
        """A claim of nobody's, called as ours are."""
        return self.plant(name, f"_c_{uuid.uuid4()}-{word}{number}", data)

    def children(self, name: str) -> list[str]:
        path = directory(name)
        return sorted(self.client.get_children(path)) if self.client.exists(path) else []

    def only_child(self, name: str) -> str:
        (child,) = self.children(name)
        return f"{directory(name)}/{child}"

    def stat(self, path: str) -> ZnodeStat:
        return self.client.get(path)[1]


def directory(name: str) -> str:
    return f"/dibs/{name}"


@contextmanager
def planter(url: str, *logins: str) -> Iterator[Planter]:
    """`logins`: as user:password."""
    there = parse(url)
    hosts = ",".join(f"{host}:{port}" for host, port in there.hosts)
    client = KazooClient(hosts, timeout=20, auth_data=[("digest", login) for login in logins])
    client.start()
    try:
        client.ensure_path(there.path)
        client.chroot = there.path
        yield Planter(client)
    finally:
        client.stop()
        client.close()
