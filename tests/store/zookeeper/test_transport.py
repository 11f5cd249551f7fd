"""A socket that never blocks: data that the peer does not read is kept, and sent later in order."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count

import pytest

from dibs.backends.zookeeper.wire.exchange import Bell
from dibs.backends.zookeeper.wire.transport import Transport, said
from dibs.errors import StoreUnavailable
from process.children import PATIENCE, until

SMALL = 4096
"""Bytes that the kernel buffers at each end, roughly."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        listener.settimeout(PATIENCE)
        yield listener


@pytest.fixture
def ends(listener: socket.socket) -> Iterator[tuple[Transport, socket.socket]]:
    """A link, and the other end of it."""
    with closing(Transport(*listener.getsockname(), None, PATIENCE)) as transport:
        transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        other, _ = listener.accept()
        with other:
            other.settimeout(PATIENCE)
            yield transport, other


def sent_until_stuck(transport: Transport) -> bytes:
    said = b""
    for number in count():
        message = struct.pack("!i", number) * 1000
        transport.send(message)
        said += message
        if transport.stuck:
            return said
    raise AssertionError


def drained(other: socket.socket, size: int, meanwhile: Callable[[], object]) -> bytes:
    """Read so many bytes, a little at a time."""
    found = b""
    while len(found) < size:
        chunk = other.recv(min(1000, size - len(found)))
        assert chunk, "it hung up"
        found += chunk
        meanwhile()
    return found


def test_data_that_is_not_read_goes_out_later_in_order(ends: tuple[Transport, socket.socket]) -> None:
    transport, other = ends
    wanted = sent_until_stuck(transport)
    for message in (b"first of the rest", b"second", b"third" * 5000):
        transport.send(message)
        wanted += message
    for _ in range(100):
        transport.flush()
    assert transport.stuck
    assert drained(other, len(wanted), transport.flush) == wanted
    transport.flush()
    assert not transport.stuck
    other.setblocking(False)
    with pytest.raises(BlockingIOError):  # nothing is said twice
        other.recv(1)


def test_a_waiter_is_woken_when_there_is_room_again(ends: tuple[Transport, socket.socket]) -> None:
    """And not before: that would be a loop at full speed."""
    transport, other = ends
    with closing(Bell()) as bell:
        assert not bell.wait(transport, 0.0)
        assert not transport.ready(0.0)
        wanted = sent_until_stuck(transport)
        assert not bell.wait(transport, 0.05)
        assert not transport.ready(0.05)
        reading = threading.Thread(target=drained, args=(other, len(wanted), lambda: None), daemon=True)
        reading.start()
        while transport.stuck:
            assert bell.wait(transport, PATIENCE)
            transport.flush()
        reading.join(PATIENCE)


def test_a_bell_that_rang_often_is_heard_once(ends: tuple[Transport, socket.socket]) -> None:
    transport, other = ends
    with closing(Bell()) as bell:
        for _ in range(3):
            bell.ring()
        assert not bell.wait(transport, 3600.0)
        assert not bell.wait(transport, 0.02)
        other.sendall(b"!")
        assert bell.wait(transport, PATIENCE)
        assert not bell.wait(None, 0.0)


def test_a_bell_watches_the_connection_that_replaced_another(listener: socket.socket) -> None:
    """Also if it has the file descriptor of the closed one; both had data left to send."""
    numbers: list[int] = []
    with closing(Bell()) as bell:
        while len(set(numbers)) == len(numbers):  # another thread may have taken the number
            assert len(numbers) < 50, "no number came again"
            with (
                closing(Transport(*listener.getsockname(), None, PATIENCE)) as transport,
                listener.accept()[0] as other,
            ):
                numbers.append(transport.fileno())
                transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
                wanted = sent_until_stuck(transport)
                assert not bell.wait(transport, 0.0)
                reading = threading.Thread(target=drained, args=(other, len(wanted) // 2, int), daemon=True)
                reading.start()
                assert bell.wait(transport, PATIENCE), "there is room again"
                reading.join(PATIENCE)
                transport.out.clear()
                assert not bell.wait(transport, 0.0)
                other.sendall(b"!")
                assert bell.wait(transport, PATIENCE)
                sent_until_stuck(transport)
                transport.read()
                bell.wait(transport, 0.0)
            assert not bell.wait(None, 0.0)


def test_the_end_of_a_connection_is_an_error(ends: tuple[Transport, socket.socket]) -> None:
    transport, other = ends
    assert transport.take_in(b"\x00a\xff") == b"\x00a\xff", "unchanged without TLS"
    transport.put(b"\x00b")
    transport.send(b"c\xff")
    assert drained(other, 4, lambda: None) == b"\x00bc\xff"
    assert transport.read() == b""
    other.sendall(b"last")
    other.shutdown(socket.SHUT_WR)
    assert transport.ready(PATIENCE)
    assert transport.read() == b"last"
    until(lambda: transport.ready(0.1))
    with pytest.raises(StoreUnavailable, match="the server closed the connection"):
        transport.read()


def test_sending_to_a_closed_peer_fails_each_time(ends: tuple[Transport, socket.socket]) -> None:
    transport, other = ends
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    until(lambda: transport.ready(0.1))
    with pytest.raises(StoreUnavailable, match=r"reset|Broken pipe"):
        transport.send(b"x")
    with pytest.raises(StoreUnavailable):
        transport.send(b"x")


def test_words_for_what_went_wrong() -> None:
    assert said(TimeoutError("timed out")) == "no answer in time"
    assert said(ConnectionRefusedError(111, "Connection refused")) == "Connection refused"
    assert said(OSError()) == "OSError"


def test_a_bell_that_is_full_or_closed_raises_nothing() -> None:
    """Another thread may close the client just as this one rings."""
    bell = Bell()
    for _ in range(2_000):
        bell.ring()
    bell.close()
    assert not bell.wait(None, PATIENCE)
    bell.ring()


def test_a_connection_that_is_closed_under_a_waiter_raises_nothing(ends: tuple[Transport, socket.socket]) -> None:
    transport, other = ends
    other.sendall(b"!")
    with closing(Bell()) as bell:
        transport.close()
        assert not transport.ready(PATIENCE)
        bell.ring()
        assert not bell.wait(transport, PATIENCE)
