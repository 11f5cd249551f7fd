"""Claims with a connection of their own: no connection serves two claims, and none that ended is used."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from dibs.backends.common.connections import Begun
from dibs.backends.common.round_trip import RoundTrip
from dibs.backends.common.session_claims import (
    GONE,
    HOLDS,
    WAITS,
    SessionClaim,
    SessionClaims,
    SessionConnection,
    SessionPool,
)
from dibs.backends.common.wakeup import Readiness
from dibs.core.queue import LOOK, YOURS, ClientIdentity, Signal
from dibs.core.rule import Claim
from dibs.errors import StoreUnavailable
from dibs.runtime.threads import ThreadRuntime, step
from process.children import until

SOON = 30.0
LEASE = 60.0
_numbers = count()


class Wire(SessionConnection):
    """The server is `there`."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        here, self.there = socket.socketpair()
        self._begin(here)

    def _begin(self, here: socket.socket) -> None:
        self._here, self._fd = here, here.fileno()
        self.readiness = Readiness(self._fd)

    def move(self, number: int) -> None:
        """Move to that descriptor, which is free."""
        with self._here as before:
            self._begin(socket.socket(fileno=os.dup2(before.fileno(), number)))

    def fileno(self) -> int:
        return self._fd

    def is_open(self) -> bool:
        return self._here.fileno() >= 0

    def is_reusable(self) -> bool:
        return self.is_open()

    def is_stale(self) -> bool:
        return self.readiness.wait(0.0)

    def close(self) -> None:
        self.seat = None
        self._here.close()

    def received(self) -> bytes:
        return self._here.recv(100) if self.is_stale() else b""


One = SessionClaim[Wire]


def hear(one: One, wire: Wire) -> Signal | None:
    reply = wire.received()
    if not reply:
        return None
    if reply == b"broken":
        raise StoreUnavailable("broken")
    one.state = HOLDS if reply == b"yours" else GONE
    return YOURS if one.state is HOLDS else LOOK


class Stage:
    def __init__(self) -> None:
        self.shift = 0.0
        self.next: Wire | None = None
        self.runtime = ThreadRuntime(lambda: time.monotonic() + self.shift)
        self.news: list[bytes] = []
        self.wires: list[Wire] = []
        me = ClientIdentity(b"m" * 16, self.runtime.inbox(), LEASE, self.news.append)
        self.pool = SessionPool(self._connect, self.runtime, me, RoundTrip(), "nowhere", 2)
        self.claims: SessionClaims[One, Wire] = SessionClaims(self.pool, hear, self.runtime.now)

    def _connect(self, until: float, begun: Begun) -> Wire:
        wire, self.next = self.next or Wire(self.runtime.now), None
        self.wires.append(wire)
        return wire

    def take(self) -> tuple[One, Wire]:
        """A claim, and its connection, which the caller uses."""
        now, id = self.runtime.now(), b"%016d" % next(_numbers)
        one: One = SessionClaim(Claim(id, "a", "mutex", 1, 1, LEASE, 5.0, now + SOON, b"m" * 16, "{}"))
        self.claims.begin(one)
        found: list[Any] = []

        async def take() -> bool:
            found.append(await self.pool.take(one.claim, self.runtime, now + SOON))
            return True

        step(take())
        return one, found[0]

    def waiting(self) -> tuple[One, Wire]:
        one, wire = self.take()
        self.claims.wait(one, wire)
        self.claims.put_back(one, wire)
        return one, wire


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.claims.close()
    for wire in made.wires:
        wire.close()
        wire.there.close()


def test_an_idle_connection_is_ended_before_the_server_does(stage: Stage) -> None:
    one, wire = stage.take()
    stage.take()  # another claim has one, or nobody would look
    stage.claims.give_back(one, wire)
    stage.shift = LEASE / 2
    assert stage.take()[1] is not wire, "the server may end it"
    until(lambda: not wire.is_open())


def test_the_end_of_an_idle_connection_closes_it(stage: Stage) -> None:
    one, wire = stage.take()
    stage.claims.give_back(one, wire)
    wire.there.close()
    until(lambda: not wire.is_open())
    assert stage.news == []


def test_the_end_of_a_connection_is_told_to_its_claim_alone(stage: Stage) -> None:
    one, wire = stage.take()
    stage.claims.give_back(one, wire)
    later, again = stage.take()
    assert again is wire
    wire.there.close()
    until(lambda: stage.news == [later.claim.id])


