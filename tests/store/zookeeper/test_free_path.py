"""The free path at the level of the queue: its replies, and the cases that it leaves to `join` and `leave` unsent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import dibs
from dibs.backends.zookeeper.queue import ZookeeperQueue
from dibs.backends.zookeeper.queue_rule import prefix_of
from dibs.backends.zookeeper.wire import codec
from dibs.backends.zookeeper.wire.session import PendingRequest, Session
from dibs.core.queue import LOOK, NOWHERE, QUEUE, YOURS
from dibs.core.rule import Claim, Prepared, Standing
from dibs.runtime.threads import step
from lab.curator import PATIENCE
from process.children import until
from store.zookeeper.faulty import CREATE2, DELETE

GET_CHILDREN = 12
NAME = "dibs:free"


class Caller:
    """A client's queue, and claims on one name."""

    def __init__(self, client: dibs.Client, kind: str = "mutex") -> None:
        with client.lock("free", timeout=PATIENCE):
            """Connected, and the directory is there."""
        self.queue: ZookeeperQueue = client._core.opened._queue
        self.client = client._core.store._opened.client
        self.client._quiet = 3600.0  # the client's thread does not begin to read
        self.client.send(())
        until(lambda: not self.client._leads, what="nobody reads")
        self.now = client._core.now
        self.prepared = Prepared()
        self.kind = kind

    @property
    def in_time(self) -> float:
        return self.now() + PATIENCE

    def claim(self, name: str = NAME) -> Claim:
        by, id = self.in_time, os.urandom(16)
        return Claim(id, name, self.kind, 1, 1, 30.0, 5.0, by, b"c" * 16, '{"owner": "o"}', prepared=self.prepared)

    def take(self, claim: Claim) -> Standing:
        """Once no other reply is due: a heartbeat may be on its way."""
        return until(lambda: self.queue.take_now(claim, QUEUE, self.in_time), what="the free path")

    def taken(self) -> Claim:
        claim = self.claim()
        assert self.take(claim).holds
        return claim

    def leave(self, claim: Claim) -> bool:
        answers: list[bool | None] = []

        def answered() -> bool:
            answers.append(self.queue.leave_now(claim, self.in_time))
            return answers[-1] is not None

        until(answered, what="the free path")
        return answers[-1] is True


@pytest.fixture
def caller(url: str) -> Iterator[Caller]:
    with dibs.connect(url) as client:
        yield Caller(client)


@pytest.fixture
def path(url: str) -> str:
    return f"/{url.rpartition('/')[2]}/dibs/free"


def test_a_free_lock_is_taken_and_left_by_three_requests(
    caller: Caller, kazoo: KazooClient, path: str, requests: list[codec.Request]
) -> None:
    requests.clear()
    tickets = []
    for _ in range(3):
        claim = caller.taken()
        (name,) = kazoo.get_children(path)
        assert name.startswith(prefix_of(claim.id))
        data, stat = kazoo.get(f"{path}/{name}")
        assert (stat.czxid, data.startswith(b'{"owner": "o", "session": ')) == (claim.ticket, True)
        tickets.append(claim.ticket)
        assert caller.leave(claim)
        assert kazoo.get_children(path) == []
    assert tickets == sorted(set(tickets))
    assert not {CREATE2, GET_CHILDREN, DELETE} & {request.operation for request in requests}, "all by the free path"
    assert not caller.client._owner.busy(), "nothing is kept of claims that left"


