"""A dashboard under a real server, and the requests of a browser."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import uvicorn

LIMIT = 60.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """A server, and the path of the dashboard on it."""

    def __init__(self, port: int, path: str = "") -> None:
        self.port = port
        self.path = path

    def ask(self, path: str = "", method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
            connection.request(method, f"{self.path}/{path}", body, given)
            reply = connection.getresponse()
            return Answer(reply.status, {key.lower(): value for key, value in reply.getheaders()}, reply.read())

    @contextmanager
    def stream(self, query: str = "", **headers: str) -> Iterator[Iterator[tuple[str, str, Any]]]:
        """The events of a stream: name, id, data. Comments are events without a name."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)) as connection:
            connection.request("GET", f"{self.path}/api/stream?{query}", headers=given)
            reply = connection.getresponse()
            assert reply.status == 200, reply.read()
            try:
                yield _events(reply)
            finally:
                reply.close()

    def raw(self, request: bytes) -> bytes:
        """The answer to these very bytes."""
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)) as wire:
            wire.sendall(request)
            found = b""
            while part := wire.recv(65536):
                found += part
            return found


def _events(reply: http.client.HTTPResponse) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    while line := reply.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if line == "\n":
            if fields:
                yield fields.get("event", ""), fields.get("id", ""), json.loads(fields.get("data", "null"))
            fields = {}
        elif name:
            fields[name] = value
        elif value.strip():
            yield "", "", value


@contextmanager
def served(app: Any, path: str = "") -> Iterator[Site]:
    """The app under uvicorn, in a thread."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, access_log=False, ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            eventually(lambda: server.started)
            yield Site(listener.getsockname()[1], path)
        finally:
            if hasattr(app, "end_streams"):
                app.end_streams()
            server.should_exit = True
            thread.join(LIMIT)
            assert not thread.is_alive()


def eventually(true: Callable[[], object]) -> None:
    until = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < until, "it did not become true"
        time.sleep(0.02)
