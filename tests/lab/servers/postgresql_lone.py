"""One PostgreSQL that keeps on disk what it committed, and what can happen to it: as redis_lone.py.

with lone() as server:
    server.kill(); server.stop()         # until mend()
    server.end_connections("normal")     # how many it ended
    server.left()                        # what still stands in lines
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import Refused, Silent
from lab.servers.supervisor import Server

_STAND = "SELECT name FROM dibs.dibs_claims UNION ALL SELECT name FROM dibs.dibs_outsiders"
_TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'dibs'"


class Lone:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._harmed = False

    @property
    def url(self) -> str:
        return self._server.url()

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
        """Those that listen are not told from the others here."""
        return int(self._server.ask(_TERMINATE))

    def left(self) -> list[str]:
        return self._server.ask(_STAND).splitlines()

    def version(self) -> str:
        return self._server.ask("SHOW server_version").split()[0]


@contextlib.contextmanager
def lone() -> Iterator[Lone]:
    with Server(PostgreSQL("max_connections=300")) as server:
        yield Lone(server)
