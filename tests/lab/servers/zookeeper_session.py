"""A ZooKeeper session of a few requests. It sends no pings by itself.

with Session(server.port) as session:
    session.create("/a", b"1")
    session.get("/a")
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Self

from lab.servers import programs
from lab.servers.zookeeper import connect

CREATE, GET, SYNC, PING, CLOSE, SASL = 1, 4, 9, 11, -11, 102
ALL_RIGHTS = 31
MARGIN = 0.9
"""How much of its time-out a careful client counts on."""


class Session:
    def __init__(self, port: int, timeout: float = 10.0) -> None:
        """Raises Refused or Silent, as every request does."""
        try:
            self._line = connect(port, None, timeout)
        except OSError as error:
            raise _told(error) from error
        try:
            greeting = struct.pack("!iqiq", 0, 0, int(timeout * 1000), 0)
            self._send(greeting + _buffer(bytes(16)) + b"\0")
            self._receive()
        except BaseException:
            self._line.close()
            raise

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        anyone = struct.pack("!ii", 1, ALL_RIGHTS) + _buffer(b"world") + _buffer(b"anyone")
        self._request(CREATE, _buffer(path.encode()) + _buffer(data) + anyone + struct.pack("!i", ephemeral))

    def get(self, path: str) -> bytes:
        self._request(SYNC, _buffer(path.encode()))
        return _first_buffer(self._request(GET, _buffer(path.encode()) + b"\0"))

    def ping(self) -> None:
        """Answered by the server itself, whatever the others think of it."""
        self._request(PING, b"")

    def close(self) -> None:
        try:
            self._request(CLOSE, b"")
        finally:
            self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        if raised is None:
            self.close()
        else:
            self._line.close()

    def _request(self, kind: int, body: bytes) -> bytes:
        self._send(struct.pack("!ii", 1, kind) + body)
        answer = self._receive()
        (error,) = struct.unpack_from("!i", answer, 12)
        if error:
            raise programs.Refused(f"ZooKeeper error {error}")
        return answer[16:]

    def _send(self, message: bytes) -> None:
        try:
            self._line.sendall(_buffer(message))
        except OSError as error:
            raise _told(error) from error

    def _receive(self) -> bytes:
        (length,) = struct.unpack("!i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            try:
                part = self._line.recv(count - len(received))
            except OSError as error:
                raise _told(error) from error
            if not part:
                raise programs.Refused("the server hung up")
            received += part
        return received


class Believer:
    """A session that takes every answered ping for a proof that it lives; what it made goes when it ends."""

    def __init__(self, port: int, timeout: float) -> None:
        self.session = Session(port, timeout=timeout)
        self.deadline = 0.0
        """Until when it thinks to live, with the margin of a careful one; CLOCK_BOOTTIME."""
        self._timeout = timeout
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ping, daemon=True)

    def _ping(self) -> None:
        with contextlib.suppress(programs.Refused, programs.Silent):
            while not self._over.wait(self._timeout / 20):
                sent = time.clock_gettime(time.CLOCK_BOOTTIME)
                self.session.ping()
                self.deadline = sent + MARGIN * self._timeout

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(programs.Refused, programs.Silent):
            self.session.close()


def _told(error: OSError) -> Exception:
    return programs.Silent(str(error)) if isinstance(error, socket.timeout) else programs.Refused(str(error))


def _buffer(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


def _first_buffer(data: bytes) -> bytes:
    (length,) = struct.unpack_from("!i", data)
    return data[4 : 4 + max(length, 0)]
