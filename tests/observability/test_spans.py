"""Spans of acquires and holds, as an exporter of the SDK gets them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

import dibs
from dibs.otel import SCHEMA, OtelObserver
from observability.telemetry import event

RAW = {"dibs.name": "invoice:42", "dibs.owner": "ana", "dibs.store": "redis://cache"}
COMMON = {"dibs.backend": "redis", "dibs.mode": "exclusive", "dibs.group": "invoice:*", **RAW}


class Traced(NamedTuple):
    provider: TracerProvider
    meters: MeterProvider
    exporter: InMemorySpanExporter
    tracer: Tracer

    def observer(self, holds: bool = False) -> OtelObserver:
        return OtelObserver(meter_provider=self.meters, tracer_provider=self.provider, holds=holds)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def traced() -> Iterator[Traced]:
    provider, meters, exporter = TracerProvider(), MeterProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Traced(provider, meters, exporter, provider.get_tracer("shop"))
    provider.shutdown()
    meters.shutdown()


def test_an_acquire_that_does_not_wait_makes_no_span(traced: Traced) -> None:
    observe = traced.observer()
    for what in ("acquired", "busy"):
        observe(event(what, waited=0.0001))
    observe(event("released"))
    assert traced.exporter.get_finished_spans() == ()


def test_an_acquire_that_waited_is_a_child_of_its_caller(traced: Traced) -> None:
    observe = traced.observer()
    with traced.tracer.start_as_current_span("pay") as pay:
        observe(event("waiting", waited=0.01))
        observe(event("acquired", waited=2.5, contended=True))
    (span,) = traced.spans("acquire invoice:*")
    assert span.parent.span_id == pay.get_span_context().span_id
    assert span.kind is SpanKind.INTERNAL
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 2_500_000_000
    assert [one.name for one in span.events] == ["queued", "granted"]
    assert span.events[1].timestamp == span.end_time
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {**COMMON, "dibs.outcome": "acquired", "dibs.contended": True, "dibs.token": 7}
    scope = span.instrumentation_scope
    assert (scope.name, scope.version, scope.schema_url) == ("dibs", dibs.__version__, SCHEMA)


def test_an_acquire_that_got_nothing_makes_a_span(traced: Traced) -> None:
    outcomes = {"timed_out": "timeout", "cancelled": "cancelled", "failed": "error"}
    observe = traced.observer()
    for (what, outcome), contended in itertools.product(outcomes.items(), (False, True)):
        if contended:
            observe(event("waiting"))
        fields: dict[str, Any] = {"error": dibs.StoreUnavailable("gone", name="invoice:42")} if what == "failed" else {}
        observe(event(what, token=0, waited=1.0, contended=contended, **fields))
        (span,) = traced.spans("acquire invoice:*")
        traced.exporter.clear()
        expected = {**COMMON, "dibs.outcome": outcome, "dibs.contended": contended}
        if what == "failed":
            assert span.attributes == {**expected, "error.type": "StoreUnavailable"}
            assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, '"invoice:42": gone')
        else:
            assert span.attributes == expected
            assert span.status.status_code is StatusCode.UNSET
        assert [one.name for one in span.events] == ["queued"] * contended


def test_a_hold_has_a_span_only_if_asked_for(traced: Traced) -> None:
    observe = traced.observer(holds=True)
    observe(event("waiting"))
    observe(event("acquired", contended=True, waited=1.0))
    assert traced.spans("hold invoice:*") == []
    observe(event("released"))
    (acquire,), (hold,) = traced.spans("acquire invoice:*"), traced.spans("hold invoice:*")
    assert [link.context.span_id for link in hold.links] == [acquire.context.span_id]
    assert hold.attributes == {**COMMON, "dibs.token": 7, "dibs.end": "released"}
    assert hold.status.status_code is StatusCode.UNSET


def test_a_hold_that_is_lost_says_why(traced: Traced) -> None:
    observe = traced.observer(holds=True)
    observe(event("acquired"))
    observe(event("lost", reason="max_hold", text="held longer than max_hold"))
    (hold,) = traced.spans("hold invoice:*")
    assert not hold.links
    assert hold.attributes == {**COMMON, "dibs.token": 7, "dibs.end": "expired", "dibs.reason": "max_hold"}
    assert (hold.status.status_code, hold.status.description) == (StatusCode.ERROR, "held longer than max_hold")


def test_a_permit_that_ends_by_its_lease_is_no_error(traced: Traced) -> None:
    observe = traced.observer(holds=True)
    observe(event("acquired", kind="semaphore"))
    observe(event("lost", kind="semaphore", reason="expired", text="its lease is over"))
    (hold,) = traced.spans("hold invoice:*")
    assert (hold.attributes["dibs.end"], hold.attributes["dibs.reason"]) == ("expired", "expired")
    assert hold.status.status_code is StatusCode.UNSET


def test_a_lock_in_a_transaction_has_no_hold(traced: Traced) -> None:
    observe = traced.observer(holds=True)
    observe(event("acquired", mode="transaction"))
    observe(event("released", token=99))
    assert traced.exporter.get_finished_spans() == ()
