"""A reader of messages sleeps on this: its sockets, and a way for another thread to end the sleep. Also the one place
that asks the kernel about a single socket."""

from __future__ import annotations

import select
import selectors
import socket
from contextlib import suppress
from typing import Any

_CHUNK = 4096
READ, WRITE = getattr(select, "POLLIN", 1), getattr(select, "POLLOUT", 4)


class SelectPoll:
    """As `select.poll()`, where that is missing (Windows)."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: int | socket.socket, events: int) -> None:
        self._events[fd if isinstance(fd, int) else fd.fileno()] = events

    modify = register

    def unregister(self, fd: int) -> None:
        del self._events[fd]

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        reading = [fd for fd, events in self._events.items() if events & READ]
        writing = [fd for fd, events in self._events.items() if events & WRITE]
        try:
            readable, writable, broken = select.select(reading, writing, reading, milliseconds / 1000)
        except OSError:  # one was closed meanwhile: as poll says, there is something to be seen
            return [(fd, READ) for fd in self._events]
        return [(fd, READ) for fd in {*readable, *broken}] + [(fd, WRITE) for fd in writable]


def new_poll() -> Any:
    return select.poll() if hasattr(select, "poll") else SelectPoll()


class Readiness:
    """Whether one socket can be read or written."""

    __slots__ = ("_both", "readable")

    def __init__(self, fd: int) -> None:
        self.readable, self._both = new_poll(), new_poll()
        """`readable.poll(milliseconds)`: as `wait`, without a call in between."""
        self.readable.register(fd, READ)
        self._both.register(fd, READ | WRITE)

    def wait(self, seconds: float, *, writable: bool = False) -> bool:
        """Until something can be read, or also written; False: not within that time."""
        return bool((self._both if writable else self.readable).poll(max(seconds, 0.0) * 1000))


class Wakeup:
    """The parts of a source of messages (core/runtime.py) that are the same for every protocol."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._poker = socket.socketpair()
        self._is_woken = False
        self._woken.setblocking(False)
        self._poker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poke(self) -> None:
        with suppress(OSError):  # full of pokes, or closed
            self._poker.send(b"!")
        self._is_woken = True  # not before: a reader in between would leave the byte there for ever

    def sleep(self, patience: float) -> list[int]:
        """The sockets that can be read then."""
        return [key.fd for key, _ in self._selector.select(patience)]

    def readable(self) -> list[int]:
        """The sockets that can be read now."""
        return self.sleep(0)

    def settle(self) -> None:
        """The reader is awake: remove what woke it."""
        if self._is_woken:
            self._is_woken = False
            with suppress(OSError):
                while self._woken.recv(_CHUNK):
                    pass

    def attend(self, there: int | socket.socket) -> None:
        """Wake also when that one can be read."""
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
        self._woken.close()
        self._poker.close()

    def __del__(self) -> None:
        """An interrupt may have struck before anybody had it."""
        if hasattr(self, "_poker"):
            self.close()
