"""Answers without an end (case 56), from what poses as a server of ZooKeeper: cut off before they fill the memory."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import tracemalloc
from pathlib import Path
from typing import Self

import pytest

import dibs
from lab.proxy import DOWN, Proxy
from lab.servers import ports, shared
from lab.splitters import zookeeper as frames
from security.nodes import directory, planter
from security.planted import is_said_well

TIMEOUT = 1.0
MOST = 80 << 20
"""Bytes that may be in use at any moment; what is announced is six times as much and more."""


def frame(body: bytes) -> bytes:
    return struct.pack("!i", len(body)) + body


GREETED = frame(struct.pack("!iiqi", 0, 10_000, 7, 16) + bytes(17))
FIRST = {
    "512 MB, announced": GREETED + struct.pack("!i", 512 << 20),
    "2 GB, announced": GREETED + struct.pack("!i", 2**31 - 1),
    "a length below nothing": GREETED + struct.pack("!i", -1),
    "a greeting of 512 MB": struct.pack("!i", 512 << 20),
    "another protocol": b"HTTP/1.1 200 OK\r\n\r\n",
    "16 MB, and then no more of it": GREETED + struct.pack("!i", 16 << 20),
}


class Endless(threading.Thread):
    """Says that to whoever says something, and then noughts for as long as anybody listens."""

    def __init__(self, first: bytes) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server((ports.HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._first = first
        self.sent = 0

    def run(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), line:
                line.settimeout(TIMEOUT)
                line.recv(65536)
                line.sendall(self._first)
                while True:
                    self.sent += line.send(bytes(1 << 16))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(10)


@pytest.mark.parametrize("case", FIRST)
def test_an_answer_without_an_end(case: str) -> None:
    with Endless(FIRST[case]) as endless, dibs.connect(f"zookeeper://{ports.HOST}:{endless.port}") as client:
        tracemalloc.start()
        try:
            with pytest.raises(dibs.StoreUnavailable) as caught:
                client.lock("a").acquire(timeout=TIMEOUT)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert endless.sent, "nobody listened"
    assert str(caught.value).isprintable()
    assert most < MOST


def test_a_true_answer_of_a_megabyte(tmp_path: Path) -> None:
    """Names that fill a directory, each of them a thousand characters long: an error, and the client works on."""
    url, path, names = shared.fresh(tmp_path), directory("a"), 1100
    port = shared.zookeeper().port
    with planter(url) as hostile, Proxy((ports.HOST, port), splitter=frames) as proxy:
        hostile.client.ensure_path(path)
        for created in [hostile.client.create_async(f"{path}/{'x' * 1000}{number:05}") for number in range(names)]:
            created.get(20)
        there = url.replace(f":{port}/", f":{proxy.port}/")
        with dibs.connect(there) as client:
            with pytest.raises(dibs.DibsError) as caught:
                client.lock("a").acquire(timeout=0)
            assert is_said_well(caught.value, there)
            with client.lock("b", timeout=5) as hold:
                hold.check()
        assert proxy.total(DOWN, "passed")[1] > names * 1000, "it was a large answer"
