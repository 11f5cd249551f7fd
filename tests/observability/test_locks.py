"""Real locks through `dibs.observe`: their events reach both libraries, in both APIs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dibs
import dibs.aio
import dibs.otel
import dibs.prometheus
from observability.telemetry import Otel, Prometheus, Row, row

URL = "memory://telemetry"
SHORT = 0.3
"""A timeout, in seconds. If it has passed before the request is sent, nobody waits."""


class Watched(NamedTuple):
    otel: Otel
    prometheus: Prometheus
    tracers: TracerProvider
    exporter: InMemorySpanExporter
    stop: Callable[[], None]

    def count(self, **labels: Any) -> int:
        """Acquires with these attributes."""
        found: dict[Row, Any] = self.otel.values("dibs.lock.acquire.duration")
        return sum(count for key, (count, _) in found.items() if set(row(**labels)) <= set(key))


@pytest.fixture
def watched() -> Iterator[Watched]:
    tracers, exporter, prometheus = TracerProvider(), InMemorySpanExporter(), Prometheus()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with Otel() as otel, ExitStack() as observed:
        observed.callback(dibs.otel.instrument(meter_provider=otel.provider, tracer_provider=tracers, holds=True))
        observed.callback(dibs.prometheus.instrument(registry=prometheus.registry))
        yield Watched(otel, prometheus, tracers, exporter, observed.close)
    tracers.shutdown()


@pytest.mark.alone
def test_locks_of_both_apis_are_seen(watched: Watched) -> None:
    same = {"backend": "memory", "mode": "exclusive", "group": "invoice:*"}
    with dibs.connect(URL) as client, client.lock("invoice:42"):
        assert watched.otel.values("dibs.lock.held") == {row(**same): 1}
        assert client.lock("invoice:42").acquire(timeout=0) is None
        assert client.lock("invoice:42").acquire(timeout=SHORT) is None
    with dibs.connect(URL) as client, client.semaphore("pool", 3).permits(2):
        group = row(backend="memory", group="pool")
        assert watched.otel.values("dibs.semaphore.usage") == {group: 2}
        assert watched.otel.values("dibs.semaphore.limit") == {group: 3}

    async def pair() -> None:
        async with dibs.aio.connect(URL) as client, client.lock("invoice:43"):
            pass

    asyncio.run(pair())
    assert watched.otel.values("dibs.lock.held")[row(**same)] == 0
    assert watched.count(**same, outcome="acquired", contended=False) == 2
    assert watched.count(outcome="busy") == 1
    assert watched.count(outcome="timeout", contended=True) == 1
    ends = watched.otel.values("dibs.lock.hold.duration")
    assert ends[row(**same, end="released")][0] == 2
    assert watched.otel.samples() == pytest.approx(watched.prometheus.samples())


@pytest.mark.alone
def test_a_wait_has_a_span_below_its_caller(watched: Watched) -> None:
    with dibs.connect(URL) as client:
        hold = client.lock("invoice:42").acquire()
        with watched.tracers.get_tracer("shop").start_as_current_span("pay") as pay:
            assert client.lock("invoice:42").acquire(timeout=SHORT) is None
        hold.release()
    spans = {span.name: span for span in watched.exporter.get_finished_spans()}
    assert spans.keys() == {"acquire invoice:*", "pay", "hold invoice:*"}
    acquire = spans["acquire invoice:*"]
    assert acquire.parent.span_id == pay.get_span_context().span_id
    assert acquire.attributes["dibs.name"] == "invoice:42"
    assert [one.name for one in acquire.events] == ["queued"]


def test_nothing_is_seen_after_the_end(watched: Watched) -> None:
    with dibs.connect(URL) as client, client.lock("invoice:42"):
        watched.stop()
        assert watched.otel.values("dibs.lock.held") == {}
        with client.lock("invoice:43"):
            pass
    assert watched.count(outcome="acquired") == 1
    assert watched.otel.samples() == pytest.approx(watched.prometheus.samples())
