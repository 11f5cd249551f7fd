"""Many claims given back at once, a connection made beforehand, and how long a reply takes: on a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import dibs
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.codec import Request
from dibs.core.queue import NOWHERE
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat
from lab.curator import PATIENCE
from lab.faults import BlackHole, Latency, Refuse
from lab.proxy import Proxy
from lab.servers import ports, shared
from lab.servers.supervisor import Server
from process.children import until

DELETE, GET_CHILDREN = 2, 12
NO_DELETE = [make_acl("world", "anyone", all=False, read=True, create=True, write=True, admin=True)]


@pytest.fixture
def url(server: Server, tmp_path: Path) -> str:
    return shared.fresh(tmp_path)


@pytest.fixture
def seat(url: str) -> Iterator[Seat]:
    made = Seat(url)
    yield made
    made.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The operations of all requests."""
    operations: list[int] = []
    encode = codec.encode

    def noting(xid: int, request: Request) -> bytes:
        operations.append(request.operation)
        return encode(xid, request)

    monkeypatch.setattr(codec, "encode", noting)
    return operations


def children(kazoo: KazooClient, url: str, name: str) -> list[str]:
    path = f"{url.rpartition('/')[2]}/{name}"
    try:
        return list(kazoo.get_children(path))
    except NoNodeError:
        return []


def test_many_claims_are_given_back_in_one_pipeline(seat: Seat, url: str, kazoo: KazooClient, asked: list[int]) -> None:
    held = [seat.joined(name=f"name{number % 50}")[0] for number in range(150)]
    (semaphore, _) = seat.joined(name="permits", kind="semaphore", capacity=5, weight=3)
    asked.clear()
    results = step(seat.queue.leave_all([(claim, True) for claim in (*held, semaphore)], seat.soon))
    assert list(results) == [None] * 151
    assert asked.count(DELETE) == 153
    assert GET_CHILDREN not in asked
    assert not any(children(kazoo, url, f"name{number}") for number in range(50))
    assert not children(kazoo, url, "permits/leases")


def test_claims_whose_join_was_not_answered_are_looked_for_and_cannot_come_later(
    seat: Seat, url: str, kazoo: KazooClient, asked: list[int]
) -> None:
    held = [seat.joined(name="a")[0] for _ in range(20)]
    others = [seat.joined(name="b")[0] for _ in range(20)]
    unknown = seat.claim(name="b")
    unknown.asked = True
    for claim in held:
        seat.store._opened.node_claims.finish(claim.id)  # as if its leave had failed before
    asked.clear()
    leaving = [*((claim, True) for claim in held), *((claim, False) for claim in (*others, unknown))]
    assert list(step(seat.queue.leave_all(leaving, seat.soon))) == [None] * 41
    assert asked.count(GET_CHILDREN) == 2, "each directory is listed once"
    assert not children(kazoo, url, "a")
    assert not children(kazoo, url, "b")
    assert seat.join(others[0]) is None
    assert seat.join(unknown) is None


def test_a_refused_claim_does_not_keep_the_others(seat: Seat, url: str, kazoo: KazooClient) -> None:
    kept, freed = seat.joined(name="kept")[0], seat.joined(name="freed")[0]
    kazoo.set_acls(f"{url.rpartition('/')[2]}/kept", NO_DELETE)
    first, second = step(seat.queue.leave_all([(kept, True), (freed, True)], seat.soon))
    assert isinstance(first, dibs.StoreError)
    assert not isinstance(first, dibs.StoreUnavailable)
    assert second is None
    assert len(children(kazoo, url, "kept")) == 1
    kazoo.set_acls(f"{url.rpartition('/')[2]}/kept", OPEN_ACL_UNSAFE)
    assert list(step(seat.queue.leave_all([(kept, True)], seat.soon))) == [None]
    assert not children(kazoo, url, "kept")


def test_a_silent_server_answers_for_none(seat: Seat) -> None:
    claim = seat.joined()[0]
    with pytest.raises(dibs.StoreUnavailable):
        step(seat.queue.leave_all([(claim, True)], seat.now()))


def test_a_connection_is_made_beforehand_and_the_round_trip_measured(server: Server, url: str) -> None:
    with Proxy((ports.HOST, server.port)) as proxy:
        seat = Seat(url.replace(f":{server.port}", f":{proxy.port}"))
        try:
            assert seat.queue.round_trip() == 0.0
            step(seat.queue.connect(seat.soon))
            assert len(proxy.links) == 1
            step(seat.queue.connect(seat.soon))
            for _ in range(30):
                seat.join(seat.claim(name="x"), NOWHERE)
            near = seat.queue.round_trip()
            assert near > 0.0
            proxy.add(Latency(near + 0.1))
            for _ in range(5):
                seat.join(seat.claim(name="x"), NOWHERE)
            assert seat.queue.round_trip() > near + 0.2, "there and back"
            assert seat.other_queue.round_trip() == seat.queue.round_trip()
        finally:
            seat.close()


def test_a_refused_delete_is_tried_for_as_long_as_the_session_lives(
    url: str, kazoo: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.core.give_backs._AFTER_REFUSAL", 0.1)
    path = f"{url.rpartition('/')[2]}/dibs/a"
    with dibs.connect(url, lease=3) as client:
        hold = client.lock("a").acquire(timeout=PATIENCE)
        assert hold is not None
        kazoo.set_acls(path, NO_DELETE)
        with pytest.raises(dibs.StoreError, match="ACL"):
            hold.release()
        over = time.monotonic() + 3.5
        until(lambda: time.monotonic() > over, what="the lease is over")
        kazoo.set_acls(path, OPEN_ACL_UNSAFE)
        with client.lock("b", timeout=PATIENCE) as other:
            until(lambda: not kazoo.get_children(path), within=5, what="it is given back after all")
            other.check()


@pytest.mark.parametrize("in_flight", [False, True], ids=["answered", "in flight"])
def test_claims_that_leave_without_a_connection_watch_nothing_afterwards(
    seat: Seat, url: str, server: Server, in_flight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches are set again on the next connection: one that nobody needs would be set again for ever."""
    monkeypatch.setattr("dibs.backends.zookeeper.node_claims.WATCHED_AFTER", 3600.0)
    seat.joined(name="a")
    with Proxy((ports.HOST, server.port)) as proxy:
        other = Seat(url.replace(str(server.port), str(proxy.port)))
        try:
            claims = [other.joined(name="a")[0] for _ in range(5)]
            client = other.store._opened.client
            until(lambda: client._exchange.watches, what="the nodes ahead are watched")
            if in_flight:
                proxy.add(BlackHole())
                for node_claim in other.queue._node_claims._by_id.values():  # type: ignore[attr-defined]
                    node_claim.watch_own()
            proxy.add(Refuse())
            client._exchange.break_("cut by the test")
            with pytest.raises(dibs.StoreUnavailable):
                step(other.queue.leave_all([(claim, True) for claim in claims], other.now() + 0.2))
            assert not client._exchange.watches
            proxy.heal()
            until(lambda: client.up, what="it is connected again")
            other.leave_all(*claims)
        finally:
            other.close()
