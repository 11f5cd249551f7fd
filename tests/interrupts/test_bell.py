"""An interrupt anywhere in the waiting for a connection costs that one wait: the next one hears what is to be heard.
One anywhere in its end costs nothing: whoever ends it next closes its socket."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from dibs.backends.zookeeper.wire.exchange import Bell, Exchange
from dibs.backends.zookeeper.wire.session import Connection, Session
from dibs.backends.zookeeper.wire.transport import Transport
from dibs.runtime.threads import ThreadRuntime
from interrupts.lines import CHECKS, LINES, Interrupt, Point

HOST = "127.0.0.1"
PATIENCE = 5.0
MOST_POINTS = 200
MODES = pytest.mark.parametrize("mode", [CHECKS, pytest.param(LINES, marks=pytest.mark.soak)])


class Garbage:
    """Closes its bell once it is collected."""

    def __init__(self) -> None:
        self.bell, self.itself = Bell(), self

    def __del__(self) -> None:
        self.bell.close()


class Line:
    """A connection, seen from both of its ends."""

    def __init__(self, listener: socket.socket, stack: ExitStack) -> None:
        self.link = Transport(HOST, listener.getsockname()[1], None, PATIENCE)
        stack.callback(self.link.close)
        self.peer = stack.enter_context(listener.accept()[0])

    def is_heard(self, bell: Bell) -> bool:
        self.peer.sendall(b"!")
        return any(bell.wait(self.link, PATIENCE) for _ in range(3)) and self.link.read() == b"!"

    def fill(self) -> None:
        """More than the other side takes: something is still to be sent."""
        while not self.link.stuck:
            self.link.send(bytes(1 << 16))

    def has_room(self, bell: Bell) -> bool:
        """The other side takes what there is, and the bell tells of it."""
        self.peer.settimeout(0.05)
        with suppress(TimeoutError):
            while self.peer.recv(1 << 20):
                """More."""
        return bell.wait(self.link, PATIENCE)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as made:
        yield made


@MODES
@pytest.mark.parametrize("change", ["to another", "to none", "stuck"])
def test_an_interrupted_wait(listener: socket.socket, change: str, mode: str) -> None:
    """While the bell turns from one connection to another, to none, or begins to wait for room to send."""
    points: list[Point] = []
    for n in count(1):
        assert n < MOST_POINTS
        with ExitStack() as stack:
            bell = Bell()
            stack.callback(bell.close)
            first, second = Line(listener, stack), Line(listener, stack)
            assert first.is_heard(bell)
            if change == "stuck":
                first.fill()
            with Interrupt(n, mode) as interrupt:
                bell.wait({"to another": second.link, "to none": None, "stuck": first.link}[change], 0)
            if interrupt.point is None:
                break
            points.append(interrupt.point)
            if change == "stuck":
                assert first.has_room(bell), f"it waits for room no more after an interrupt at {interrupt.point}"
            for line in (second, first):
                assert line.is_heard(bell), f"deaf after an interrupt at {interrupt.point}"
    assert points, "the tracing sees nothing"


@MODES
def test_an_interrupted_end(listener: socket.socket, mode: str) -> None:
    points: list[Point] = []
    for n in count(1):
        assert n < MOST_POINTS
        with ExitStack() as stack:
            runtime, line = ThreadRuntime(), Line(listener, stack)
            stream = Exchange(runtime, runtime.inbox(), lambda: None)
            stack.callback(stream.close)
            stream.begin(line.link, Connection(Session(PATIENCE), runtime.now()))
            with Interrupt(n, mode) as interrupt:
                stream.break_("enough")
            if interrupt.point is None:
                break
            points.append(interrupt.point)
            stream.break_("enough")
            assert line.link.fileno() < 0, f"left open after an interrupt at {interrupt.point}"
    assert points, "the tracing sees nothing"


def test_what_others_left_is_not_collected_meanwhile() -> None:
    """An interrupt in a finaliser is dropped by Python."""
    gc.collect()
    Garbage()
    with Interrupt(1) as interrupt:
        assert [[] for _ in range(10_000)], "more than start a collection"
    assert interrupt.point is None
