"""Waiting for sockets: `Wakeup` for a reader of messages, which other threads can wake; `Readiness` for one socket."""

from __future__ import annotations

import select
import selectors
import socket
from contextlib import suppress
from typing import Any

_CHUNK = 4096
READ, WRITE = getattr(select, "POLLIN", 1), getattr(select, "POLLOUT", 4)


class SelectPoll:
    """A replacement for `select.poll()` on Windows."""

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
        except OSError:  # one was closed meanwhile: report it, as poll does
            return [(fd, READ) for fd in self._events]
        return [(fd, READ) for fd in {*readable, *broken}] + [(fd, WRITE) for fd in writable]


def new_poll() -> Any:
    return select.poll() if hasattr(select, "poll") else SelectPoll()


class Readiness:
    """Whether one socket can be read or written."""

    __slots__ = ("_both", "readable")

    def __init__(self, fd: int) -> None:
        self.readable, self._both = new_poll(), new_poll()
        """`readable.poll(milliseconds)` is `wait` without a Python call."""
        self.readable.register(fd, READ)
        self._both.register(fd, READ | WRITE)

    def wait(self, seconds: float, *, writable: bool = False) -> bool:
        """Wait until the socket is readable, or also writable. False: not within that time."""
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
        with suppress(OSError):  # its buffer is full, or it was closed
            self._poker.send(b"!")
        self._is_woken = True  # not earlier: a reader in between would miss the byte

    def sleep(self, patience: float) -> list[int]:
        """Wait; gives the sockets that are readable."""
        return [key.fd for key, _ in self._selector.select(patience)]

    def readable(self) -> list[int]:
        """The sockets that are readable now."""
        return self.sleep(0)

    def clear(self) -> None:
        """Remove the bytes that woke the reader."""
        if self._is_woken:
            self._is_woken = False
            with suppress(OSError):
                while self._woken.recv(_CHUNK):
                    pass

    def attend(self, sock: int | socket.socket) -> None:
        """Wake also when this socket is readable."""
        try:
            self._selector.register(sock, selectors.EVENT_READ)
        except KeyError:  # an earlier socket with this number was closed without `ignore`
            self.ignore(sock)
            self._selector.register(sock, selectors.EVENT_READ)

    def ignore(self, sock: int | socket.socket) -> None:
        with suppress(KeyError, ValueError, OSError):  # it is not registered, or closed
            self._selector.unregister(sock)

    def close(self) -> None:
        self._selector.close()
        self._woken.close()
        self._poker.close()

    def __del__(self) -> None:
        """For an object that an interrupt dropped."""
        if hasattr(self, "_poker"):
            self.close()
