"""Shared by the tests of the embedded store: URLs of awkward paths, a store that stands still, its rows."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import dibs
from process import children

PATIENCE = 60.0
until = children.until


def url_of(path: Path) -> str:
    return f"sqlite:///{quote(str(path))}"


def beside(path: Path) -> Path:
    """The private directory of a database."""
    return path.with_name(path.name + ".d")


def names_in(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return connection.execute(query).fetchall()


def held(client: dibs.Client, name: str = "a") -> dibs.Hold:
    hold = client.lock(name).acquire(timeout=PATIENCE)
    assert hold is not None
    return hold


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute(statement)
        connection.commit()


@contextmanager
def standstill(path: Path) -> Iterator[None]:
    """As a process that is stopped in its transaction."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def begin(action: Callable[[], Any]) -> Future[Any]:
    """In a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Stranger:
    """Sends datagrams to sockets of a directory, however long its path is."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        os.close(self._directory)

    def send(self, name: str, message: bytes) -> bool:
        """False: its buffer is full."""
        try:
            self._socket.sendto(message, f"/proc/self/fd/{self._directory}/{name}")
        except BlockingIOError:
            return False
        return True


class Taking(threading.Thread):
    """An acquire in a thread of its own."""

    def __init__(self, lock: dibs.Lock, timeout: float) -> None:
        super().__init__(daemon=True)
        self._lock, self._timeout = lock, timeout
        self.hold: dibs.Hold | None = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.hold = self._lock.acquire(timeout=self._timeout)
        except BaseException as error:
            self.error = error

    def got(self) -> dibs.Hold:
        self.join(PATIENCE)
        assert not self.is_alive()
        assert self.error is None, self.error
        assert self.hold is not None
        return self.hold
