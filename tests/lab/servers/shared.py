"""Servers that all tests of a run share, started when a test first asks, and a store of its own for each test.

    fresh(tmp_path)                  # zookeeper://127.0.0.1:34567/fresh-9f86d081: nothing is below it yet
    redis().port, mariadb().url()    # the servers themselves

The run's first process owns them: with xdist its controller, which answers the workers on a UNIX socket (`share`). They
end with it (guard.py). A test must not harm a shared server, change its settings or count its connections. Tests that
look at a server as a whole have one of their worker's own: `ALONE`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import secrets
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab.servers import ports
from lab.servers.groups import GROUPS, TICK_MS
from lab.servers.mariadb import MariaDB
from lab.servers.postgresql import PostgreSQL
from lab.servers.programs import ANSWER, require
from lab.servers.redis import Redis
from lab.servers.supervisor import STARTING, Kind
from lab.servers.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from lab.servers.schemas import Schemas

__all__ = ["TICK_MS", "fresh", "fresh_mariadb", "fresh_postgresql", "fresh_redis", "hosts", "share"]

ADDRESS = "DIBS_LAB_SERVERS"
"""The environment variable with the socket's name, in the abstract namespace: it leaves no file."""
ALONE = (
    "tests/store/mysql/", "tests/store/postgresql/", "tests/store/redis/", "tests/security/test_messages.py",
    "tests/process/test_exit.py",
)  # fmt: skip
"""Tests here read the server's statistics or list of sessions, or change settings of it."""


class Shared:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.port = kind.port

    def url(self, **parts: str) -> str:
        return self.kind.url(**parts)

    def ask(self, *words: str, within: float = ANSWER) -> str:
        return self.kind.ask(*words, within=within)


def zookeeper() -> Shared:
    return Shared(ZooKeeper(port=_port("zookeeper")))


def redis() -> Shared:
    return Shared(Redis(port=_port("redis")))


def mariadb() -> Shared:
    return Shared(MariaDB(port=_port("mariadb")))


def postgresql() -> Shared:
    return Shared(PostgreSQL(port=_port("postgresql")))


def fresh(_: Path) -> str:
    return f"{zookeeper().url()}/{unique()}"


def fresh_redis(_: Path) -> str:
    return f"{redis().url()}?prefix={unique()}:"


def fresh_mariadb(_: Path) -> str:
    return f"{mariadb().url()}?prefix={unique()}:"


def fresh_postgresql(place: Path) -> str:
    return in_schema(postgresql().url(), place)


def in_schema(url: str, place: Path) -> str:
    return f"{url}?schema={_schemas(url).fresh(place) if runs() else unique()}"


@functools.cache
def _schemas(url: str) -> Schemas:
    from lab.servers.schemas import Schemas  # and with it psycopg, which most runs need not import

    return Schemas(url)


def unique() -> str:
    return f"fresh-{secrets.token_hex(6)}"


def hosts(group: str) -> str:
    """The addresses of its servers; while tests are collected, and nothing is opened, one at which nobody listens."""
    return ",".join(f"{ports.HOST}:{port}" for port in _ports(group))


def _port(group: str) -> int:
    return _ports(group)[0]


def _ports(group: str) -> tuple[int, ...]:
    if not runs():
        return (1,)
    require(GROUPS[group].program)
    if os.environ["PYTEST_CURRENT_TEST"].startswith(ALONE):
        return _own().ports(group)
    return _of_the_run(group)


def runs() -> bool:
    """Whether a test runs, and not only the collection of tests."""
    return "PYTEST_CURRENT_TEST" in os.environ


class Run:
    def __init__(self) -> None:
        self._found: dict[str, tuple[int, ...]] = {}
        self._starting = {group: threading.Lock() for group in GROUPS}
        self._stack = contextlib.ExitStack()

    def ports(self, group: str) -> tuple[int, ...]:
        with self._starting[group]:
            if group not in self._found:
                servers = self._stack.enter_context(GROUPS[group].start(self.ports))
                self._found[group] = tuple(server.port for server in servers)
            return self._found[group]

    def close(self) -> None:
        self._stack.close()


@functools.cache
def _own() -> Run:
    run, owner = Run(), os.getpid()
    atexit.register(lambda: run.close() if os.getpid() == owner else None)
    return run


@functools.cache
def _of_the_run(group: str) -> tuple[int, ...]:
    if (address := os.environ.get(ADDRESS)) is None:
        return _own().ports(group)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(2 * STARTING)  # another worker may have asked before, for what this one needs first
        line.connect(f"\0{address}")
        line.sendall(f"{group}\n".encode())
        with line.makefile() as answer:
            found: dict[str, Any] = json.loads(answer.readline())
    assert "ports" in found, f"{group} did not start: {found['error']}"
    return tuple(found["ports"])


class PortServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # where more workers than this ask at once, connect() fails with EAGAIN

    def __init__(self, name: str, find: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__(f"\0{name}", Request)
        self.find = find


class Request(socketserver.StreamRequestHandler):
    server: PortServer

    def handle(self) -> None:
        group = self.rfile.readline().decode().strip()
        answer: dict[str, Any]
        try:
            answer = {"ports": self.server.find(group)}
        except BaseException as error:
            answer = {"error": "\n".join([repr(error), *getattr(error, "__notes__", ())])}
        self.wfile.write(f"{json.dumps(answer)}\n".encode())


def share(config: pytest.Config) -> None:
    """Answer the workers of this run, if it has any and is not itself a part of another run."""
    if getattr(config.option, "dist", "no") == "no" or hasattr(config, "workerinput") or ADDRESS in os.environ:
        return
    run, name = Run(), f"dibs-lab-{os.getpid()}-{secrets.token_hex(8)}"
    server = PortServer(name, run.ports)
    threading.Thread(target=server.serve_forever, name="lab servers", daemon=True).start()
    os.environ[ADDRESS] = name

    def end() -> None:
        os.environ.pop(ADDRESS, None)
        server.shutdown()
        server.server_close()
        run.close()

    config.add_cleanup(end)
