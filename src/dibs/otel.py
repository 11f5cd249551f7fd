"""OpenTelemetry: metrics and spans of this process's own locks. It needs the extra `dibs[otel]`.

`instrument()` covers every client of the process. An `OtelObserver` covers one: `dibs.connect(url, observer=...)`.
docs/production/metrics.md lists the metrics, docs/production/tracing.md the spans.

Both use the API of OpenTelemetry only; without an SDK they record nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import time_ns
from weakref import WeakKeyDictionary, WeakSet

import dibs
from dibs.errors import MissingDriver
from dibs.events import Event, ended_as_planned
from dibs.monitor import measures
from dibs.monitor.groups import Group, grouping
from dibs.monitor.measures import Begun, Measures, Metric, Record, Row, end_of, error_type, hold_key, wait_key

try:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter_provider
    from opentelemetry.trace import Link, Span, SpanContext, StatusCode, TracerProvider, get_tracer_provider
except ImportError as error:
    raise MissingDriver("opentelemetry-api is not installed", step="pip install 'dibs[otel]'") from error

__all__ = ["OtelObserver", "instrument"]

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that `error.type` is taken from."""
_live: WeakKeyDictionary[object, WeakSet[Measures]] = WeakKeyDictionary()
"""The observers of a provider. An SDK keeps the first callback of a gauge only, so they share it. Those of the global
provider are under `get_meter_provider`: another object takes its place when the program sets one."""


def instrument(
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    group: Group = None,
    holds: bool = False,
) -> Callable[[], None]:
    """Record metrics and spans for every client of this process.

    Args:
        meter_provider: Where metrics go. Default: the global provider.
        tracer_provider: Where spans go. Default: the global provider.
        group: The rule that turns the name of a lock into the attribute `group`: a list of patterns, or a
            function. Default: the first part of the name, with `*` for digits.
        holds: Whether each hold gets a span of its own, with a link to the span of its acquire.

    Returns:
        A function without arguments that ends it.

    Raises:
        TypeError: `group` is neither a list of texts nor a function.

    Example:
        >>> stop = instrument(group=["invoice:*", "deploy"])
        >>> with dibs.connect("memory://example") as client, client.lock("invoice:42"):
        ...     pass
        >>> stop()
    """
    observer = OtelObserver(meter_provider=meter_provider, tracer_provider=tracer_provider, group=group, holds=holds)
    ended = dibs.observe(observer)

    def stop() -> None:
        ended()
        observer.close()

    return stop


