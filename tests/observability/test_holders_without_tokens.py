"""Holders that have neither a token nor a time since when they hold, as in Redisson's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import dibs
import dibs.dashboard
from dibs.dashboard.views import key_of
from dibs.info import LockInfo, Participant
from dibs.monitor import break_log
from dibs.monitor.changes import Follower
from dibs.monitor.history import lanes
from dibs.monitor.scan import Scan
from lab.servers import shared_redis
from observability.dashboards import NOON, Site, Watch


def held(waiter: str = "", **holders: float) -> LockInfo:
    """By the owner of each holder: its seconds left."""
    people = tuple(Participant(owner=owner, remaining=left) for owner, left in holders.items())
    return LockInfo(name="a", holders=people, waiters=(Participant(owner=waiter),) if waiter else ())


def spans(watch: Watch) -> dict[str, list[tuple[str, float, float | None, str | None]]]:
    """By owner: kind, from when, until when (None: not over), and how it ended."""
    entry = watch.sampler.entries.get("a")
    info, seen = (held(), {}) if entry is None else (entry.info, entry.seen)
    return {
        who: [(one.kind, _second(one.start), None if one.to is None else _second(one.to), one.end) for one in own]
        for who, own, _ in lanes(watch.record, info, 9, seen)
    }


def _second(instant: datetime) -> float:
    return (instant - NOON).total_seconds()


def test_two_holders_are_not_merged_in_scans() -> None:
    follower = Follower()
    seen = [held(x=30, y=30), held(x=20, y=4), held(x=30)]
    *_, last = (follower.changes(Scan(NOON + timedelta(seconds=10 * n), 0.1, [info])) for n, info in enumerate(seen))
    assert [(one.name, one.holder.owner) for one in last.expired] == [("a", "y")]
    assert (last.taken, last.released, last.ended) == ([], [], [])
    assert follower.longest == {("a", "x"): 30}


def test_two_holders_are_not_merged_in_samples(watch: Watch) -> None:
    watch.see(held(x=30, y=30), held(x=30, y=0.5), held(x=29))
    assert [(one.what, one.who, one.seconds) for one in watch.record.changes] == [("expired", "y", 0.0)]
    watch.see(held(x=28, z=30), held(z=29))
    assert [(one.what, one.who) for one in watch.record.changes][1:] == [("acquired", "z"), ("released", "x")]
    assert watch.entry.leases == {"z": 30}


def test_a_holder_that_took_the_lock_again_did_not_renew_it(watch: Watch) -> None:
    """A thread of Java has one id for all its holds."""
    watch.see(held(x=10), held(x=10), held(x=9.5), held(x=4), held(x=3))
    assert watch.entry.trouble() is None
    assert watch.entry.renewed == set()


def test_the_timeline_begins_when_somebody_was_first_seen(watch: Watch) -> None:
    watch.see(held(x=30), held(x=29))
    assert spans(watch) == {"x": [("held", 1, None, None)]}
    watch.see(held(x=28, waiter="y"), held(x=27, waiter="y"), held(y=30))
    assert spans(watch) == {"y": [("waited", 3, 5, None), ("held", 5, None, None)]}
    watch.see(held(), held(y=30), held())
    assert spans(watch) == {"y": [("waited", 3, 5, None), ("held", 5, 6, "released"), ("held", 7, 8, "released")]}, (
        "one id, two holds"
    )
    assert not watch.record.waits, "how long it waited is not known"


def test_nothing_is_said_of_the_time_when_nobody_looked(watch: Watch) -> None:
    watch.see(held(), held(x=30))
    watch.see(held(x=25), baseline=True)
    assert spans(watch) == {"x": [("held", 3, None, None)]}
    watch.see(held(z=25), baseline=True)
    assert spans(watch) == {"z": [("held", 4, None, None)]}


def test_a_break_without_a_token_does_not_mark_other_holds(watch: Watch) -> None:
    watch.see(held(), held(x=30), held(), held(y=30), held())
    watch.sampler.history.broken("a", 0)
    assert watch.whats() == ["acquired", "released", "acquired", "released"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"{shared_redis.fresh(tmp_path)}&layout=redisson"


@pytest.fixture
def client(url: str) -> Iterator[dibs.Client]:
    with dibs.connect(url) as made:
        yield made


@pytest.mark.slow
def test_the_dashboard_shows_what_is_known(client: dibs.Client, site: Site) -> None:
    with client.lock("a"), client.lock("b", fenced=True) as fenced:
        (holder,) = client.inspect("a").holders
        rows = {row["name"]: row for row in site.ask("api/view?sort=age").json["rows"]}
        page = site.ask(f"api/lock?key={key_of('a')}").json
    assert (rows["a"]["holder"], rows["a"]["since"], rows["a"]["token"]) == (holder.owner, None, None)
    assert (rows["a"]["trouble"], 20 < rows["a"]["lease"] <= 30) == (None, True)
    assert (rows["b"]["since"], rows["b"]["token"]) == (None, fenced.token)
    assert [(one["who"], one["since"], one["token"]) for one in page["holders"]] == [(holder.owner, None, None)]
    assert page["break_command"].startswith(f"dibs break --holder {holder.owner} a --url ")
    assert not page["can_break"]
    assert all(span["from"] > "1971" for lane in page["lanes"] for span in lane["spans"])
    (store,) = site.ask("api/stores").json["stores"]
    assert "This store does not show the age of a hold." in store["limits"]


@pytest.mark.slow
def test_the_dashboard_breaks_no_hold_without_a_token(client: dibs.Client, site: Site) -> None:
    headers = {
        "Content-Type": "application/json", "Origin": f"http://127.0.0.1:{site.port}",
        "X-Dibs-CSRF": site.ask("api/stores").json["csrf"],
    }  # fmt: skip
    with client.lock("a"):
        for token in (0, None, "x"):
            body = {"store": "0", "key": key_of("a"), "token": token, "reason": "it hangs"}
            answer = site.ask("api/break", "POST", json.dumps(body).encode(), **headers)
            assert (answer.status, "dibs break NAME --holder ID" in answer.json["error"]) == (400, True)
            assert client.inspect("a").holders
    assert break_log.last(client, "a") is None
