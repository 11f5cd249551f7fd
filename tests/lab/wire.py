"""A TCP server that remembers everything, a fault proxy before it that knows lines, and clients."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Self

from lab import splitters
from lab.proxy import Proxy
from process.children import PATIENCE, until

Answer = Callable[[bytes], bytes]


def echo(text: bytes) -> bytes:
    return text


def nothing(text: bytes) -> bytes:
    return b""


class Peer:
    """The server's end of one connection."""

    def __init__(self, connection: socket.socket, answer: Answer) -> None:
        self.received = b""
        self.fate = "open"
        """Then: eof, reset."""
        self._connection = connection
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, text: bytes) -> None:
        self._connection.sendall(text)

    def await_received(self, text: bytes) -> None:
        until(lambda: self.received == text, what=f"{text!r} at the server, which has {self.received[:200]!r}")

    def await_fate(self, fate: str) -> None:
        until(lambda: self.fate != "open", what="an end at the server")
        assert self.fate == fate

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._connection.close()

    def _serve(self) -> None:
        try:
            while chunk := self._connection.recv(1 << 16):
                self.received += chunk
                if answer := self._answer(chunk):
                    self._connection.sendall(answer)
        except OSError:
            self.fate = "reset"
        else:
            self.fate = "eof"
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)


class Server:
    """Listens on a free port; all its connections, in order."""

    def __init__(self, answer: Answer = echo) -> None:
        self.peers: list[Peer] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def peer(self, number: int = 0) -> Peer:
        until(lambda: len(self.peers) > number, what="a connection at the server")
        return self.peers[number]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._socket.close()
        for peer in self.peers:
            peer.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.peers.append(Peer(self._socket.accept()[0], self._answer))
                self.peers[-1].start()


class Client:
    """The other end."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)

    def send(self, text: bytes) -> None:
        self.socket.sendall(text)

    def receive(self, size: int) -> bytes:
        """So many bytes, or what comes before the end."""
        text = b""
        while len(text) < size and (chunk := self.socket.recv(size - len(text))):
            text += chunk
        return text

    def ask(self, text: bytes) -> bytes:
        """As many bytes back."""
        self.send(text)
        return self.receive(len(text))

    def hears(self, within: float = 0.05) -> bool:
        """Did anything come, data or an end?"""
        self.socket.settimeout(within)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)
        return True

    def fate(self) -> str:
        """How it ends."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            return "reset"
        return "eof"

    def close(self) -> None:
        self.socket.close()

    def slam(self) -> None:
        """Close by RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wire:
    """All of one test; they end with its stack."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.server = stack.enter_context(Server(echo))
        self.proxy = self.another()

    def another(self, seed: object = 0) -> Proxy:
        return self._stack.enter_context(Proxy(self.server.address, splitter=splitters.lines, seed=seed))

    def client(self, proxy: Proxy | None = None) -> Client:
        return self._stack.enter_context(Client((proxy or self.proxy).port))

    def newcomer_is_reset(self) -> bool:
        """While it connects, or just after."""
        try:
            return self.client().fate() == "reset"
        except ConnectionResetError:
            return True

    def silence(self) -> None:
        """To connections from now on the server only listens."""
        self.server._answer = nothing
