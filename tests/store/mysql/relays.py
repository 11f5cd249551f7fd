"""A way to a server that greets as a proxy does: with a number of its own for the session."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

_CHUNK = 65_536


class Greeter:
    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lines: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._lines += [client, server]
                client.sendall(_with_another_number(server.recv(_CHUNK)))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _with_another_number(greeting: bytes) -> bytes:
    """Behind the version, which ends with a nought."""
    at = greeting.index(b"\x00", 5) + 1
    number = int.from_bytes(greeting[at : at + 4], "little") + 1_000_000
    return greeting[:at] + number.to_bytes(4, "little") + greeting[at + 4 :]


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while received := source.recv(_CHUNK):
            sink.sendall(received)
        sink.shutdown(socket.SHUT_WR)
