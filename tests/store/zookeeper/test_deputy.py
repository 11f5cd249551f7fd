"""The heart may read what a caller that reads by hand was about to read: that one must hear of it at once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import dibs
from dibs.backends.zookeeper.wire.link import Bell
from dibs.backends.zookeeper.wire.stream import Stream
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


def test_an_answer_that_the_heart_read_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heart comes first each time, between the asking and the reading."""
    with dibs.connect(server.url()) as client:
        with client.lock("a", timeout=10):
            """Connected."""
        stream: Stream = client._core.store._opened.wire._stream
        wait, stolen = Bell.wait, []

        def slow(bell: Bell, link: object, patience: float) -> bool:
            link_there = stream._link
            if bell is stream.bell and link_there is not None and link_there.ready(1.0):
                stream._read_at = 0.0
                stolen.append(stream.read_for_the_leader(client._core.now()))
                stream._deputy = False
            return wait(bell, link_there, patience)

        monkeypatch.setattr(Bell, "wait", slow)
        begun = time.monotonic()
        lock = client.lock("a", timeout=10)
        for _ in range(5):
            with lock:
                """Ten answers, none of which the caller reads itself."""
        took = time.monotonic() - begun
        monkeypatch.undo()
    assert any(stolen)
    assert took < 5, "each answer was waited for until the reader looked at the clock"
