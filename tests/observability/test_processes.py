"""Telemetry in several processes: fork, the multiprocess mode of prometheus-client, and missing packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FORKED = """
import os, sys
from prometheus_client import generate_latest
from observability.telemetry import Otel, Prometheus, event, row

sdk, prometheus = Otel(), Prometheus()
observers = sdk.observer(), prometheus.observer()

def tell(what, **fields):
    for observe in observers:
        observe(event(what, kind="semaphore", capacity=3, **fields))

def gauges(shown):
    names = "dibs_lock_held", "dibs_lock_waiting", "dibs_semaphore_usage", "dibs_semaphore_limit"
    return [sum(value for (name, _), value in shown.samples().items() if name == wanted) for wanted in names]

tell("acquired", token=1)
tell("waiting")
assert gauges(sdk) == gauges(prometheus) == [1, 1, 1, 3]
if (child := os.fork()) == 0:
    assert gauges(sdk) == gauges(prometheus) == [0, 0, 0, 0]
    tell("acquired", token=2)
    assert gauges(sdk) == gauges(prometheus) == [1, 0, 1, 3]
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert gauges(sdk) == gauges(prometheus) == [1, 1, 1, 3]
tell("released", token=1)
tell("timed_out", contended=True)
assert gauges(sdk) == gauges(prometheus) == [0, 0, 0, 0]
sdk.provider.shutdown()
"""
MULTIPROCESS = """
import os
from prometheus_client import CollectorRegistry, multiprocess
from dibs.prometheus import PrometheusObserver
from observability.telemetry import event, samples

own = CollectorRegistry()
observe, second = PrometheusObserver(registry=own), PrometheusObserver(registry=own)

def semaphore(what, **fields):
    observe(event(what, kind="semaphore", capacity=3, weight=2, name="pool", **fields))

def shown(name):
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)
    return sum(value for (found, _), value in samples(registry).items() if found == name)

semaphore("acquired", token=1)
observe(event("waiting"))
second(event("acquired", token=5))
asked, told = os.pipe()
go, end = os.pipe()
if (child := os.fork()) == 0:
    semaphore("acquired", token=2)
    observe(event("released", token=5))  # its parent's: the child never saw it begin
    os.write(told, b"x")
    os.close(end)
    os.read(go, 1)
    semaphore("released", token=2)
    os._exit(0)
os.close(go)
os.read(asked, 1)
assert shown("dibs_lock_held") == 3, shown("dibs_lock_held")
assert shown("dibs_lock_waiting") == 1
assert (shown("dibs_semaphore_usage"), shown("dibs_semaphore_limit")) == (4, 3)
assert shown("dibs_lock_acquire_duration_seconds_count") == 3
os.close(end)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert shown("dibs_lock_held") == 2
observe.close()
assert (shown("dibs_lock_held"), shown("dibs_lock_waiting"), shown("dibs_semaphore_limit")) == (1, 0, 0)
second(event("lost", token=5, reason="expired"))
assert (shown("dibs_lock_held"), shown("dibs_lock_losses_total")) == (0, 1)
"""
GLOBAL = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from dibs.otel import OtelObserver
from observability.telemetry import Otel, event

early = OtelObserver()
metrics.set_meter_provider(MeterProvider([reader := InMemoryMetricReader()]))
late = OtelObserver()
named = OtelObserver(meter_provider=metrics.get_meter_provider())
for observe in early, late, named:
    observe(event("acquired"))
shown = Otel()
shown.reader = reader
assert list(shown.values("dibs.lock.held").values()) == [3]
assert [count for count, _ in shown.values("dibs.lock.acquire.duration").values()] == [3]
"""
MISSING = """
import sys
sys.modules[{package!r}] = None
try:
    import {module}
except ImportError as error:
    print(error)
"""


def run(code: str, *options: str, **env: str) -> str:
    path = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_child_has_none_of_the_counts_of_its_parent() -> None:
    run(FORKED)


def test_the_sdk_may_be_started_after_the_observer() -> None:
    run(GLOBAL)


def test_the_multiprocess_mode_adds_up_processes(tmp_path: Path) -> None:
    # prometheus-client leaves its files open at exit.
    run(MULTIPROCESS, "-W", "ignore::ResourceWarning", PROMETHEUS_MULTIPROC_DIR=str(tmp_path))


@pytest.mark.parametrize(
    ("package", "module", "extra", "named"),
    [
        ("opentelemetry.metrics", "dibs.otel", "otel", "opentelemetry-api"),
        ("prometheus_client", "dibs.prometheus", "prometheus", "prometheus-client"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package: str, module: str, extra: str, named: str) -> None:
    said = run(MISSING.format(package=package, module=module))
    assert said == f"{named} is not installed. Next: pip install 'dibs[{extra}]'\n"
