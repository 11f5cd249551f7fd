"""`dibs exporter` as a process, over real sockets."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

import dibs
from cli.commands import Cli, Running
from lab.servers import ports
from observability.exposition import read
from process.children import PATIENCE, until

pytestmark = pytest.mark.slow


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    try:
        yield made
    finally:
        made.close()


PATIENT = "import sys, dibs.cli.exporter as e; e._PATIENCE = 600; sys.exit(e.main(['--port', '0']))"
"""An exporter that closes no slow connection."""


def started(cli: Cli, *words: str) -> tuple[Running, int]:
    """With its port."""
    return listening(cli.start("exporter", "--port", "0", *words))


def listening(running: Running) -> tuple[Running, int]:
    said = running.hear()
    assert said.startswith("serving http://127.0.0.1:")
    return running, int(said.rpartition(":")[2].removesuffix("/metrics"))


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def raw(port: int, sent: bytes) -> bytes:
    """Read the reply until the server closes the connection, perhaps with a part of the request unread."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        while part := connection.recv(65536):
            found += part
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_ends(cli: Cli, number: int) -> None:
    running, port = started(cli)
    with dibs.connect(cli.url) as client, client.lock("invoice:42"):
        status, text = get(port)
    assert (status, read(text)["held", "invoice:*"]) == (200, 1)
    if number == signal.SIGTERM:
        assert get(port, "/-/healthy") == (200, "ok\n")
        assert 'href="metrics"' in get(port, "/")[1]
        assert get(port, "/metrics?x=1", "HEAD") == (200, "")
        assert [get(port, "/etc/passwd")[0], get(port, method="POST")[0]] == [404, 405]
        assert raw(port, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        assert raw(port, b"GET /" + b"a" * 100_000) == b""
    with socket.create_connection(("127.0.0.1", port)):  # somebody who is still connected does not hold it up
        running.signal(number)
        assert (running.end(), running.errors) == (0, "")
    assert not ports.listening(port)


def test_slow_clients_hold_up_nobody(cli: Cli) -> None:
    running, port = started(cli)
    slow = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(200)]
    try:
        for one in slow:
            one.sendall(b"GET /metrics HT")
        assert get(port)[0] == 200
        assert len(running.states()) < 20, "a thread for each"
        assert slow[0].recv(100) == b"", "they are closed after a while"
        assert get(port)[0] == 200
    finally:
        for one in slow:
            one.close()


def test_more_connections_than_the_limit_are_refused(cli: Cli) -> None:
    argv = [sys.executable, "-c", PATIENT]
    running, port = listening(cli._keep(Running(argv, cli.directory, cli.environment(), stdin=subprocess.DEVNULL)))
    descriptors, flood = Path(f"/proc/{running.pid}/fd"), []
    try:
        for number in range(510):
            flood.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
            if number % 50 == 0:  # the kernel keeps the order of as many as the server's backlog only
                until(lambda least=number: sum(1 for _ in descriptors.iterdir()) > least, what="accepted")
        for one in flood[500:]:
            with suppress(ConnectionError):  # instead of a reply
                one.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
                assert one.recv(100) == b""
        flood[0].sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        assert flood[0].recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        for one in flood:
            one.close()


def test_two_stores_one_of_them_down(cli: Cli) -> None:
    file = cli.directory / "url"
    file.write_text("redis://ana:sesame@127.0.0.1:1")
    file.chmod(0o600)
    _, port = started(cli, "--url", cli.url, "--url-file", str(file))
    status, text = get(port)
    assert status == 200
    assert f'dibs_store_up{{store="{cli.url}"}} 1' in text
    assert 'dibs_store_up{store="redis://127.0.0.1:1"} 0' in text
    assert "sesame" not in text


def test_mistakes(cli: Cli) -> None:
    for words, said in (
        (["--port", "70000"], "is not a port"),
        (["--port", "x"], "is not a port"),
        (["--url", "memory://"], "memory:// is private"),
        (["--url", cli.url, "--url", cli.url], "once"),
    ):
        done = cli.run("exporter", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert said in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli.run("exporter", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 64
    assert "Next: choose --bind and --port" in done.stderr
