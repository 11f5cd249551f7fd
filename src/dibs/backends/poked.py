"""What an ear sleeps on: the sockets that it listens to, and a way for another thread to end the sleep.

The parts of a source of messages (core/runtime.py) that are the same whatever the server speaks.
"""

from __future__ import annotations

import selectors
import socket
from contextlib import suppress

_CHUNK = 4096


class Poked:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._poked, self._poker = socket.socketpair()
        self._is_poked = False
        self._poked.setblocking(False)
        self._poker.setblocking(False)
        self._selector.register(self._poked, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poke(self) -> None:
        with suppress(OSError):  # full of pokes, or closed
            self._poker.send(b"!")
        self._is_poked = True  # not before: who reads in between would leave the byte there for ever

    def sleep(self, patience: float) -> list[int]:
        """Where there is something to read then."""
        return [key.fd for key, _ in self._selector.select(patience)]

    def readable(self) -> list[int]:
        """Where there is something to read now."""
        return self.sleep(0)

    def settle(self) -> None:
        """Whoever reads has woken: what woke it need not do so again."""
        if self._is_poked:
            self._is_poked = False
            with suppress(OSError):
                while self._poked.recv(_CHUNK):
                    pass

    def attend(self, there: int | socket.socket) -> None:
        """Wake when there is something to read there, too."""
        try:
            self._selector.register(there, selectors.EVENT_READ)
        except KeyError:  # one that bore its number was closed, and nobody has said so yet
            self.ignore(there)
            self._selector.register(there, selectors.EVENT_READ)

    def ignore(self, there: int | socket.socket) -> None:
        with suppress(KeyError, ValueError, OSError):  # it is not attended to, or closed
            self._selector.unregister(there)

    def close(self) -> None:
        self._selector.close()
        self._poked.close()
        self._poker.close()

    def __del__(self) -> None:
        """An interrupt may have struck before anybody had it."""
        if hasattr(self, "_poker"):
            self.close()
