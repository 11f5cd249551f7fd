"""Claims and calls that end leave nothing in the client or on the server. A connection can be made beforehand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

import dibs
import dibs.aio
from dibs.backends.zookeeper.wire.codec import Request
from dibs.backends.zookeeper.wire.exchange import Exchange
from dibs.backends.zookeeper.wire.session import PendingRequest
from dibs.core.queue import NOWHERE
from dibs.runtime.threads import step
from dibs.testing.contract.harness import eventually
from dibs.testing.contract.seats import Seat
from lab.curator import PATIENCE
from lab.faults import BlackHole, Latency, Refuse
from lab.proxy import Proxy
from lab.servers import ports
from lab.servers.supervisor import Server
from lab.stopwatch import Stopwatch
from process.children import until
from store.zookeeper.faulty import DELETE, MULTI

GET_CHILDREN = 12
NO_DELETE = [make_acl("world", "anyone", all=False, read=True, create=True, write=True, admin=True)]


def root(url: str) -> str:
    return f"/{url.rpartition('/')[2]}"


def children(kazoo: KazooClient, url: str, name: str) -> list[str]:
    with suppress(NoNodeError):
        return list(kazoo.get_children(f"{root(url)}/{name}"))
    return []


def count(requests: list[Request], operation: int) -> int:
    return sum(request.operation == operation for request in requests)


def test_many_claims_are_given_back_in_one_pipeline(
    seat: Seat, url: str, kazoo: KazooClient, requests: list[Request]
) -> None:
    held = [seat.joined(name=f"name{number % 50}")[0] for number in range(150)]
    (semaphore, _) = seat.joined(name="permits", kind="semaphore", capacity=5, weight=3)
    requests.clear()
    results = step(seat.queue.leave_all([(claim, True) for claim in (*held, semaphore)], seat.soon))
    assert list(results) == [None] * 151
    assert count(requests, DELETE) == 153
    assert count(requests, GET_CHILDREN) == 0
    assert not any(children(kazoo, url, f"name{number}") for number in range(50))
    assert not children(kazoo, url, "permits/leases")


def test_claims_whose_join_was_not_answered_are_looked_for_and_cannot_come_later(
    seat: Seat, url: str, kazoo: KazooClient, requests: list[Request]
) -> None:
    held = [seat.joined(name="a")[0] for _ in range(20)]
    others = [seat.joined(name="b")[0] for _ in range(20)]
    unknown = seat.claim(name="b")
    unknown.asked = True
    for claim in held:
        seat.store._opened.node_claims.finish(claim.id)  # as if its leave had failed before
    requests.clear()
    leaving = [*((claim, True) for claim in held), *((claim, False) for claim in (*others, unknown))]
    assert list(step(seat.queue.leave_all(leaving, seat.soon))) == [None] * 41
    assert count(requests, GET_CHILDREN) == 2, "each directory is listed once"
    assert not children(kazoo, url, "a")
    assert not children(kazoo, url, "b")
    assert seat.join(others[0]) is None
    assert seat.join(unknown) is None


def test_a_refused_claim_does_not_keep_the_others(seat: Seat, url: str, kazoo: KazooClient) -> None:
    kept, freed = seat.joined(name="kept")[0], seat.joined(name="freed")[0]
    kazoo.set_acls(f"{root(url)}/kept", NO_DELETE)
    first, second = step(seat.queue.leave_all([(kept, True), (freed, True)], seat.soon))
    assert isinstance(first, dibs.StoreError)
    assert not isinstance(first, dibs.StoreUnavailable)
    assert second is None
    assert len(children(kazoo, url, "kept")) == 1
    kazoo.set_acls(f"{root(url)}/kept", OPEN_ACL_UNSAFE)
    assert list(step(seat.queue.leave_all([(kept, True)], seat.soon))) == [None]
    assert not children(kazoo, url, "kept")


def test_a_silent_server_answers_for_none(seat: Seat) -> None:
    claim = seat.joined()[0]
    with pytest.raises(dibs.StoreUnavailable):
        step(seat.queue.leave_all([(claim, True)], seat.now()))


@pytest.mark.gate
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


@pytest.mark.gate
def test_a_refused_delete_is_tried_for_as_long_as_the_session_lives(
    url: str, kazoo: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.core.give_backs._AFTER_REFUSAL", 0.1)
    path = f"{root(url)}/dibs/a"
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


@pytest.mark.parametrize("in_flight", [pytest.param(False, marks=pytest.mark.gate), True])
def test_claims_that_leave_without_a_connection_watch_nothing_afterwards(
    seat: Seat, url: str, server: Server, in_flight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches are set again on the next connection: an unneeded one would be set again for ever."""
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


