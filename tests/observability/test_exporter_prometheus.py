"""The files of deploy/ with a real Prometheus, which scrapes a real `dibs exporter`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from cli.commands import Cli, Holder
from cli.terminals import installed
from dibs.monitor.exporter import METRICS
from lab.servers import ports
from process.children import PATIENCE, STEADY, Process, until

pytestmark = pytest.mark.slow
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
_SCRAPES = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: dibs
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""


def promtool(*words: str | Path) -> str:
    done = subprocess.run(
        [installed("promtool"), *map(str, words)], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_configuration_and_its_rules_are_valid() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "config", DEPLOY / "prometheus" / "prometheus.yml")


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


class Prometheus:
    """A server that scrapes one exporter every second."""

    def __init__(self, directory: Path, exporter: int) -> None:
        self.port = ports.reserve()
        config = directory / "prometheus.yml"
        config.write_text(_SCRAPES % exporter)
        words = [installed("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
        words.append(f"--web.listen-address={ports.HOST}:{self.port}")
        self.process = Process(words, directory, dict(os.environ))

    def ask(self, path: str, **more: str) -> Any:
        connection = HTTPConnection(ports.HOST, self.port, timeout=PATIENCE)
        try:
            connection.request("GET", f"/api/v1/{path}?{urlencode(more)}")
            reply = json.loads(connection.getresponse().read())
        except ConnectionRefusedError:
            assert self.process.process.poll() is None, self.process.errors
            return []
        except json.JSONDecodeError:  # it is not ready yet
            return []
        finally:
            connection.close()
        assert reply["status"] == "success", (more, reply)
        return reply["data"]["result"] if path == "query" else reply["data"]

    def query(self, expression: str) -> list[Any]:
        return list(self.ask("query", query=expression))

    def result(self, expression: str) -> list[Any]:
        """Not empty: after a scrape that took longer than a second, there are no values until the next."""
        return list(until(lambda: self.query(expression), what=expression))

    def close(self) -> None:
        self.process.discard()
        ports.release(self.port)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_every_query_of_the_dashboard_is_answered(cli: Cli) -> None:
    holder = Holder(cli.url, lease=STEADY)
    holder.takes("invoice:42", key="invoice")
    holder.takes("pool:a", "semaphore", 5, key="pool")
    port = int(cli.start("exporter", "--port", "0").hear().rpartition(":")[2].removesuffix("/metrics"))
    prometheus = Prometheus(cli.directory, port)
    try:
        until(lambda: prometheus.query("count_over_time(dibs_store_up[1m]) > 2"), what="three scrapes")
        until(lambda: METRICS.keys() <= set(prometheus.ask("label/__name__/values")), what="each metric is stored")
        (held,) = prometheus.result('dibs_store_held{group="invoice:*"}')
        assert held["metric"]["store"] == cli.url
        for query in QUERIES:
            plain = query.replace("$store", ".*").replace("$group", ".*").replace("$__rate_interval", "1m")
            assert "$" not in plain
            if "dibs_store" in query and "complete" not in query:
                prometheus.result(plain)
            else:
                assert not prometheus.query(plain), query
    finally:
        prometheus.close()
        holder.discard()


def test_the_dashboard_has_its_variables() -> None:
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "store", "group"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
