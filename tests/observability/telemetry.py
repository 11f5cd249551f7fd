"""Events of one lock, and readers of the metrics that OpenTelemetry and prometheus-client make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dibs.events import Event
from dibs.monitor.groups import Group
from dibs.otel import OtelObserver
from dibs.prometheus import PrometheusObserver

Row = tuple[tuple[str, Any], ...]


def event(what: Any, **given: Any) -> Event:
    fields = {"name": "invoice:42", "kind": "mutex", "mode": "exclusive", "owner": "ana", "store": "redis://cache"}
    return Event(**{"what": what, "backend": "redis", "token": 7, **fields, **given})


def row(**labels: Any) -> Row:
    """Attributes by their short names: `row(backend="redis")`."""
    return as_row({"error.type" if key == "error" else key: value for key, value in labels.items()})


def as_row(attributes: Mapping[str, Any] | None) -> Row:
    return tuple(sorted((attributes or {}).items()))


class Otel:
    """An SDK of its own; to be closed by `with`."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.registry = CollectorRegistry()
        self.provider = MeterProvider([self.reader, PrometheusMetricReader(registry=self.registry)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.provider.shutdown()

    def observer(self, group: Group = None) -> OtelObserver:
        return OtelObserver(meter_provider=self.provider, group=group)

    def metrics(self) -> dict[str, Any]:
        found = self.reader.get_metrics_data()
        if found is None:
            return {}
        scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {"dibs"}
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, name: str) -> dict[Row, Any]:
        """Attributes, and the value of a point: for a histogram its count and sum."""
        metric = self.metrics().get(name)
        points = [] if metric is None else metric.data.data_points
        return {
            as_row(one.attributes): (one.count, one.sum) if hasattr(one, "bucket_counts") else one.value
            for one in points
        }

    def samples(self) -> dict[tuple[str, Row], float]:
        return samples(self.registry)


def read_exporter(text: str) -> dict[tuple[str, str], float]:
    """The samples of one store by metric, without its prefix, and group."""
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    found = {(one.name.removeprefix("dibs_store_"), one.labels.get("group", "")): one.value for one in samples}
    assert len(found) == len(samples), "no sample comes twice"
    return found


class Prometheus:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def observer(self, group: Group = None) -> PrometheusObserver:
        return PrometheusObserver(registry=self.registry, group=group)

    def samples(self) -> dict[tuple[str, Row], float]:
        return samples(self.registry)


def samples(registry: CollectorRegistry) -> dict[tuple[str, Row], float]:
    """Every sample of dibs in the text that a scrape reads; without the labels that each library adds."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for one in family.samples:
            if one.name.startswith("dibs_") and not one.name.endswith("_created"):
                # To Prometheus an empty label is a missing one, and 1 is 1.0.
                labels = {key: value for key, value in one.labels.items() if value and not key.startswith("otel_scope")}
                if "le" in labels:
                    labels["le"] = str(float(labels["le"]))
                found[one.name, as_row(labels)] = one.value
    return found