async def cancelled_at_each_wait(make: Callable[[int], Awaitable[object]]) -> None:
    """Cancel a call at its first wait, another at its second, and so on, until one ends."""
    for number in range(50):
        coroutine = make(number).__await__()
        waits = 0
        try:
            while True:
                future = next(coroutine)
                if waits == number:
                    coroutine.throw(asyncio.CancelledError())
                waits += 1
                future._asyncio_future_blocking = False
                await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
        except StopIteration:
            return
    raise AssertionError("it waits more often than that")


def test_a_put_that_ended_in_conflict_is_forgotten(url: str) -> None:
    with dibs.connect(url) as client:
        cell = client.cell("a")
        cell.set(b"1", 0)
        for _ in range(5):
            with pytest.raises(dibs.Conflict):
                cell.set(b"2", 0)
        puts = client._core.store._opened.puts
        assert not puts._unanswered
        assert len(puts.versions) == 1


def test_cancelled_puts_leave_no_note(url: str, kazoo: KazooClient) -> None:
    path = f"{root(url)}/dibs/%written"

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            await client.cell("first").set(b"0", 0)
            await cancelled_at_each_wait(lambda number: client.cell(f"c{number}").set(b"1", 0))
            await eventually(lambda: not kazoo.get_children(path), PATIENCE)

    asyncio.run(play())


@pytest.mark.parametrize("kind", [pytest.param("lock", marks=pytest.mark.gate), "semaphore"])
def test_cancelled_acquires_leave_no_unused_directory(url: str, kazoo: KazooClient, kind: str) -> None:
    """Not every server removes such a container."""

    def make(client: dibs.aio.Client, name: str) -> dibs.aio.Lock:
        return client.lock(name) if kind == "lock" else client.semaphore(name, 2)

    async def play() -> None:
        async with dibs.aio.connect(url) as client:
            async with client.lock("connected"):
                """And `dibs` is there."""
            await cancelled_at_each_wait(lambda number: make(client, f"n{number}").acquire())

    asyncio.run(play())
    unused = []
    for name in kazoo.get_children(f"{root(url)}/dibs"):
        for path in (f"{root(url)}/dibs/{name}", f"{root(url)}/dibs/{name}/locks", f"{root(url)}/dibs/{name}/leases"):
            stat = kazoo.exists(path)
            if stat is not None and stat.cversion == 0:
                unused.append(path)
    assert not unused


@pytest.mark.alone
def test_permits_are_taken_at_once_though_their_directory_was_removed(
    url: str, kazoo: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the create, as the server removes empty containers."""
    path = f"{root(url)}/dibs/a/leases"
    removed: list[str] = []
    deal = Exchange.send

    def remove_first(exchange: Exchange, calls: list[PendingRequest], *more: object, **options: object) -> bool:
        if any(call.request.operation == MULTI for call in calls) and not removed:
            until(lambda: kazoo.exists(path) is not None, what="it is there")
            removed.append(path)
            kazoo.delete(path)
        return deal(exchange, calls, *more, **options)

    with dibs.connect(url, lease=30) as client:
        semaphore = client.semaphore("a", 1)
        with semaphore:
            """Its directories are there now."""
        monkeypatch.setattr(Exchange, "send", remove_first)
        with Stopwatch() as watch:
            hold = semaphore.acquire(timeout=PATIENCE)
            took = watch.seconds()
        assert removed
        assert hold is not None
        assert took < 5, "the next renewal looked again"
        hold.release()