def test_the_end_of_the_node_ahead_is_no_grant_while_the_own_node_is_not_watched(
    caller: Caller, url: str, kazoo: KazooClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims of one client wait behind another client's. An operator removes the node of the second one."""
    monkeypatch.setattr("dibs.backends.zookeeper.node_claims.WATCHED_AFTER", 3600.0)
    with dibs.connect(url) as other:
        hold = other.lock("free").acquire(timeout=PATIENCE)
        assert hold is not None
        first, second = caller.claim(), caller.claim()
        for claim in (first, second):
            caller.queue._me.inbox.expect(claim.id)
            standing = step(caller.queue.join(claim, QUEUE, caller.in_time))
            assert not standing.holds
        (name,) = [name for name in kazoo.get_children(path) if name.startswith(prefix_of(second.id))]
        kazoo.delete(f"{path}/{name}")
        hold.release()
    assert step(caller.queue.watch(first, caller.in_time)) is YOURS
    step(caller.queue.leave(first, True, caller.in_time))
    assert step(caller.queue.watch(second, caller.in_time)) is LOOK
    assert step(caller.queue.renew([second], caller.in_time)) == [None]


def test_leave_reports_a_node_that_an_operator_removed(caller: Caller, kazoo: KazooClient, path: str) -> None:
    claim = caller.taken()
    (name,) = kazoo.get_children(path)
    kazoo.delete(f"{path}/{name}")
    assert not caller.leave(claim)


def test_a_claim_that_leaves_is_not_woken_by_its_own_node(caller: Caller) -> None:
    claim, news = caller.taken(), []
    claims = caller.queue._node_claims
    node_claim = claims.find(claim.id)
    assert node_claim is not None
    until(lambda: list(node_claim._own.values()) == [0], what="the own node is watched")
    claims.me = claims.me._replace(news=news.append)
    assert caller.leave(claim)
    step(caller.queue._sync(caller.in_time))
    assert news == []
    assert not caller.client._exchange.watches, "the event came, and nothing is watched any more"


def test_a_late_reply_about_another_node_grants_nothing(caller: Caller, url: str) -> None:
    """A listing showed meanwhile that the node ahead is the holder, and not the waiter that just left."""
    with dibs.connect(url) as other, other.lock("free", timeout=PATIENCE):
        claim = caller.claim()
        standing = step(caller.queue.join(claim, QUEUE, caller.in_time))
        assert standing is not None
        assert not standing.holds
        node_claim = caller.queue._node_claims.find(claim.id)
        assert node_claim is not None
        ahead = node_claim.waiting_for
        late = PendingRequest(codec.get("/gone", watch=True))
        late.error = codec.NO_NODE
        node_claim._asked("data", "/gone", late)
        assert not node_claim.holds
        assert node_claim.waiting_for == ahead
        assert step(caller.queue.leave(claim, True, caller.in_time))


def test_an_unusual_claim_is_left_to_join_unsent(caller: Caller) -> None:
    taken = caller.taken()
    beside, trying, semaphore = caller.claim(), caller.claim(), caller.claim("dibs:other")
    semaphore.kind, semaphore.prepared = "semaphore", None
    pending = PendingRequest(codec.sync("/"))
    for claim, place in ((beside, QUEUE), (trying, NOWHERE), (semaphore, QUEUE)):
        assert caller.queue.take_now(claim, place, caller.in_time) is None
        assert not claim.asked
    assert caller.leave(taken)
    caller.client._exchange._connection.pending.append(pending)
    try:
        assert caller.queue.take_now(beside, QUEUE, caller.in_time) is None, "a reply of another request is due"
        assert not beside.asked
    finally:
        caller.client._exchange._connection.pending.remove(pending)
    with caller.client._inbox._mutex:
        assert caller.client._inbox._leader is None, "no waiter leads"


@pytest.mark.gate
@pytest.mark.parametrize("what", ["no directory", "another kind", "numbers used up"])
def test_special_cases_are_left_to_join(
    caller: Caller, kazoo: KazooClient, path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = caller.claim("dibs:new" if what == "no directory" else NAME)
    stranger = f"{path}/foreign-0000000000"
    if what == "another kind":
        kazoo.create(stranger)
    if what == "numbers used up":
        monkeypatch.setattr("dibs.backends.zookeeper.queue._REFUSE_AT", b"0000000000")
        monkeypatch.setattr("dibs.backends.zookeeper.queue_rule.REFUSE_AT", 0)
    assert caller.queue.take_now(claim, QUEUE, caller.in_time) is None
    assert claim.asked == (what == "another kind")
    if what == "no directory":
        assert not claim.asked
        standing = step(caller.queue.join(claim, QUEUE, caller.in_time))
        assert standing.holds
        assert caller.leave(claim)
        return
    with pytest.raises(dibs.Mismatch if what == "another kind" else dibs.StoreError):
        step(caller.queue.join(claim, QUEUE, caller.in_time))
    if what == "another kind":
        assert kazoo.get_children(path) == ["foreign-0000000000"]
        kazoo.delete(stranger)
    else:
        with suppress(NoNodeError):  # it goes with the last node, so that numbers begin again
            assert kazoo.get_children(path) == []


@pytest.mark.gate
@pytest.mark.parametrize("letter", [b"0", b"\xff"])
def test_a_listing_without_the_own_node_does_not_count(
    caller: Caller, monkeypatch: pytest.MonkeyPatch, letter: bytes
) -> None:
    """An operator removed it, and another claim joined; or the reply is damaged."""
    ask_now = caller.client.ask_now
    altered: list[bytes] = []

    def alter(*asked: Any) -> bytes | None:
        replies = ask_now(*asked)
        if not replies:
            return replies  # they came in two parts, and are not read here
        head, own, tail = replies.rpartition(prefix_of(claim.id).encode())
        altered.append(head + b"_c_" + letter * (len(own) - 4) + b"-" + tail)
        return altered[-1]

    while not altered:
        claim = caller.claim()
        with monkeypatch.context() as patch, suppress(dibs.StoreUnavailable):
            patch.setattr(caller.client, "ask_now", alter)
            standing = caller.queue.take_now(claim, QUEUE, caller.in_time)
            assert standing is None or not altered
        assert step(caller.queue.join(claim, QUEUE, caller.in_time)).holds, "by a listing of its own"
        assert caller.leave(claim)


def test_a_node_of_another_session_than_ours_does_not_count(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session ended, and the reply belongs to the old one."""
    claim, newer = caller.claim(), Session(30.0)
    newer.attached(codec.Welcome(30_000, 1, bytes(16)), caller.now())
    with monkeypatch.context() as patch:
        patch.setattr(caller.client, "session", newer)
        with pytest.raises(dibs.StoreUnavailable):
            caller.take(claim)
    assert claim.asked
    standing = step(caller.queue.join(claim, QUEUE, caller.in_time))
    assert standing.holds
    assert caller.leave(claim)
