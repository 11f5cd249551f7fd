"""A dashboard under a real server, the requests of a browser, and a sampler without a store."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import uvicorn

import dibs
from dibs.info import LockInfo
from dibs.monitor.sampler import Entry, Sampler
from process.children import until

LIMIT = 60.0
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


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


class Proxy:
    """A client some of whose methods are others."""

    def __init__(self, client: Any, **methods: Any) -> None:
        self._client = client
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class Watch:
    """A sampler that is fed by hand: one sample of the name `a` each second."""

    def __init__(self, client: dibs.Client) -> None:
        self.sampler = Sampler(client)
        self.at = 0.0

    def see(self, *infos: LockInfo, after: float = 1.0, baseline: bool = False) -> bool:
        """Was the last one a change?"""
        changed = False
        for info in infos:
            first, self.at = self.at == 0, self.at + after
            changed = self.sampler._note(info, NOON + timedelta(seconds=self.at), baseline=baseline or first)
        return changed

    @property
    def entry(self) -> Entry:
        return self.sampler.entries["a"]

    @property
    def record(self) -> Any:
        return self.sampler.history.record("a")

    def whats(self) -> list[str]:
        return [one.what for one in self.record.changes] if self.record else []


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
            until(lambda: server.started)
            yield Site(listener.getsockname()[1], path)
        finally:
            if hasattr(app, "end_streams"):
                app.end_streams()
            server.should_exit = True
            thread.join(LIMIT)
            assert not thread.is_alive()
