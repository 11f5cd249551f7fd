"""One server that keeps what it acknowledged, and what can happen to it; its own ways are in redis_lone.py and
sql_lone.py.

with lone(Redis(persist="always"), redis_lone) as server:
    server.kill(); server.stop()         # until mend()
    server.end_connections("normal")     # how many it ended; "waiting": those by which clients are told
    server.left()                        # what still stands in lines
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol

from lab.servers.programs import Refused, Silent
from lab.servers.supervisor import Kind, Server


class Ways(Protocol):
    """Of one kind of server: a module with these functions."""

    def end_connections(self, server: Server, kind: str) -> int: ...

    def left(self, server: Server) -> list[str]: ...

    def version(self, server: Server) -> str: ...


class Lone:
    def __init__(self, server: Server, ways: Ways) -> None:
        self._server = server
        self._ways = ways
        self._harmed = False

    @property
    def url(self) -> str:
        return self._server.url()

    def ask(self, *words: str) -> str:
        return self._server.ask(*words)

    def kill(self) -> None:
        self._harmed = True
        self._server.kill()

    def stop(self) -> None:
        self._harmed = True
        self._server.stop()

    def mend(self) -> None:
        if self._server.running():
            self._server.resume()
        else:
            self._server.begin()
        self._harmed = False

    def whole(self) -> bool:
        """Nothing is done to it, and it serves."""
        with contextlib.suppress(Refused, Silent):
            return not self._harmed and self._server.kind.ready()
        return False

    def end_connections(self, kind: str) -> int:
        return self._ways.end_connections(self._server, kind)

    def left(self) -> list[str]:
        return self._ways.left(self._server)

    def version(self) -> str:
        return self._ways.version(self._server)


@contextlib.contextmanager
def lone(kind: Kind, ways: Ways) -> Iterator[Lone]:
    with Server(kind) as server:
        yield Lone(server, ways)
