"""Claims that an attacker with the user's rights writes into a store, past dibs, and what dibs must make of them.

A user who may write these could as well delete the claims of others. Still, nonsense must never become a grant, a crash
of another program, or a change of anything outside the store.
"""

# ruff: noqa: PT017  (an attempt may be refused or not; how it is refused is fixed)

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

import dibs
from dibs.url import parse

Connect = Callable[..., dibs.Client]
FOREVER = 1e12
HUGE = 2_000_000
AHEAD = "0000000000"
"""The number of a node of ZooKeeper that is ahead of all others."""
PATIENCE = 60.0


def attempts(client: dibs.Client) -> list[Callable[[], object]]:
    """Every use of the name "a"."""

    def enter() -> None:
        with client.lock("a", timeout=0.05):
            raise AssertionError("granted")

    return [
        lambda: client.lock("a").acquire(timeout=0),
        enter,
        lambda: client.lock("a", fair=False).acquire(timeout=0.05),
        lambda: client.inspect("a"),
        lambda: list(client.locks()),
        lambda: client.lock("a").locked(),
        lambda: client.lock("a").revoke(),
        lambda: client.break_("a", token=1),
    ]


def is_said_well(error: dibs.DibsError, url: str) -> bool:
    """The error names the lock or the store, steers no terminal and is not too long."""
    text = str(error)
    return ('"a"' in text or parse(url).shown in text) and text.isprintable() and len(text) < 20_000


def nothing_comes_of_it(client: dibs.Client, url: str) -> list[str]:
    """No attempt is granted. Returns the texts of the errors."""
    said = []
    for attempt in attempts(client):
        try:
            assert not isinstance(attempt(), dibs.Hold), "granted beside a holder"
        except dibs.DibsError as error:
            assert is_said_well(error, url), str(error)[:300]
            said.append(str(error))
    return said


def others_are_served(client: dibs.Client, other: dibs.Client) -> None:
    with client.lock("b", timeout=PATIENCE) as hold:
        assert other.lock("b").acquire(timeout=0) is None
        hold.check()
    with other.lock("b", timeout=PATIENCE):
        """Handed over."""


# SQLite: rows, written by the sqlite3 module.


def made(connect: Connect, path: Path) -> None:
    """Leave a database as a client leaves it."""
    client = connect(path)
    client.lock("first", timeout=PATIENCE).acquire().release()
    client.close()


def execute(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as connection, connection:
        connection.execute(statement, values)


def plant(path: Path, name: str = "a", **columns: Any) -> None:
    """A claim in the queue of `name`, with these columns changed."""
    row = {
        "name": f"dibs:{name}", "ticket": 5, "id": os.urandom(16), "client": os.urandom(16), "kind": "mutex",
        "capacity": 1, "weight": 1, "until": FOREVER, "asked": 0.0, "held": 0.0, "revoked": 0, "about": "{}",
    } | columns  # fmt: skip
    marks = ", ".join("?" * len(row))
    execute(path, f"INSERT INTO claims VALUES ({marks})", *row.values())


# ZooKeeper: nodes of one chroot, written by kazoo.


class Planter:
    def __init__(self, client: KazooClient) -> None:
        self.client = client

    def plant(self, name: str, node: str, data: bytes = b"") -> str:
        """A child of the queue's directory that no session ends. Returns its path."""
        path = f"{directory(name)}/{node}"
        self.client.create(path, data, makepath=True)
        return path

    def claim(self, number: str = AHEAD, data: bytes = b"{}", node: str = "") -> str:
        return self.plant("a", node or f"_c_{uuid.uuid4()}-lock-{number}", data)

    def children(self, name: str = "a") -> list[str]:
        path = directory(name)
        return sorted(self.client.get_children(path)) if self.client.exists(path) else []

    def only_child(self) -> str:
        (child,) = self.children()
        return f"{directory('a')}/{child}"

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
