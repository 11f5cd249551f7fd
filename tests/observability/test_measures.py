"""Every event becomes the measurements of docs/production/metrics.md, and both libraries have the same: metrics, kinds,
units, attributes, their values, and buckets."""

from __future__ import annotations

import gc
import itertools
import random
import re
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest
from opentelemetry.sdk.metrics.export import Histogram, Sum
from prometheus_client import CollectorRegistry

import dibs
from dibs.errors import LossReason
from dibs.events import Event, What
from dibs.monitor import measures
from dibs.monitor.groups import MOST, template
from dibs.otel import OtelObserver
from dibs.prometheus import PrometheusObserver
from docs.test_lists import rows, section, words
from observability.telemetry import Otel, Prometheus, event, row

REDIS = {"backend": "redis", "mode": "exclusive", "group": "invoice:*"}
ENDS = {"expired": "expired", "max_hold": "expired", "broken": "broken"}


@pytest.fixture
def observe(otel: Otel) -> OtelObserver:
    return otel.observer()


def test_an_acquire_is_recorded_with_its_outcome(otel: Otel, observe: OtelObserver) -> None:
    outcomes = {"acquired": "acquired", "busy": "busy", "timed_out": "timeout", "cancelled": "cancelled"}
    expected = {}
    for (what, outcome), contended in itertools.product(outcomes.items(), (False, True)):
        observe(event(what, waited=0.25, contended=contended))
        expected[row(**REDIS, outcome=outcome, contended=contended)] = (1, 0.25)
    assert otel.values("dibs.lock.acquire.duration") == expected


def test_only_an_error_has_a_type(otel: Otel, observe: OtelObserver) -> None:
    observe(event("failed", waited=2.0, error=dibs.StoreUnavailable("gone")))
    observe(event("failed", waited=1.0))
    observe(event("timed_out", waited=1.0, error=dibs.AcquireTimeout("late")))
    failed = {**REDIS, "outcome": "error", "contended": False}
    assert otel.values("dibs.lock.acquire.duration") == {
        row(**failed, error="StoreUnavailable"): (1, 2.0),
        row(**failed, error="_OTHER"): (1, 1.0),
        row(**REDIS, outcome="timeout", contended=False): (1, 1.0),
    }


def test_a_release_ends_a_hold(otel: Otel, observe: OtelObserver) -> None:
    for number, what in enumerate(("released", "given_back"), 1):
        observe(event("acquired"))
        assert otel.values("dibs.lock.held") == {row(**REDIS): 1}
        observe(event(what, held=3.5))
        assert otel.values("dibs.lock.held") == {row(**REDIS): 0}, "a series that was seen once stays"
        assert otel.values("dibs.lock.hold.duration") == {row(**REDIS, end="released"): (number, 3.5 * number)}
    assert otel.values("dibs.lock.losses") == {}
    assert otel.values("dibs.semaphore.usage") == otel.values("dibs.semaphore.limit") == {}


def test_a_loss_ends_a_hold_and_is_counted() -> None:
    for reason in get_args(LossReason):
        with Otel() as otel:
            observe = otel.observer()
            observe(event("acquired"))
            observe(event("lost", held=3.5, reason=reason))
            assert not any(otel.values("dibs.lock.held").values())
            end = ENDS.get(reason, "lost")
            assert otel.values("dibs.lock.hold.duration") == {row(**REDIS, end=end): (1, 3.5)}
            assert otel.values("dibs.lock.losses") == {row(backend="redis", group="invoice:*", reason=reason): 1}


def test_a_waiter_waits_until_its_acquire_ends(otel: Otel, observe: OtelObserver) -> None:
    for what in ("acquired", "timed_out", "cancelled", "failed"):
        observe(event("waiting"))
        observe(event("waiting"))
        assert otel.values("dibs.lock.waiting") == {row(**REDIS): 2}
        observe(event(what, contended=True))
        observe(event("acquired", contended=False, token=8))
        assert otel.values("dibs.lock.waiting") == {row(**REDIS): 1}
        observe(event(what, contended=True, token=9))
        assert otel.values("dibs.lock.waiting") == {row(**REDIS): 0}


def test_renewals_are_counted_with_the_lease_that_was_left(otel: Otel, observe: OtelObserver) -> None:
    observe(event("renewed", left=19.5))
    observe(event("renewal_late", left=3.0))
    observe(event("renewal_late", left=-1.0, error=dibs.StoreUnavailable("gone")))
    counted = {
        outcome: row(backend="redis", group="invoice:*", outcome=outcome) for outcome in ("renewed", "late", "failed")
    }
    assert otel.values("dibs.lock.renewals") == dict.fromkeys(counted.values(), 1)
    assert otel.values("dibs.lock.lease.remaining") == {row(backend="redis"): (3, 22.5)}


