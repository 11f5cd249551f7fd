"""A writer becomes a reader by another node. What is said of the old one meanwhile is no loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lab.curator import PATIENCE
from lab.proxy import DOWN, Proxy
from lab.servers import programs
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from store.zookeeper.sharing.sides import FACES, python

ROUNDS = 8
"""Who reads the answers, and how many at once, differs from round to round."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    programs.require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


@pytest.mark.parametrize("face", FACES)
def test_the_own_node_is_asked_for_while_it_is_exchanged(server: Server, face: str) -> None:
    """The watch of a hold of 100 ms goes out behind the exchange, and finds the old node gone."""
    with (
        Proxy(("127.0.0.1", server.port)) as proxy,
        python(face, f"zookeeper://127.0.0.1:{proxy.port}") as side,
    ):
        client = side.client()
        for number in range(ROUNDS):
            hold = side.take(client.rwlock(f"{face}-{number}").write)
            answers = proxy.hold(DOWN)
            changes = side.begin(hold.downgrade)
            answers.await_held()
            asked = proxy.links[-1].up.passed
            before = asked.messages
            with contextlib.suppress(AssertionError):  # a slow machine sent it before: this round shows nothing
                proxy.wait_for(lambda asked=asked, before=before: asked.messages > before, within=0.3)
            answers.deliver()
            changes.result(PATIENCE)
            hold.check()
            assert not hold.lost.is_set()
            side.do(hold.release)
