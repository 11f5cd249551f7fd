"""A SOCKS 5 server on loopback for all connections of a JVM, so that a test decides where they lead.

Proxies in the configuration would not do for ZooKeeper: a node tells the others its own election address, and one with
a higher number calls back there, past any proxy. There is one thread for each direction of a connection.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from lab.servers import ports

GRANTED = b"\5\0\0\1" + bytes(6)
REFUSED = b"\5\5\0\1" + bytes(6)


class Switchboard:
    def __init__(self, route: Callable[[int], int]) -> None:
        """`route` gives for the port that was asked for the one to connect to."""
        self._route = route
        self._listener = socket.create_server((ports.HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._calls: dict[threading.Thread, list[socket.socket]] = {}
        self._answering = threading.Thread(target=self._answer, daemon=True)
        self._answering.start()

    def options(self) -> list[str]:
        """For the command line of a JVM; loopback would be left out by default."""
        return [f"-DsocksProxyHost={ports.HOST}", f"-DsocksProxyPort={self.port}", "-DsocksNonProxyHosts="]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._answering.join()
        for call, ends in self._calls.items():
            _hang_up(*ends)
            call.join()

    def _answer(self) -> None:
        with self._listener as listener, contextlib.suppress(OSError):
            while True:
                caller, _ = listener.accept()
                ends = [caller]
                call = threading.Thread(target=self._carry, args=(ends,), daemon=True)
                self._calls[call] = ends
                call.start()

    def _carry(self, ends: list[socket.socket]) -> None:
        (caller,) = ends
        with caller, contextlib.suppress(OSError, EOFError):
            port = _asked_for(caller)
            try:
                called = self._connect(port)
            except ConnectionRefusedError:
                caller.sendall(REFUSED)
                return
            with called:
                ends.append(called)
                caller.sendall(GRANTED)
                back = threading.Thread(target=_pump, args=(called, caller), daemon=True)
                back.start()
                _pump(caller, called)
                back.join()

    def _connect(self, port: int) -> socket.socket:
        # A proxy accepts before it knows whether anybody does behind it. A follower that is refused tries again at
        # once; one that is accepted and dropped gives its leader up, who waits for it in vain.
        if not ports.listening(port):
            raise ConnectionRefusedError
        return socket.create_connection((ports.HOST, self._route(port)))


def _asked_for(caller: socket.socket) -> int:
    """The greeting, no login, then the port of the one connection that it asks for."""
    _version, methods = _exactly(caller, 2)
    _exactly(caller, methods)
    caller.sendall(b"\5\0")
    _version, _command, _reserved, kind = _exactly(caller, 4)
    _exactly(caller, 4 if kind == 1 else _exactly(caller, 1)[0])
    return int(struct.unpack("!H", _exactly(caller, 2))[0])


def _exactly(line: socket.socket, count: int) -> bytes:
    received = line.recv(count, socket.MSG_WAITALL)
    if len(received) < count:
        raise EOFError
    return received


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _hang_up(source, sink)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
