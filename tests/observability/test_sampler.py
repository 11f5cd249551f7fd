"""The sampler: samples by hand, their history, the graph of waiters, and its scans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

import dibs
from dibs.info import LockInfo, Participant
from dibs.monitor import history, sampler
from dibs.monitor.graph import MOST_NODES, wait_for_graph
from dibs.monitor.history import History, lanes
from dibs.monitor.sampler import Sampler, Viewer
from observability.dashboards import LIMIT, NOON, Proxy, Watch
from process.children import until


def person(owner: str, token: int, since: float = 0.0, remaining: float = 30.0) -> Participant:
    at = NOON + timedelta(seconds=since)
    return Participant(owner=owner, host="web", pid=1, thread=owner, token=token, since=at, remaining=remaining)


def held(name: str, *holders: Participant, waiters: tuple[Participant, ...] = ()) -> LockInfo:
    return LockInfo(name=name, holders=holders, waiters=waiters)


def test_a_draining_lease_is_no_change_and_a_renewal_is_one(watch: Watch) -> None:
    assert watch.see(held("a", person("ana", 1, remaining=30)))
    assert not watch.see(held("a", person("ana", 1, remaining=29)))
    assert not watch.see(held("a", person("ana", 1, remaining=28.1)))
    assert watch.see(held("a", person("ana", 1, remaining=29.9)))
    assert watch.entry.renewed == {1}
    assert watch.entry.leases == {1: 30}


def test_a_session_without_a_lease_is_never_renewed(watch: Watch) -> None:
    for remaining in (0.0, 40.0):  # PostgreSQL and MySQL; ZooKeeper
        watch.see(held("a", person("ana", 1, remaining=remaining)))
        assert not watch.see(held("a", person("ana", 1, remaining=remaining)))


@pytest.mark.parametrize(
    ("last", "gap", "end"), [(20.0, 1.0, "released"), (0.5, 1.0, "expired"), (2.9, 5.0, "released")]
)
def test_the_end_of_a_hold(watch: Watch, last: float, gap: float, end: str) -> None:
    """The third: a short lease between two rare samples may have been renewed, and proves nothing."""
    watch.see(held("a", person("ana", 1, remaining=3.0 if last == 2.9 else 30.0)))
    watch.see(held("a", person("ana", 1, remaining=last)))
    watch.see(held("a"), after=gap)
    assert watch.whats() == [end]
    assert watch.sampler.history.expired == (end == "expired")
    assert not watch.sampler.entries
    assert watch.sampler.held == 0


def test_a_hand_over_is_counted_with_its_wait(watch: Watch) -> None:
    watch.see(held("a", person("ana", 1)))
    watch.see(held("a", person("ana", 1), waiters=(person("bo", 2, since=1.5),)))
    watch.see(held("a", person("bo", 2, since=2.5)))
    assert watch.whats() == ["waiting", "released", "acquired"]
    assert list(watch.record.waits) == [1.0]
    now = NOON + timedelta(seconds=60)
    assert watch.sampler.history.handovers_per_minute(now, NOON) == 1
    drawn = lanes(watch.record, held("a", person("bo", 2, since=2.5)), 9)
    found = {owner: [(span.kind, span.end) for span in spans] for owner, spans, _ in drawn}
    assert found == {"ana@web pid 1": [("held", "released")], "bo@web pid 1": [("waited", None), ("held", None)]}


def test_an_exclusive_hold_ends_before_the_next_begins(watch: Watch) -> None:
    """The sample that shows the hand-over is later than it."""
    watch.see(held("a", person("ana", 1)))
    watch.see(held("a", person("bo", 2, since=1.5)))
    at = NOON + timedelta(seconds=1.5)
    assert [(one.what, one.at) for one in watch.record.changes] == [("released", at), ("acquired", at)]


def test_the_time_of_a_grant_is_that_of_the_sample_where_the_store_tells_that_of_the_wait(watch: Watch) -> None:
    watch.see(held("a", person("ana", 1)))
    watch.see(held("a", person("ana", 1), waiters=(person("bo", 2, since=1.5),)))
    watch.see(held("a", person("bo", 2, since=1.50001)))
    assert [round(wait, 3) for wait in watch.record.waits] == [1.5]
    assert watch.record.changes[-1].at == NOON + timedelta(seconds=3)


def test_a_hold_that_ended_while_nobody_viewed_is_not_drawn(watch: Watch) -> None:
    watch.see(held("a", person("ana", 1)))
    watch.see(held("a", person("bo", 2, since=1.5)))
    later = held("a", person("cy", 3, since=60))
    watch.sampler._note(later, NOON + timedelta(seconds=61), baseline=True)
    drawn = lanes(watch.sampler.history.record("a"), later, 9)
    ends = [(owner, [span.end for span in spans]) for owner, spans, _ in drawn]
    assert ends == [("cy@web pid 1", [None]), ("ana@web pid 1", ["released"])]


def test_a_wait_that_grows_is_a_change(watch: Watch) -> None:
    waited = held("a", person("ana", 1), waiters=(person("bo", 2),))
    watch.see(waited)
    assert watch.see(waited)


def test_late_renewals_are_a_change(watch: Watch) -> None:
    for remaining in (30, 29, 29.9, 20, 15.1):
        watch.see(held("a", person("ana", 1, remaining=remaining)))
    assert watch.entry.trouble() is None
    assert watch.see(held("a", person("ana", 1, remaining=14.1)))
    assert watch.entry.trouble() == "renewals are late"
    assert not watch.see(held("a", person("ana", 1, remaining=13.1)))


def test_waiters_without_tokens_are_told_apart(watch: Watch) -> None:
    two = (person("bo", 0, since=1), person("cy", 0, since=1))
    watch.see(held("a", person("ana", 1)))
    watch.see(held("a", person("ana", 1), waiters=two))
    watch.see(held("a", person("ana", 1), waiters=(person("bo", 0, since=1.0007), two[1])))
    watch.see(held("a", person("ana", 1), waiters=two[:1]))
    assert watch.whats() == ["waiting", "waiting", "left"]


@pytest.mark.parametrize("token", [0, 2])
def test_a_waiter_that_gets_another_token_did_not_leave(watch: Watch, token: int) -> None:
    """In session mode the server queues the waiters: only the hold has the token."""
    watch.see(held("a", person("ana", 1)))
    watch.see(held("a", person("ana", 1), waiters=(person("bo", token, since=1), person("cy", token and 3, since=1))))
    watch.see(held("a", person("bo", 9, since=2.5)))
    assert watch.whats() == ["waiting", "waiting", "released", "left", "acquired"]
    assert list(watch.record.waits) == [1.5]


def test_the_wait_of_a_hold_that_has_the_time_of_its_waiter(watch: Watch) -> None:
    watch.see(held("a", person("ana", 1), waiters=(person("bo", 2, since=1),)))
    watch.see(held("a", person("bo", 2, since=1)), after=3)
    assert list(watch.record.waits) == [3.0]


def test_heat_and_pairs_count_waiter_seconds() -> None:
    found = History()
    info = held("a", person("ana", 1), waiters=(person("bo", 2), person("cy", 3)))
    for second in range(12):
        found.waited(info, 1.0, NOON + timedelta(seconds=second))
    end, rows = found.heat(NOON + timedelta(seconds=11), 5)
    assert end == NOON + timedelta(seconds=20)
    assert [(name, cells[-2:], len(cells)) for name, cells in rows] == [("a", [20.0, 4.0], 60)]
    assert [(pair.waiter, seconds) for pair, seconds in found.pairs(5)] == [("bo@web pid 1", 12), ("cy@web pid 1", 12)]


def test_memory_is_bounded_whatever_the_names() -> None:
    found = History()
    for number in range(3000):
        info = held(f"n{number}", person("ana", 1), waiters=(person(f"w{number}", 2),))
        found.compare(held(f"n{number}"), info, set(), NOON)
        found.waited(info, 1.0, NOON)
    for number in range(3000):
        found.compare(held("one"), held("one", person("ana", number)), set(), NOON)
    assert len(found._records) <= history._MOST_NAMES
    assert len(found._heat) <= history._MOST_WARM
    assert len(found._pairs) <= history._MOST_PAIRS
    record = found.record("one")
    assert len(record.changes) <= history._MOST_EVENTS


def graph_of(*locks: LockInfo) -> tuple[list[str], int]:
    graph = wait_for_graph({info.name: info for info in locks}, [info.name for info in locks if info.waiters])
    return ([], 0) if graph is None else (graph.cycles, len(graph.people) + len(graph.names))


def test_a_graph_is_drawn_only_if_a_holder_waits() -> None:
    assert graph_of(held("a", person("ana", 1), waiters=(person("bo", 2),))) == ([], 0)
    chain = held("a", person("ana", 1), waiters=(person("bo", 2),)), held("b", person("bo", 1))
    assert graph_of(*chain) == ([], 4)


def test_cycles_are_named() -> None:
    one = held("billing", person("ana", 1), waiters=(person("bo", 2),))
    two = held("ledger", person("bo", 1), waiters=(person("ana", 2),))
    said = 'ana@web pid 1 waits for "ledger", held by bo@web pid 1, which waits for "billing", held by ana@web pid 1'
    assert graph_of(one, two) == ([said], 4)
    assert graph_of(two, one) == ([said], 4)
    itself = held("a", person("ana", 1), waiters=(person("ana", 2),))
    assert graph_of(itself)[0] == ['ana@web pid 1 waits for "a", which a thread or task of that name holds']


def test_a_cycle_that_another_holder_can_end_is_no_deadlock() -> None:
    pool = LockInfo(
        name="pool", kind="semaphore", capacity=2, holders=(person("bo", 1), person("cy", 2)),
        waiters=(person("ana", 3),),
    )  # fmt: skip
    one = held("one", person("ana", 1), waiters=(person("bo", 2),))
    assert graph_of(pool, one)[0] == []
    two = held("two", person("ana", 1), waiters=(person("cy", 2),))
    assert len(graph_of(pool, one, two)[0]) == 2


def test_participants_that_say_nothing_are_not_one() -> None:
    unknown = [Participant(token=token) for token in (1, 2)]
    assert graph_of(held("a", unknown[0], waiters=(unknown[1],))) == ([], 0)


def test_a_large_graph_is_cut() -> None:
    ring = [held(f"n{n}", person(f"p{n}", 1), waiters=(person(f"p{n - 1}", 2),)) for n in range(1, 2000)]
    cycles, nodes = graph_of(*ring)
    assert not cycles
    assert 10 < nodes <= MOST_NODES


def test_between_scans_only_shown_names_are_read(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """With scans that are rare, a change of a shown name is seen at the next tick, and no other change is."""
    monkeypatch.setattr(sampler, "TIME_SHARE", 1e-9)
    monkeypatch.setattr(sampler, "TICK", 0.05)
    sampled = threading.Event()
    found = Sampler(client)
    monkeypatch.setattr(sampler, "MOST_SHOWN", 2)
    greedy, viewer = Viewer(lambda: None, lambda: ["a", "b", "c"]), Viewer(sampled.set, lambda: ["shown"])
    found.join(greedy)
    found.join(viewer)
    try:
        assert sampled.wait(LIMIT)
        with client.lock("shown") as hold, client.lock("hidden"):
            until(lambda: "shown" in found.entries)
            assert found.entries["shown"].info.holders[0].token == hold.token
            assert "hidden" not in found.entries
        until(lambda: "shown" not in found.entries)
        assert found.scans == 1
    finally:
        found.leave(greedy)
        found.leave(viewer)
        found.close()
    assert not found.running


def test_a_long_scan_does_not_delay_the_shown_names(client: dibs.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "TICK", 0.05)
    scans: list[int] = []

    def endless(prefix: str = "") -> Iterator[LockInfo]:
        """The second scan ends when the change is seen."""
        scans.append(1)
        while len(scans) > 1 and "shown" not in found.entries:
            yield held("other", person("ana", 1))

    found = Sampler(Proxy(client, locks=endless))
    viewer = Viewer(lambda: None, lambda: ["shown"])
    found.join(viewer)
    try:
        until(lambda: len(scans) == 2)
        with client.lock("shown"):
            until(lambda: "shown" in found.entries)
    finally:
        found.leave(viewer)
        found.close()
