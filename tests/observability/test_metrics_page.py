"""docs/production/metrics.md says what is emitted: metrics, kinds, units, attributes, their values, and buckets."""

from __future__ import annotations

import re
from typing import Any

from opentelemetry.sdk.metrics.export import Histogram, Sum

from dibs.monitor.groups import MOST, template
from docs.test_lists import rows, section, words
from observability.telemetry import Otel
from observability.test_measures import every_event

PAGE = "production/metrics.md"


def emitted() -> dict[str, Any]:
    """The metrics that the SDK has after every event, while each gauge is above zero."""
    with Otel() as sdk:
        observe = sdk.observer()
        for one in every_event():
            observe(one)
        return sdk.metrics()


def kind(metric: Any) -> str:
    if isinstance(metric.data, Histogram):
        return "histogram"
    assert isinstance(metric.data, Sum)
    return "counter" if metric.data.is_monotonic else "up-down counter"


def test_the_reference_is_what_is_emitted() -> None:
    listed = {
        name.strip("`"): (kind, unit.strip("`"), words(attributes))
        for name, kind, unit, attributes, _ in rows(section(PAGE, "Reference"), "metric")
    }
    found = {
        name: (kind(metric), metric.unit, {key for one in metric.data.data_points for key in one.attributes})
        for name, metric in emitted().items()
    }
    assert len(found) == 9
    assert listed == found


def test_the_values_of_attributes_are_those_on_the_page() -> None:
    listed: dict[str, set[str]] = {}
    for attribute, _, values in rows(section(PAGE, "Reference"), "attribute"):
        listed.setdefault(attribute.strip("`"), set()).update(words(values))
    found: dict[str, set[str]] = {}
    for metric in emitted().values():
        for one in metric.data.data_points:
            for key, value in one.attributes.items():
                found.setdefault(key, set()).add(str(value).lower() if isinstance(value, bool) else str(value))
    for attribute in ("mode", "outcome", "end", "contended"):
        assert found[attribute] == listed[attribute], attribute
    assert found["reason"] == listed["reason"] - {"hold.lost_reason"}
    assert found["backend"] < listed["backend"]
    assert found.keys() == listed.keys()


def test_the_buckets_are_those_on_the_page() -> None:
    listed = {
        name.strip("`"): [float(number) for number in bounds.split(", ")]
        for name, bounds in rows(section(PAGE, "Buckets"), "metric")
    }
    found = {
        name: list(metric.data.data_points[0].explicit_bounds)
        for name, metric in emitted().items()
        if isinstance(metric.data, Histogram)
    }
    assert listed == found


def test_the_groups_are_those_on_the_page() -> None:
    part = section(PAGE, "Groups")
    listed = {name.strip("`"): group.strip("`") for name, group in rows(part, "name")}
    assert listed == {name: template(name) for name in listed}
    assert len(listed) == 5
    assert re.search(rf"After {MOST} groups", part)
