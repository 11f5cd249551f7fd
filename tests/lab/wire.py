"""An echo server that keeps all it received, a fault proxy before it that splits lines, and clients."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import ExitStack, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer

from lab import splitters
from lab.proxy import Proxy
from process.children import PATIENCE, until


class Peer(BaseRequestHandler):
    server: Server
    request: socket.socket

    def setup(self) -> None:
        self.received = b""
        self.fate = "open"
        """Then: eof, reset."""
        self.server.peers.append(self)

    def handle(self) -> None:
        try:
            while chunk := self.request.recv(1 << 16):
                self.received += chunk
                self.request.sendall(chunk)
        except OSError:
            self.fate = "reset"
        else:
            self.fate = "eof"

    def await_received(self, text: bytes) -> None:
        until(lambda: self.received == text, what=f"{text!r} at the server, which has {self.received[:200]!r}")

    def await_fate(self, fate: str) -> None:
        until(lambda: self.fate != "open", what="an end at the server")
        assert self.fate == fate


class Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Peer)
        self.peers: list[Peer] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def peer(self, number: int = 0) -> Peer:
        until(lambda: len(self.peers) > number, what="a connection at the server")
        return self.peers[number]

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        for peer in self.peers:
            with suppress(OSError):
                peer.request.shutdown(socket.SHUT_RDWR)


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.send, self.close = self.socket.sendall, self.socket.close

    def receive(self, size: int) -> bytes:
        """So many bytes, or what comes before the end."""
        text = b""
        while len(text) < size and (chunk := self.socket.recv(size - len(text))):
            text += chunk
        return text

    def ask(self, text: bytes) -> bytes:
        self.send(text)
        return self.receive(len(text))

    def hears(self, within: float = 0.05) -> bool:
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
        try:
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            return "reset"
        return "eof"

    def slam(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class Wire:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.server = stack.enter_context(Server())
        self.proxy = stack.enter_context(Proxy(self.server.server_address[:2], splitter=splitters.lines))

    def client(self) -> Client:
        client = Client(self.proxy.port)
        self._stack.callback(client.close)
        return client