def test_a_lock_in_a_transaction_is_acquired_and_not_held(otel: Otel, observe: OtelObserver) -> None:
    observe(event("acquired", mode="transaction", waited=1.0))
    inside = {**REDIS, "mode": "transaction"}
    assert otel.values("dibs.lock.acquire.duration") == {row(**inside, outcome="acquired", contended=False): (1, 1.0)}
    assert otel.values("dibs.lock.held") == {}


def test_a_semaphore_has_a_usage_and_a_limit(otel: Otel, observe: OtelObserver) -> None:
    pool = {"kind": "semaphore", "name": "pool:1", "capacity": 5}
    other = {"kind": "semaphore", "name": "pool:2", "capacity": 10}
    group = row(backend="redis", group="pool:*")
    observe(event("acquired", **pool, weight=2, token=1))
    observe(event("acquired", **pool, weight=1, token=2))
    observe(event("acquired", **other, weight=4, token=1))
    assert (otel.values("dibs.semaphore.usage"), otel.values("dibs.semaphore.limit")) == ({group: 7}, {group: 15})
    observe(event("released", **pool, weight=2, token=1))
    assert (otel.values("dibs.semaphore.usage"), otel.values("dibs.semaphore.limit")) == ({group: 5}, {group: 15})
    observe(event("released", **pool, weight=1, token=2))
    observe(event("lost", **other, weight=4, token=1, reason="expired"))
    assert (otel.values("dibs.semaphore.usage"), otel.values("dibs.semaphore.limit")) == ({group: 0}, {group: 0})


def test_a_hold_ends_with_the_attributes_that_it_began_with(otel: Otel, observe: OtelObserver) -> None:
    """A write lock may be downgraded meanwhile."""
    observe(event("acquired", kind="rw", mode="exclusive"))
    observe(event("released", kind="rw", mode="shared", held=1.0))
    assert not any(otel.values("dibs.lock.held").values())
    assert otel.values("dibs.lock.hold.duration") == {row(**REDIS, end="released"): (1, 1.0)}


def test_ends_whose_begin_was_not_seen_make_nothing_negative(otel: Otel, observe: OtelObserver) -> None:
    observe(event("released", held=9.0, token=3))
    observe(event("timed_out", contended=True))
    observe(event("acquired", token=4))
    assert otel.values("dibs.lock.held") == {row(**REDIS): 1}
    assert not any(otel.values("dibs.lock.waiting").values())
    assert otel.values("dibs.lock.hold.duration") == {}


def test_holds_with_one_token_end_in_any_order(otel: Otel, observe: OtelObserver) -> None:
    """A write lock and a read lock inside it; the write lock is released first."""
    observe(event("acquired", kind="rw", hold=1))
    observe(event("acquired", kind="rw", mode="shared", hold=2))
    observe(event("released", kind="rw", hold=1, held=3.0))
    assert otel.values("dibs.lock.held")[row(backend="redis", mode="shared", group="invoice:*")] == 1
    observe(event("released", kind="rw", mode="shared", hold=2, held=1.0))
    durations = otel.values("dibs.lock.hold.duration")
    assert {dict(key)["mode"]: value for key, value in durations.items()} == {"exclusive": (1, 3.0), "shared": (1, 1.0)}


def test_the_end_of_a_permit_of_a_rate_limit_is_no_loss(otel: Otel, observe: OtelObserver) -> None:
    for kind, token in (("semaphore", 1), ("mutex", 2)):
        observe(event("acquired", kind=kind, token=token))
        observe(event("lost", kind=kind, token=token, reason="expired"))
    assert sum(otel.values("dibs.lock.losses").values()) == 1


def test_holds_of_two_namespaces_may_look_the_same(otel: Otel, observe: OtelObserver) -> None:
    observe(event("acquired"))
    observe(event("acquired"))
    observe(event("released"))
    assert otel.values("dibs.lock.held") == {row(**REDIS): 1}


def test_a_group_stands_for_the_name(otel: Otel) -> None:
    expected = set()
    groups: dict[str, Any] = {
        "invoice:*": None,
        "invoice:4*": ["shop", "invoice:4*"],
        "other": ["shop"],
        "invoice:42": str,
    }
    for shown, group in groups.items():
        otel.observer(group)(event("busy"))
        expected.add(shown)
        assert {dict(found)["group"] for found in otel.values("dibs.lock.acquire.duration")} == expected
    wrong: Any
    for wrong in ("invoice:*", [1], 7):
        with pytest.raises(TypeError):
            OtelObserver(meter_provider=otel.provider, group=wrong)
        with pytest.raises(TypeError):
            PrometheusObserver(registry=CollectorRegistry(), group=wrong)


