"""What is said in which order, and that it is said: the safety of a grant by event hangs by the first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

import dibs
import dibs.aio
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.session import Call, Connection
from dibs.backends.zookeeper.wire.stream import Stream
from lab.servers.programs import require
from lab.servers.supervisor import Server
from lab.servers.zookeeper import ZooKeeper
from process.children import until

GET_DATA = 4


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    require("zookeeper")
    with Server(ZooKeeper()) as server:
        yield server


def test_the_own_node_is_watched_before_the_one_ahead(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way round somebody could remove the own node in between, and the next event would be taken for a
    grant."""
    asked: list[bytes] = []
    send = Connection.send

    def noting(connection: Connection, calls: Sequence[Call]) -> bytes:
        asked.extend(call.request.body for call in calls if call.request.operation == GET_DATA)
        return send(connection, calls)

    with dibs.connect(server.url()) as holder, dibs.connect(server.url()) as waiter:
        hold = holder.lock("ordered").acquire()
        assert hold is not None
        monkeypatch.setattr(Connection, "send", noting)
        assert waiter.lock("ordered").acquire(timeout=0.05) is None
        monkeypatch.undo()
        hold.release()
    numbers = [body[-11:-1] for body in asked[:2]]
    assert numbers == [b"0000000001", b"0000000000"], "own, then ahead"


def test_what_a_closed_loop_was_to_send_goes_out_with_the_next(server: Server) -> None:
    """It was put together for a moment of that loop which never came."""
    forgotten: list[Callable[[], None]] = []
    planned: list[Callable[[], None]] = []

    def put_together(stream: Stream, plans: list[Callable[[], None]]) -> bool:
        """While another answer is awaited; else it would go out at once."""
        stream.send([Call(codec.sync("/")) for _ in range(200)])
        return stream.send([Call(codec.sync("/"))], soon=plans.append) and bool(plans)

    async def play() -> None:
        async with dibs.aio.connect(server.url()) as client:
            async with client.lock("a"):
                """Connected."""
            stream: Stream = client._core.store._opened.wire._stream
            until(lambda: put_together(stream, forgotten), what="a plan")
            until(lambda: put_together(stream, planned), what="another plan, as the first was forgotten")

    asyncio.run(play())
    assert len(forgotten) == 1
    assert planned