class OtelObserver:
    """An observer for `dibs.connect(observer=...)` that records metrics and spans of one client.

    Args:
        meter_provider: As in `instrument`.
        tracer_provider: As in `instrument`.
        group: As in `instrument`.
        holds: As in `instrument`.

    Example:
        >>> client = dibs.connect("memory://example", observer=OtelObserver(holds=True))
        >>> client.close()
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        group: Group = None,
        holds: bool = False,
    ) -> None:
        meter = (meter_provider or get_meter_provider()).get_meter("dibs", dibs.__version__, SCHEMA)
        bound = {metric: _record(meter, metric) for metric in measures.METRICS if metric.kind != "gauge"}

        def bind(metric: Metric, row: Row) -> Record:
            record, attributes = bound[metric], _attributes(metric, row)
            return lambda value: record(value, attributes)  # less than `partial` with a keyword costs

        self._measures = Measures(bind, group)
        is_global = meter_provider is None or meter_provider is get_meter_provider()
        self._observers = _observers(get_meter_provider if is_global else meter_provider, meter)
        self._observers.add(self._measures)
        self._spans = _Spans(tracer_provider or get_tracer_provider(), group, holds)

    def __call__(self, event: Event, /) -> None:
        try:
            self._measures(event)
        finally:  # a fault of one signal leaves the other alone
            if event.contended or event.what in self._spans.wanted:
                self._spans(event)

    def close(self) -> None:
        """End the observing: its holds and waits leave the gauges, and their spans end.

        The function that `instrument` returns does it, too.
        """
        self._observers.discard(self._measures)
        self._measures.close()
        self._spans.close()


def _record(meter: Meter, metric: Metric) -> Callable[..., None]:
    if metric.kind == "counter":
        return meter.create_counter(metric.name, metric.unit, metric.text).add
    buckets = list(metric.buckets)
    return meter.create_histogram(
        metric.name, metric.unit, metric.text, explicit_bucket_boundaries_advisory=buckets
    ).record


def _observers(provider: object, meter: Meter) -> WeakSet[Measures]:
    """The observers whose sums the gauges of this provider are."""
    observers = _live.get(provider)
    if observers is None:
        observers = _live[provider] = WeakSet()
        for metric in measures.METRICS:
            if metric.kind == "gauge":
                callback = partial(_observations, metric, observers)
                meter.create_observable_up_down_counter(metric.name, [callback], metric.unit, metric.text)
    return observers


def _observations(metric: Metric, observers: WeakSet[Measures], _: CallbackOptions) -> Iterable[Observation]:
    return [Observation(value, _attributes(metric, row)) for row, value in measures.summed(metric, observers).items()]


def _attributes(metric: Metric, row: Row) -> dict[str, str | bool]:
    return {key: value for key, value in zip(metric.attributes, row, strict=True) if value is not None}


def _key(attribute: str) -> str:
    """The attribute of a span. Spans of all libraries meet in one place, so ours have a prefix there."""
    return f"dibs.{attribute}"


class _Spans:
    """A span for each acquire that waited or failed, made when it ends: a free acquire costs nothing here.

    The end of an acquire is reported in the thread or task of its caller, so the caller's span is the parent.
    """

    def __init__(self, tracers: TracerProvider, group: Group, holds: bool) -> None:
        self._tracer = tracers.get_tracer("dibs", dibs.__version__, SCHEMA)
        self._group = grouping(group)
        self._with_holds = holds
        self.wanted = frozenset({"waiting", "timed_out", "cancelled", "failed"}).union(
            {"acquired", *measures.ENDS} if holds else ()
        )
        """The events that may concern a span. All others may, if their acquire had to wait."""
        self._queued: Begun[int] = Begun()
        self._holds: Begun[Span] = Begun()

    def __call__(self, event: Event, /) -> None:
        outcome = measures.OUTCOMES.get(event.what)
        if event.what == "waiting":
            self._queued.begin(wait_key(event), time_ns())
        elif outcome is not None:
            waited = event.contended or outcome not in ("acquired", "busy")
            acquire = self._acquire(event, outcome) if waited else None
            if self._with_holds and outcome == "acquired" and event.mode != "transaction":
                self._begin_hold(event, acquire)
        elif self._with_holds and event.what in measures.ENDS:
            self._end_hold(event)

    def _acquire(self, event: Event, outcome: str) -> SpanContext:
        now = time_ns()
        queued = self._queued.end(wait_key(event)) if event.contended else None
        span = self._tracer.start_span(
            f"acquire {self._group(event.name)}",
            attributes={
                **self._common(event),
                _key(measures.OUTCOME): outcome,
                _key(measures.CONTENDED): event.contended,
            },
            start_time=now - int(event.waited * 1e9),
        )
        if queued is not None:
            span.add_event("queued", timestamp=queued)
        if outcome == "acquired":
            span.add_event("granted", timestamp=now)
        elif outcome == "error":
            span.set_attribute(measures.ERROR, error_type(event))
            span.set_status(StatusCode.ERROR, str(event.error or ""))
        span.end(now)
        return span.get_span_context()

    def _begin_hold(self, event: Event, acquire: SpanContext | None) -> None:
        links = [] if acquire is None else [Link(acquire)]
        name = f"hold {self._group(event.name)}"
        span = self._tracer.start_span(name, attributes=self._common(event), links=links)
        self._holds.begin(hold_key(event), span)

    def _end_hold(self, event: Event) -> None:
        span = self._holds.end(hold_key(event))
        if span is not None:
            span.set_attribute(_key(measures.END), end_of(event))
            if event.what == "lost":
                span.set_attribute(_key(measures.REASON), event.reason)
                if not ended_as_planned(event):
                    span.set_status(StatusCode.ERROR, event.text)
            span.end()

    def close(self) -> None:
        """End the spans of holds that go on: nobody will."""
        for span in self._holds.now():
            span.end()
        self._holds.forget()

    def _common(self, event: Event) -> dict[str, str | int]:
        found: dict[str, str | int] = {
            _key(measures.BACKEND): event.backend,
            _key(measures.MODE): event.mode,
            _key(measures.GROUP): self._group(event.name),
            "dibs.name": event.name,
            "dibs.owner": event.owner,
            "dibs.store": event.store,
        }
        if event.token:
            found["dibs.token"] = event.token
        return found