def test_a_connection_that_ended_in_use_is_not_given_to_another(stage: Stage) -> None:
    one, wire = stage.take()
    wire.there.close()
    until(lambda: stage.news)
    stage.claims.give_back(one, wire)
    assert not wire.is_open()
    assert stage.take()[1] is not wire


def test_a_connection_that_comes_back_after_the_end_is_closed(stage: Stage) -> None:
    (one, wire), (other, another), (late, third) = stage.take(), stage.take(), stage.take()
    stage.claims.finish(late.claim)
    stage.claims.close()
    stage.claims.begin(late)  # its join was under way
    stage.claims.put_back(one, wire)
    stage.claims.give_back(other, another)
    stage.claims.put_back(late, third)
    assert not any(each.is_open() for each in (wire, another, third))
    stage.claims.wait(one, wire)
    assert one.state is GONE, "a wait that begins after the end"


def test_the_reply_to_a_wait_is_read_once(stage: Stage) -> None:
    one, wire = stage.waiting()
    assert stage.claims.read() == []
    assert one.take() is wire
    wire.there.send(b"yours")
    assert (stage.claims.read(), one.state) == ([], WAITS), "another one uses it"
    stage.claims.put_back(one, wire)
    assert stage.claims.receive(SOON) == [(one.claim.id, YOURS.value)]
    assert one.state is HOLDS
    assert one.take() is wire
    stage.claims.put_back(one, wire)
    wire.there.send(b"broken")
    assert stage.claims.look(one) == [], "nobody waits any more"
    assert wire.is_open()


def test_two_who_look_at_once_read_one_reply(stage: Stage) -> None:
    """The second takes the connection after the first has put it back, and must not take it for one that waits."""
    one, wire = stage.waiting()

    class Late(list[Wire]):
        def pop(self, *at: Any) -> Wire:
            one.state, one.free = HOLDS, []  # meanwhile
            wire.there.send(b"broken")
            return super().pop(*at)

    one.free = Late(one.free)
    assert stage.claims.look(one) == []
    assert wire.is_open()
    assert one.state is HOLDS


@pytest.mark.parametrize("reply", [b"no", b"broken"])
def test_a_wait_that_ends_otherwise_is_gone(stage: Stage, reply: bytes) -> None:
    one, wire = stage.waiting()
    wire.there.send(reply)
    assert stage.claims.receive(SOON) == [(one.claim.id, LOOK.value)]
    assert one.state is GONE
    assert one.take() is None
    assert wire.is_open() == (reply == b"no"), "it is used again unless it is in doubt"


def test_a_socket_that_has_the_number_of_a_closed_one_is_still_read(stage: Stage) -> None:
    one, wire = stage.waiting()
    assert one.take() is wire
    stage.next = Wire(stage.runtime.now)
    wire.close()
    stage.next.move(wire.fileno())
    later, again = stage.waiting()
    assert again.fileno() == wire.fileno()
    stage.claims.drop(one, wire)
    again.there.send(b"yours")
    assert stage.claims.receive(SOON) == [(later.claim.id, YOURS.value)]


@pytest.mark.parametrize("is_late", [False, True])
def test_the_connection_of_a_claim_that_was_given_up_is_closed(stage: Stage, is_late: bool) -> None:
    """Its user puts it back before or after the other gives up."""
    one, wire = stage.take()
    if is_late:
        stage.claims.put_back(one, wire)
    stage.claims.forsake(one)
    if not is_late:
        stage.claims.put_back(one, wire)
    assert not wire.is_open()
    assert one.state is GONE


def test_a_forked_child_closes_all_of_its_parents(stage: Stage) -> None:
    (_, used), (one, idle), (other, free) = stage.take(), stage.take(), stage.take()
    stage.claims.give_back(one, idle)
    stage.claims.put_back(other, free)
    stage.claims.abandon()
    assert not any(wire.is_open() for wire in (used, idle, free))


def test_a_claim_that_was_given_up_joins_no_more(stage: Stage) -> None:
    one, _ = stage.take()
    assert not stage.claims.is_void(one.claim)
    stage.claims.bury(one.claim)
    assert stage.claims.is_void(one.claim)
    stage.shift = SOON + 1
    assert stage.claims.is_void(stage.take()[0].claim) is False
