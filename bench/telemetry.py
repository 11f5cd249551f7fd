#!/usr/bin/env python3
"""Telemetry: what observers add to a free pair.

  bench/telemetry.py

telemetry_events  The two events of a free pair, made and given to an observer: to none; to the measures of dibs with a
                  library that does nothing; to prometheus-client; to OpenTelemetry's SDK with a reader that exports
                  periodically. The floor is two calls of the SDK's histograms with the same attributes: no observer of
                  durations can do with less.
                  Bar: OpenTelemetry 12 us.
telemetry_pair    `with lock` on `memory://`: observed by nobody, by a function that does nothing, by both libraries.
                  Bar: OpenTelemetry 12 us more than nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from measure import Report, Settings, Timed, interleaved, main, microseconds, p50, timed

NONE, NOTHING, OTEL, PROMETHEUS = "nobody", "does nothing", "OpenTelemetry", "prometheus-client"
MEASURES, FLOOR = "measures alone", "floor: two records of the SDK"


def telemetry_events(report: Report, settings: Settings) -> None:
    from prometheus_client import CollectorRegistry

    from dibs.events import Event
    from dibs.monitor.measures import ACQUIRE, HOLD, Measures
    from dibs.otel import OtelObserver, _attributes
    from dibs.prometheus import PrometheusObserver

    same: dict[str, Any] = {
        "name": "invoice:42", "kind": "mutex", "mode": "exclusive", "owner": "ana", "store": "memory://bench",
        "backend": "memory", "token": 7, "lease": 30.0,
    }  # fmt: skip

    def pair(observe: Callable[[Event], object]) -> Timed:
        def once() -> None:
            observe(Event(what="acquired", waited=0.00001, **same))
            observe(Event(what="released", held=0.001, **same))

        return timed(once)

    with sdk() as provider:
        meter = provider.get_meter("floor")
        first = _attributes(ACQUIRE, ("memory", "exclusive", "acquired", False, "invoice:*", None))
        second = _attributes(HOLD, ("memory", "exclusive", "invoice:*", "released"))
        acquire, hold = meter.create_histogram("acquire"), meter.create_histogram("hold")

        def floor() -> None:
            acquire.record(0.00001, first)
            hold.record(0.001, second)

        cases = {
            NONE: pair(lambda _: None),
            MEASURES: pair(Measures(lambda *_: lambda _: None)),
            PROMETHEUS: pair(PrometheusObserver(registry=CollectorRegistry())),
            OTEL: pair(OtelObserver(meter_provider=provider)),
            FLOOR: timed(floor),
        }
        middle = shown(report, settings, cases)
    report.limit("OpenTelemetry, both events: 12 us", middle[OTEL], "us", most=12.0, peer=(FLOOR, middle[FLOOR]))


def telemetry_pair(report: Report, settings: Settings) -> None:
    from prometheus_client import CollectorRegistry

    import dibs
    from dibs.otel import OtelObserver
    from dibs.prometheus import PrometheusObserver

    with ExitStack() as stack:
        provider = stack.enter_context(sdk())
        observers: dict[str, dict[str, Any]] = {
            NONE: {},
            NOTHING: {"observer": lambda _: None},
            PROMETHEUS: {"observer": PrometheusObserver(registry=CollectorRegistry())},
            OTEL: {"observer": OtelObserver(meter_provider=provider)},
        }
        cases = {}
        for name, options in observers.items():
            lock = stack.enter_context(dibs.connect("memory://bench-telemetry", **options)).lock("invoice:42")

            def once(lock: Any = lock) -> None:
                with lock:
                    pass

            cases[name] = timed(once)
        middle = shown(report, settings, cases)
    added = middle[OTEL] - middle[NONE]
    report.limit("OpenTelemetry: 12 us more than nobody", added, "us", most=12.0, peer=(NONE, middle[NONE]))


def shown(report: Report, settings: Settings, cases: dict[str, Timed]) -> dict[str, float]:
    """The medians, in microseconds."""
    times = interleaved(report, cases, 200, settings.rounds * settings.choose(20, 5))
    for name, some in times.items():
        report.line(name, microseconds(some))
    return {name: p50(some) * 1e6 for name, some in times.items()}


@contextmanager
def sdk() -> Iterator[Any]:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader

    class Away(MetricExporter):
        def export(self, metrics_data: Any, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 10_000) -> bool:
            return True

        def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None: ...

    provider = MeterProvider([PeriodicExportingMetricReader(Away())])
    try:
        yield provider
    finally:
        provider.shutdown()


ROWS = {"telemetry_events": telemetry_events, "telemetry_pair": telemetry_pair}

if __name__ == "__main__":
    main(__doc__, ROWS)
