"""`dibs exporter` as a process, over real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest

import dibs
from cli.commands import Cli, Running
from cli.terminals import installed
from dibs.monitor.exporter import METRICS, Exporter
from lab.servers import ports
from observability.telemetry import read_exporter
from process.children import PATIENCE, until

pytestmark = pytest.mark.slow


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
    assert (status, read_exporter(text)["held", "invoice:*"]) == (200, 1)
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


@pytest.mark.gate
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


@pytest.mark.gate
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


# The files of deploy/, and the text of the exporter, as Prometheus's own tool reads them.


ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "dibs-alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dibs.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
ALERTS = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
PROCESS_METRICS = {
    "dibs_lock_acquire_duration_seconds_bucket", "dibs_lock_hold_duration_seconds_bucket", "dibs_lock_held",
    "dibs_lock_waiting", "dibs_lock_losses_total", "dibs_lock_renewals_total",
    "dibs_lock_lease_remaining_seconds_bucket",
}  # fmt: skip
"""The names of dibs's OpenTelemetry metrics after the standard translation."""


def promtool(*words: str | Path, text: str = "") -> str:
    done = subprocess.run(
        [installed("promtool"), *map(str, words)],
        input=text, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_its_rules_are_valid() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


@pytest.mark.gate
def test_the_text_of_the_exporter_is_valid() -> None:
    with dibs.connect("memory://promtool") as client, client.lock("invoice:42"), client.semaphore("pool:a", 5):
        promtool("check", "metrics", text=asyncio.run(Exporter([client]).text()))


@pytest.mark.gate
def test_every_query_of_the_dashboard_is_valid(tmp_path: Path) -> None:
    rules = [{"record": f"r{n}", "expr": re.sub(r"\$__\w+", "1m", query)} for n, query in enumerate(QUERIES)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(QUERIES)} rules found" in promtool("check", "rules", tmp_path / "rules.yml")
    for query in QUERIES:
        for labels in re.findall(r"by \((.+?)\)", query):
            assert set(labels.split(", ")) <= {"le", "group", "backend", "reason", "outcome"}, query
        matched = re.findall(r"(\w+)(?:=|!=|=~)\"", query)
        assert set(matched) <= ({"store", "group"} if "dibs_store" in query else {"group", "reason"}), query


@pytest.mark.gate
def test_each_alert_fires_and_is_silent(tmp_path: Path) -> None:
    for path in (RULES, Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(path, tmp_path)
    promtool("test", "rules", tmp_path / "alerts_test.yml")
    tests = (tmp_path / "alerts_test.yml").read_text()
    for alert in ALERTS:
        assert len(re.findall(rf"alertname: {alert}\b", tests)) >= 3, f"{alert} is not tested"
    page = (ROOT / "docs" / "production" / "alerts.md").read_text()
    assert re.findall(r"^\| `(Dibs\w+)` \|", page, re.MULTILINE) == ALERTS


def test_all_metrics_exist() -> None:
    text = RULES.read_text() + "".join(QUERIES)
    named = set(re.findall(r"\bdibs_(?:store|lock)_\w+", text))
    assert named <= METRICS.keys() | PROCESS_METRICS
    assert METRICS.keys() - named <= {"dibs_store_scans_total"}


def test_the_dashboard_has_its_variables() -> None:
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "store", "group"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
