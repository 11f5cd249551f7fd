"""One MariaDB that keeps on disk what it acknowledged, and what can happen to it: as redis_lone.py has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lab.servers.mariadb import NAME, MariaDB
from lab.servers.programs import Refused, Silent
from lab.servers.supervisor import Server


class LoneMariaDB:
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
        """Those that sleep, and those that listen, as what they run says ("pubsub"), or the others ("normal")."""
        others = f"FROM information_schema.processlist WHERE user = '{NAME}' AND id <> CONNECTION_ID()"
        listed = self._server.ask(f"SELECT id, IFNULL(info, '') {others}")
        rows = [line.partition("\t")[::2] for line in listed.splitlines()]
        chosen = [number for number, info in rows if ("SLEEP" in info) == (kind == "pubsub")]
        with contextlib.suppress(Refused):  # one has gone meanwhile: the others end all the same
            self._server.ask("--force", "; ".join(f"KILL CONNECTION {number}" for number in chosen))
        return len(chosen)

    def left(self) -> list[str]:
        """Claims that stand, though everybody has closed. What has expired is swept by the next one who asks."""
        return self._server.ask("SELECT CONCAT(name, ' ', ticket) FROM dibs_claims").splitlines()

    def version(self) -> str:
        return self._server.ask("SELECT VERSION()")


@contextlib.contextmanager
def lone_mariadb() -> Iterator[LoneMariaDB]:
    with Server(MariaDB()) as server:
        yield LoneMariaDB(server)
