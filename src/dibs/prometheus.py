"""prometheus-client: metrics of this process's own locks. It needs the extra `dibs[prometheus]`.

`instrument()` covers every client of the process. A `PrometheusObserver` covers one:
`dibs.connect(url, observer=...)`. docs/production/metrics.md lists the metrics. Their names and labels are those that
the exporters of OpenTelemetry make of `dibs.otel`: the same dashboards and alerts fit both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import environ
from typing import Literal
from weakref import WeakKeyDictionary, WeakSet

import dibs
from dibs.errors import MissingDriver
from dibs.events import Event
from dibs.monitor import measures
from dibs.monitor.groups import Group
from dibs.monitor.measures import Measures, Metric, Record, Row

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as Family
except ImportError as error:
    raise MissingDriver("prometheus-client is not installed", step="pip install 'dibs[prometheus]'") from error

__all__ = ["PrometheusObserver", "instrument"]


def instrument(*, registry: CollectorRegistry | None = None, group: Group = None) -> Callable[[], None]:
    """Record metrics for every client of this process.

    Args:
        registry: Where the metrics are registered. Default: the registry of prometheus-client itself.
        group: The rule that turns the name of a lock into the label `group`: a list of patterns, or a function.
            Default: the first part of the name, with `*` for digits.

    Returns:
        A function without arguments that ends it. The metrics stay in the registry.

    Raises:
        TypeError: `group` is neither a list of texts nor a function.

    Example:
        >>> stop = instrument(registry=CollectorRegistry(), group=["invoice:*", "deploy"])
        >>> with dibs.connect("memory://example") as client, client.lock("invoice:42"):
        ...     pass
        >>> stop()
    """
    observer = PrometheusObserver(registry=registry, group=group)
    ended = dibs.observe(observer)

    def stop() -> None:
        ended()
        observer.close()

    return stop


class PrometheusObserver:
    """An observer for `dibs.connect(observer=...)` that records metrics of one client.

    Args:
        registry: As in `instrument`.
        group: As in `instrument`.

    Example:
        >>> observer = PrometheusObserver(registry=CollectorRegistry())
        >>> client = dibs.connect("memory://example", observer=observer)
        >>> client.close()
    """

    def __init__(self, *, registry: CollectorRegistry | None = None, group: Group = None) -> None:
        chosen = REGISTRY if registry is None else registry
        self._families = _registered.get(chosen) or _Families(chosen)
        changed = self._families.change if self._families.multiprocess else None
        self._measures = Measures(self._families.bind, group, changed)
        self._families.observers.add(self._measures)

    def __call__(self, event: Event, /) -> None:
        self._measures(event)

    def close(self) -> None:
        """Take the holds and waits that this observer saw out of the gauges; `instrument` does it by itself."""
        self._families.observers.discard(self._measures)
        self._measures.close()


class _Families:
    """The metrics in one registry, shared by all observers: a registry takes a name once.

    In multiprocess mode a process writes its gauges to a file at each change; that file has the values of this process
    alone. Otherwise they are counted when they are read, so a forked child has none of its parent's.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.observers: WeakSet[Measures] = WeakSet()
        self.multiprocess = "PROMETHEUS_MULTIPROC_DIR" in environ
        self._recorded: dict[Metric, Histogram | Counter] = {}
        self._gauges: dict[Metric, Gauge] = {}
        for metric in measures.METRICS:
            labels = [_label(key) for key in metric.attributes]
            if metric.kind == "histogram":
                self._recorded[metric] = Histogram(
                    _name(metric), metric.text, labels, registry=registry, buckets=metric.buckets
                )
            elif metric.kind == "counter":
                self._recorded[metric] = Counter(_name(metric), metric.text, labels, registry=registry)
            elif self.multiprocess:
                # Every process has the same limit; the rest adds up.
                mode: Literal["livemax", "livesum"] = "livemax" if metric is measures.LIMIT else "livesum"
                self._gauges[metric] = Gauge(
                    _name(metric), metric.text, labels, registry=registry, multiprocess_mode=mode
                )
        if not self.multiprocess:
            registry.register(self)
        _registered[registry] = self

    def bind(self, metric: Metric, row: Row) -> Record:
        family = self._recorded[metric]
        child = family.labels(*map(_text, row))
        return child.inc if isinstance(child, Counter) else child.observe

    def change(self, metric: Metric, row: Row, change: int) -> None:
        self._gauges[metric].labels(*map(_text, row)).inc(change)

    def collect(self) -> Iterable[Family]:
        for metric in measures.METRICS:
            if metric.kind == "gauge":
                family = GaugeMetricFamily(
                    _name(metric), metric.text, labels=[_label(key) for key in metric.attributes]
                )
                for row, value in measures.summed(metric, self.observers).items():
                    family.add_metric([_text(one) for one in row], value)
                yield family


_registered: WeakKeyDictionary[CollectorRegistry, _Families] = WeakKeyDictionary()


def _name(metric: Metric) -> str:
    """As OpenTelemetry's exporters translate it; prometheus-client adds `_total` to a counter by itself."""
    return metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")


def _label(key: str) -> str:
    return key.replace(".", "_")


def _text(value: str | bool | None) -> str:
    """An empty label is a missing one."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value
