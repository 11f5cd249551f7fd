"""One server that keeps what it acknowledged, and its faults.

with lone(REDIS) as server:
    server.kill(); server.stop()         # until mend()
    server.end_connections("normal")     # returns how many; "waiting": those that notify clients
    server.left()                        # what is still in queues
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import Refused, Silent
from lab.servers.redis import Redis
from lab.servers.supervisor import Kind, Server


@dataclass(frozen=True)
class Ways:
    make: Callable[[], Kind]
    end_connections: Callable[[Server, str], int]
    left: Callable[[Server], list[str]]
    version: Callable[[Server], str]


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
def lone(ways: Ways) -> Iterator[Lone]:
    with Server(ways.make()) as server:
        yield Lone(server, ways)


_LEFT = "SELECT CONCAT('claim ', name, ' ', ticket) FROM {}"


def _end_sessions(server: Server, kind: str) -> int:
    which = {"normal": "COALESCE(info, '') NOT LIKE '%GTID_WAIT(%'", "waiting": "info LIKE '%GTID_WAIT(%'"}[kind]
    ours = "SELECT id FROM information_schema.processlist WHERE user = 'dibs' AND id <> CONNECTION_ID() AND"
    sessions = server.ask(f"{ours} {which}").split()
    with contextlib.suppress(Refused):  # one has gone meanwhile: the others end all the same
        server.ask("--force", "; ".join(f"KILL CONNECTION {session}" for session in sessions))
    return len(sessions)


def _end_backends(server: Server, kind: str) -> int:
    which = {"normal": "query NOT ILIKE 'LISTEN%'", "waiting": "query ILIKE 'LISTEN%'"}[kind]
    ours = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    ended = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {ours} AND {which}"
    return int(server.ask(ended))


def _end_clients(server: Server, kind: str) -> int:
    return int(server.ask("CLIENT", "KILL", "TYPE", {"normal": "normal", "waiting": "pubsub"}[kind]))


STAYS = {"h", "first", "last", "keeps", "dibs-layout-0002"}
"""The fields that an empty queue keeps in Redis: bounded, and removed after some minutes by expiry."""
EMPTY = 93
"""Bytes of a head without a claim, at most: see backends/redis/lua/head.lua."""


def _left_in_redis(server: Server) -> list[str]:
    """Fields of queues beyond those that stay, as redis-cli quotes them: ids are no text."""
    keys = [key for key in server.ask("--scan", "--pattern", "*|line").splitlines() if key]
    texts = {key: server.ask("--no-raw", "HKEYS", key) for key in keys}
    fields = {key: set(re.findall(r'^\s*\d+\) "(.*)"$', text, re.MULTILINE)) for key, text in texts.items()}
    held = [f"{key}: its head" for key in keys if int(server.ask("HSTRLEN", key, "h")) > EMPTY]
    return held + [f"{key}: {field}" for key, found in fields.items() for field in found - STAYS]


def _redis_version(server: Server) -> str:
    found = re.search(r"redis_version:([\d.]+)", server.ask("INFO", "server"))
    return found[1] if found else "unknown"


MARIADB = Ways(
    MariaDB,
    _end_sessions,
    lambda server: server.ask(
        f"{_LEFT.format('dibs_claims')} UNION ALL {_LEFT.format('dibs_queues')} WHERE id <> ''"
    ).splitlines(),
    lambda server: server.ask("SELECT VERSION()"),
)
POSTGRESQL = Ways(
    PostgreSQL,
    _end_backends,
    lambda server: server.ask(_LEFT.format("dibs.dibs_claims")).splitlines(),
    lambda server: server.ask("SHOW server_version"),
)
REDIS = Ways(lambda: Redis(persist="always"), _end_clients, _left_in_redis, _redis_version)
