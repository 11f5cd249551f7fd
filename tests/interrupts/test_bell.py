"""An interrupt anywhere in a wait for a connection costs that one wait: the next one hears. One anywhere in the end of
a connection costs nothing: the next call closes its socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from dibs.backends.zookeeper.wire.exchange import Bell, Exchange
from dibs.backends.zookeeper.wire.session import Connection, Session
from dibs.backends.zookeeper.wire.transport import Transport
from dibs.runtime.threads import ThreadRuntime
from interrupts.points import Interrupt, Point

HOST = "127.0.0.1"
PATIENCE = 60.0
MOST_POINTS = 200


class Link:
    """A connection, seen from both of its ends."""

    def __init__(self, listener: socket.socket, stack: ExitStack) -> None:
        self.transport = Transport(HOST, listener.getsockname()[1], None, PATIENCE)
        stack.callback(self.transport.close)
        self.peer = stack.enter_context(listener.accept()[0])

    def is_heard(self, bell: Bell) -> bool:
        self.peer.sendall(b"!")
        return any(bell.wait(self.transport, PATIENCE) for _ in range(3)) and self.transport.read() == b"!"

    def fill(self) -> None:
        """More than the other side takes: something is still to be sent."""
        while not self.transport.stuck:
            self.transport.send(bytes(1 << 16))

    def has_room(self, bell: Bell) -> bool:
        """The other side takes what there is, and the bell tells of it."""
        self.peer.settimeout(0.05)
        with suppress(TimeoutError):
            while self.peer.recv(1 << 20):
                pass
        return bell.wait(self.transport, PATIENCE)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as made:
        yield made


@pytest.mark.parametrize("change", ["to another", "to none", "stuck"])
def test_an_interrupted_wait(listener: socket.socket, change: str) -> None:
    """While the bell turns from one connection to another, to none, or begins to wait for room to send."""
    points: list[Point] = []
    for n in count(1):
        assert n < MOST_POINTS
        with ExitStack() as stack:
            bell = Bell()
            stack.callback(bell.close)
            first, second = Link(listener, stack), Link(listener, stack)
            assert first.is_heard(bell)
            if change == "stuck":
                first.fill()
            with Interrupt(n) as interrupt:
                bell.wait({"to another": second.transport, "to none": None, "stuck": first.transport}[change], 0)
            if interrupt.point is None:
                break
            points.append(interrupt.point)
            if change == "stuck":
                assert first.has_room(bell), f"it waits for room no more after an interrupt at {interrupt.point}"
            for link in (second, first):
                assert link.is_heard(bell), f"deaf after an interrupt at {interrupt.point}"
    assert points, "the tracing sees nothing"


def test_an_interrupted_end(listener: socket.socket) -> None:
    points: list[Point] = []
    for n in count(1):
        assert n < MOST_POINTS
        with ExitStack() as stack:
            runtime, link = ThreadRuntime(), Link(listener, stack)
            stream = Exchange(runtime, runtime.inbox(), lambda: None)
            stack.callback(stream.close)
            stream.begin(link.transport, Connection(Session(PATIENCE), runtime.now()))
            with Interrupt(n) as interrupt:
                stream.break_("enough")
            if interrupt.point is None:
                break
            points.append(interrupt.point)
            stream.break_("enough")
            assert link.transport.fileno() < 0, f"left open after an interrupt at {interrupt.point}"
    assert points, "the tracing sees nothing"
