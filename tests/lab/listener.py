"""Listeners that misbehave, for clients that expect a server.

    with Listener("redis", hangs_up) as bad:
        dibs.connect(bad.url)           # bad.calls: the number of its connections

A *manner* handles one connection, in a thread of its own.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from process.children import PATIENCE

Manner = Callable[[socket.socket], None]
_HTTP = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Listener:
    def __init__(self, scheme: str, manner: Manner, context: ssl.SSLContext | None = None) -> None:
        self.calls = 0
        self._manner, self._context = manner, context
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{scheme}://{self.host}"
        self._lines: dict[threading.Thread, socket.socket] = {}
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()
        for thread, line in list(self._lines.items()):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._socket.accept()
                self.calls += 1
                thread = threading.Thread(target=self._talk, args=(line,), daemon=True)
                self._lines[thread] = line
                thread.start()

    def _talk(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is None:
                self._manner(line)
            else:
                with self._context.wrap_socket(line, server_side=True) as secured:
                    self._manner(secured)
        del self._lines[threading.current_thread()]


def hangs_up(line: socket.socket) -> None:
    """As soon as it was called."""


def is_mute(line: socket.socket) -> None:
    """It listens until the other side goes."""
    while line.recv(1 << 16):
        pass


def drips(first: bytes, each: bytes) -> Manner:
    """An answer that never ends, one of `each` after the other."""

    def manner(line: socket.socket) -> None:
        line.sendall(first)
        line.settimeout(0.02)
        while True:
            line.sendall(each)
            with suppress(TimeoutError):
                if not line.recv(1 << 16):
                    return

    return manner


def speaks_http(line: socket.socket) -> None:
    line.recv(1 << 16)
    line.sendall(_HTTP)