def every_event() -> Iterator[Event]:
    """Each event several times, with all values of its fields, in an order that makes sense."""
    numbers = random.Random(8)
    locks = (("mutex", "exclusive", 1), ("rw", "shared", 1), ("semaphore", "exclusive", 6), ("mutex", "transaction", 1))
    for token, (backend, (kind, mode, capacity)) in enumerate(itertools.product(("redis", "sqlite"), locks), 1):
        same = {"backend": backend, "kind": kind, "mode": mode, "capacity": capacity, "weight": min(capacity, 2)}
        for reason in get_args(LossReason):
            waited = numbers.choice((0.0004, 0.02, 7.0))
            yield event("waiting", **same, name="a:1")
            yield event("acquired", **same, name="a:1", token=token, waited=waited, contended=True)
            yield event("renewed", **same, name="a:1", token=token, left=20.0)
            yield event("renewal_late", **same, name="a:1", token=token, left=2.0)
            yield event("renewal_late", **same, name="a:1", token=token, left=1.0, error=dibs.StoreError("x"))
            if mode != "transaction":
                yield event("lost", **same, name="a:1", token=token, held=numbers.random() * 100, reason=reason)
        for what in ("busy", "timed_out", "cancelled"):
            yield event(what, **same, name="b", waited=numbers.random())
        yield event("failed", **same, name="b", error=dibs.StoreError("x"), waited=numbers.random())
        yield event("acquired", **same, name="c/1", token=token)
        yield event("acquired", **same, name="c/2", token=token)
        if mode != "transaction":
            yield event(numbers.choice(("released", "given_back")), **same, name="c/2", token=token, held=0.5)
        yield event("waiting", **same, name="b")
        for what in ("revoked", "broken", "leader_changed", "store_unreachable", "store_back"):
            yield event(what, **same)


def test_both_libraries_show_the_same(otel: Otel) -> None:
    prometheus = Prometheus()
    observers = (otel.observer(), prometheus.observer())
    seen = set()
    for number, one in enumerate(every_event()):
        seen.add(one.what)
        for observe in observers:
            observe(one)
        if number % 200 == 150:
            assert otel.samples() == pytest.approx(prometheus.samples())
    assert seen == set(get_args(What))
    assert otel.samples() == pytest.approx(prometheus.samples())
    names = {name for name, _ in prometheus.samples()}
    for name in (
        "dibs_lock_acquire_duration_seconds_bucket",
        "dibs_lock_losses_total",
        "dibs_lock_lease_remaining_seconds_sum",
    ):
        assert name in names
    assert sum(value for (name, _), value in prometheus.samples().items() if name == "dibs_lock_held") == 6


@pytest.mark.parametrize("library", ["otel", "prometheus"])
def test_observers_of_two_clients_add_up_and_end_apart(library: str, otel: Otel) -> None:
    shown: Any = otel if library == "otel" else Prometheus()
    one, other = shown.observer(), shown.observer()
    held = ("dibs_lock_held", (("backend", "redis"), ("group", "invoice:*"), ("mode", "exclusive")))
    one(event("acquired"))
    other(event("acquired"))
    assert shown.samples()[held] == 2
    one.close()
    assert shown.samples()[held] == 1
    one(event("acquired"))  # by a thread that was about to report it
    other(event("released"))
    assert shown.samples()[held] == 0


def test_threads_lose_no_count(otel: Otel, observe: OtelObserver) -> None:

    def pairs(thread: int) -> None:
        for token in range(300):
            mine = {"token": token, "store": f"redis://{thread % 2}"}
            observe(event("waiting", **mine))
            observe(event("acquired", contended=True, **mine))
            observe(event("released", **mine))
        observe(event("acquired", token=1000 + thread))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(pairs, range(8)))
    assert otel.values("dibs.lock.held") == {row(**REDIS): 8}
    assert not any(otel.values("dibs.lock.waiting").values())
    assert sum(count for count, _ in otel.values("dibs.lock.acquire.duration").values()) == 8 * 301


def test_a_fault_of_the_library_leaves_the_counts_right() -> None:
    def bind(metric: measures.Metric, values: measures.Row) -> measures.Record:
        def fail(_: float) -> None:
            raise OSError("no disk")

        return fail

    found = measures.Measures(bind)
    for what, held in (("acquired", 1), ("released", 0)):
        with pytest.raises(OSError, match="no disk"):
            found(event(what))
        assert sum(found.gauges()[measures.HELD].values()) == held


def test_raw_names_do_not_fill_the_memory() -> None:
    found = measures.Measures(lambda *_: lambda _: None, str)
    for number in range(measures._MOST_ROWS + 10):
        found(event("acquired", name=f"invoice:{number}"))
        found(event("released", name=f"invoice:{number}"))
    assert len(found._acquires) == 10
    assert len(found.gauges()[measures.HELD]) == measures._MOST_ROWS + 10
    assert len(found.gauges()[measures.HELD]) == 0


def test_nothing_is_left_of_a_registry_that_is_gone() -> None:
    observer = PrometheusObserver(registry=(registry := CollectorRegistry()))
    observer(event("acquired"))
    seen = weakref.ref(registry)
    del registry, observer
    gc.collect()
    assert seen() is None


# docs/production/metrics.md.


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
