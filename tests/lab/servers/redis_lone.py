"""One Redis that keeps on disk what it acknowledged, and what can happen to it.

with lone() as server:
    server.kill(); server.stop()         # until mend()
    server.end_connections("pubsub")     # how many it ended; "normal": those of commands
    server.forget_scripts()
    server.left(within=5)                # what still stands in lines
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from lab.servers.programs import Refused, Silent
from lab.servers.redis import Redis
from lab.servers.supervisor import Server

STAYS = {"top", "keeps", "outside"}
"""Of a line in which nobody stands: bounded, and gone by itself some days later."""


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
        return int(self._server.ask("CLIENT", "KILL", "TYPE", kind))

    def forget_scripts(self) -> None:
        self._server.ask("SCRIPT", "FLUSH")

    def fields(self, key: str) -> set[str]:
        """As redis-cli quotes them: ids are no text."""
        return set(re.findall(r'^\s*\d+\) "(.*)"$', self._server.ask("--no-raw", "HKEYS", key), re.MULTILINE))

    def lines(self) -> list[str]:
        """The keys of all lines."""
        return [key for key in self._server.ask("--scan", "--pattern", "*|line").splitlines() if key]

    def left(self) -> list[str]:
        """Fields of lines beyond those that stay. What has expired is swept by the next one who asks for the name."""
        return [f"{key}: {field}" for key in self.lines() for field in self.fields(key) - STAYS]

    def version(self) -> str:
        found = re.search(r"redis_version:([\d.]+)", self._server.ask("INFO", "server"))
        return found[1] if found else "unknown"


@contextlib.contextmanager
def lone() -> Iterator[Lone]:
    with Server(Redis(persist="always")) as server:
        yield Lone(server)
