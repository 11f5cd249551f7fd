"""Session mode of the two databases, and leases, sessions and transactions on one name: they exclude each other, in
whatever order they come."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import permutations

import pytest

import dibs
from lab.servers.supervisor import until
from store.sql_places import MODES, Place

LONG = 60.0
STORES = ("mysql", "postgresql")
HOSTILE = [
    "'; DROP TABLE dibs_names; --", "*/ SELECT 1 /*", "%s {0} {} $1", "A\\'\"`", "dibs 7 7 ffff 30 eve@there:1",
    "\u00e4" * 100, "a\u202eb\U0001f600", "x" * 300, "a\\b@c:d",
]  # fmt: skip


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(request.param, stack)


@pytest.mark.parametrize("store", STORES)
def test_the_mode_is_one_of_two(store: str) -> None:
    assert "semaphore" in dir(dibs.connect(f"{store}://db/shop", mode="lease"))
    for mode in ("advisory", "", "SESSION", 1):
        with pytest.raises(ValueError, match="mode="):
            dibs.connect(f"{store}://db/shop", mode=mode)
        with pytest.raises(ValueError, match="mode="):
            dibs.connect(f"{store}://db/shop?mode={mode}")


@pytest.mark.parametrize("store", STORES)
def test_what_a_session_cannot_do_is_said_when_the_lock_is_made(store: str) -> None:
    client = dibs.connect(f"{store}://db/shop?mode=session", lease=20)
    made = [
        lambda: client.semaphore("a", 2), lambda: client.striped("a", 4), lambda: client.lock("a", lease=15),
        lambda: client.rwlock("a"),
    ]  # fmt: skip
    for make in made if store == "mysql" else made[:-1]:
        with pytest.raises(dibs.Unsupported) as caught:
            make()
        assert caught.value.store == f"{store}://db/shop"


@pytest.mark.gate
def test_a_wait_that_is_over_ends_in_the_server_too(place: Place, name: str) -> None:
    """And its connection is used again."""
    ana, bob = place.connect(), place.connect()
    hold = ana.lock(name).acquire()
    assert hold is not None
    assert bob.lock(name).acquire(timeout=0.1) is None
    place.in_queue(ana, name, 0)
    assert not place.blocked()
    before = place.sessions()
    for _ in range(5):
        assert bob.lock(name).acquire(timeout=0.05) is None
    assert len(place.sessions()) <= len(before) + 2, "each wait takes another one"
    hold.release()
    assert bob.lock(name).acquire(timeout=0)


def test_a_session_that_is_broken_is_lost_and_no_other(place: Place, name: str) -> None:
    client, other = place.connect(), place.connect()
    first, second = client.lock(name).acquire(), client.lock(f"{name}-2").acquire()
    assert first is not None
    assert second is not None
    with pytest.raises(dibs.NotHeld):
        other.break_(name, token=second.token)
    other.break_(name, token=first.token)
    until(first.lost.is_set, LONG)
    second.check()
    assert other.lock(name).acquire(timeout=LONG)


@pytest.mark.gate
def test_hostile_names_and_owners(place: Place) -> None:
    """PostgreSQL shows what fits of an owner; it cannot be taken for anything else."""
    bob = place.connect()
    for odd in HOSTILE:
        with dibs.connect(place.url, mode="session", owner=odd, info={"n": odd}) as ana:
            with ana.lock(odd) as hold:
                assert bob.lock(odd).acquire(timeout=0) is None
                (holder,) = bob.inspect(odd).holders
                assert holder.token == hold.token
                assert holder.owner == odd or (place.store == "postgresql" and holder.owner.isascii())
                assert [info.name for info in bob.locks(odd)] == [odd]
            with ana.lock(odd):  # by the connection that has had it before
                assert bob.lock(odd).acquire(timeout=0) is None
                with bob.lock(odd.swapcase() + "x", timeout=0):
                    pass
        with bob.lock(odd, timeout=0):
            pass


@pytest.mark.gate
def test_connections_are_used_again_and_few_stay(place: Place, name: str) -> None:
    until(lambda: not place.sessions(), LONG, "those of earlier tests are gone")
    client = place.connect(connections=2)
    others = 3 if place.store == "mysql" else 0  # connections to the tables, which PostgreSQL's pattern leaves out
    holds = [client.lock(f"{name}-{number}").acquire() for number in range(6)]
    assert len(place.sessions()) >= 6
    for hold in holds:
        assert hold is not None
        hold.release()
    until(lambda: len(place.sessions()) <= 2 + others, LONG, "two idle ones are left")
    kept = place.sessions()
    for _ in range(10):
        with client.lock(name):
            pass
    assert len(place.sessions()) <= 2 + others
    assert place.sessions() & kept, "they are used again"


@pytest.mark.gate
def test_doctor_says_which_mode_it_is(place: Place, name: str) -> None:
    client = place.connect(lease=20)
    with client.lock(name):
        pass
    said = client.doctor()
    assert [finding for finding in said if finding.level == "danger"] == []
    words = "held by a connection" if place.store == "mysql" else 'mode="session"'
    assert any(words in finding.what for finding in said)


PAIRS = [
    pytest.param(first, second, marks=() if (first, second) == ("lease", "session") else pytest.mark.gate)
    for first, second in permutations(MODES, 2)
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_one_mode_at_a_time(place: Place, name: str, first: str, second: str) -> None:
    """Twice: the first time the name is not marked yet, the second time it is. PostgreSQL lets a session and a
    transaction wait for each other."""
    ana, bob = place.caller(first), place.caller(second)
    both_wait = place.store == "postgresql" and "lease" not in (first, second)
    tokens = []
    for caller in (ana, bob):  # connect: a free lock is then taken by one try
        caller.take(f"{name}-other", timeout=60)
        caller.give()
    for _ in range(2):
        for caller, other in ((ana, bob), (bob, ana)):
            tokens.append(caller.take(name, timeout=0))
            for timeout in (0, 0.1) if both_wait else (0, None):
                if both_wait:
                    assert other.take(name, timeout=timeout) is None
                    other.give()
                else:
                    with pytest.raises(dibs.Mismatch) as caught:
                        other.take(name, timeout=timeout)
                    assert (caught.value.name, caught.value.store) == (name, other.client._core.shown)
                    assert "use one mode for one name" in str(caught.value)
            if place.store == "postgresql" or caller.mode != "within":  # MySQL shows no transaction's lock
                assert caller.client.inspect(name).holders[0].token == tokens[-1]
            caller.give()
    assert None not in tokens
    assert tokens == sorted(set(tokens), key=lambda token: token or 0)


@pytest.mark.gate
@pytest.mark.parametrize("other", ["session", "within"])
def test_a_lease_that_is_over_is_in_nobodys_way(place: Place, name: str, other: str) -> None:
    place.caller("lease").take(name)
    place.rows("UPDATE {claims} SET until = 1 WHERE name = %s", place.key(name))
    assert place.caller(other).take(name, timeout=0)
    with pytest.raises(dibs.Mismatch):
        place.caller("lease").take(name, timeout=0)


@pytest.mark.gate
@pytest.mark.parametrize("other", ["session", "within"])
def test_a_renewal_that_is_on_its_way_is_waited_for(place: Place, name: str, other: str) -> None:
    """It extends a lease that looks over to everybody else until it commits."""
    place.caller("lease").take(name)
    caller, renewing = place.caller(other), place.own()
    caller.take(f"{name}-first")
    caller.give()
    place.rows("UPDATE {claims} SET until = 1 WHERE name = %s", place.key(name))
    extended = "UPDATE {claims} SET until = {now} + 600000000 WHERE name = %s"
    place.rows(extended, place.key(name), by=renewing)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(caller.take, name, timeout=LONG)
        until(place.blocked, LONG, "it waits for the renewal")
        assert not pending.done()
        renewing.commit()
        with pytest.raises(dibs.Mismatch):
            pending.result(LONG)
