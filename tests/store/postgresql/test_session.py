"""Session mode: what a lock is on the server, in which order it goes on, what is refused, and which modes exclude."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import psycopg
import pytest
from psycopg import pq

import dibs
from dibs.backends.postgresql.routines import Routines
from lab.servers.supervisor import until
from store.postgresql.rows import MICROSECONDS, Raw

Connect = Callable[..., dibs.Client]
LONG = 30.0


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(dibs.connect(url, **{"mode": "session", **options}))


def backends(raw: Raw) -> set[int]:
    """Connections that are set to session mode."""
    return {int(pid) for (pid,) in raw("SELECT pid FROM pg_stat_activity WHERE application_name ~ '^dibs [0-9]'")}


def keys(raw: Raw) -> list[tuple[int, str]]:
    return [
        (int(key), str(mode))
        for key, mode in raw(
            "SELECT classid::bigint << 32 | objid::bigint, mode FROM pg_locks "
            "WHERE locktype = 'advisory' AND objsubid = 1 AND granted"
        )
    ]


def in_line(client: dibs.Client, name: str, count: int) -> None:
    until(lambda: len(client.inspect(name).waiters) == count, what=f"{count} in line")


def test_a_lock_is_an_advisory_lock_on_the_key_that_the_page_describes(connect: Connect, raw: Raw) -> None:
    client = connect()
    key = Routines(raw.schema).key_of("dibs:a")
    with client.lock("a"):
        assert (key, "ExclusiveLock") in keys(raw)
        with client.rwlock("b").read:
            assert (Routines(raw.schema).key_of("dibs:b"), "ShareLock") in keys(raw)
    assert key not in [one for one, _ in keys(raw)]


def test_the_key_never_changes() -> None:
    """Programs of different versions, and those that lock by hand, must mean the same key."""
    assert Routines("dibs").key_of("dibs:invoice:42") == -2913974811169744400
    assert Routines("dibs").key_of("a") != Routines("locks").key_of("a")
    assert Routines("ab").key_of("c:d") != Routines("ab:c").key_of("d")


def test_connections_are_used_again_and_few_stay(connect: Connect, raw: Raw) -> None:
    client = connect(connections=2)
    for _ in range(10):
        with client.lock("a"):
            pass
    pids = {row[0] for row in raw("SELECT pid FROM pg_stat_activity WHERE application_name ~ '^dibs [0-9]'")}
    assert len(pids) == 1
    holds = [client.lock(f"a{number}").acquire() for number in range(5)]
    assert len(backends(raw)) == 5
    for hold in holds:
        assert hold is not None
        hold.release()
    until(lambda: len(backends(raw)) <= 2)


def test_who_came_first_is_served_first(connect: Connect, name: str) -> None:
    first, looking = connect(), connect()
    served: list[int] = []

    def wait(number: int) -> None:
        with connect().lock(name, timeout=LONG):
            served.append(number)

    with ThreadPoolExecutor(5) as pool:
        with first.lock(name):
            for number in range(5):
                pool.submit(wait, number)
                in_line(looking, name, number + 1)
            assert first.lock(name).acquire(timeout=0) is None
        until(lambda: len(served) == 5)
    assert served == [0, 1, 2, 3, 4]


def test_a_try_does_not_pass_a_writer_that_waits(connect: Connect, name: str) -> None:
    ana, bob, cy = connect(), connect(), connect()
    with ThreadPoolExecutor(1) as pool:
        with ana.rwlock(name).read:
            pending = pool.submit(bob.rwlock(name).write.acquire, timeout=LONG)
            in_line(cy, name, 1)
            assert cy.rwlock(name).read.acquire(timeout=0) is None
        assert pending.result(LONG)


def test_who_gives_up_leaves_nothing_and_its_connection_is_good(connect: Connect, raw: Raw, name: str) -> None:
    ana, bob = connect(), connect()
    with ana.lock(name):
        assert bob.lock(name).acquire(timeout=0.1) is None
        in_line(ana, name, 0)
        before = backends(raw)
        for _ in range(3):
            assert bob.lock(name).acquire(timeout=0.05) is None
        assert backends(raw) == before
    with bob.lock(name, timeout=5):
        assert ana.inspect(name).holders[0].host != "?"
    assert [key for key, _ in keys(raw) if key == Routines(raw.schema).key_of(f"dibs:{name}")] == []


def test_giving_up_in_the_moment_of_the_grant_leaves_no_lock(connect: Connect, name: str) -> None:
    """Whichever of the two comes first: the next one finds it free."""
    ana, bob, cy = connect(), connect(), connect()
    for number in range(40):
        hold = ana.lock(name).acquire(timeout=LONG)
        assert hold is not None
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(bob.lock(name).acquire, timeout=0.001 + number % 8 * 0.002)
            hold.release()
            won = pending.result(LONG)
        if won is not None:
            won.release()
        free = cy.lock(name).acquire(timeout=5)
        assert free is not None
        free.release()


def test_a_holder_hears_that_it_is_asked_to_let_go(connect: Connect, name: str) -> None:
    ana, bob = connect(lease=2), connect()
    with ana.lock(name) as hold:
        bob.lock(name).revoke()
        assert hold.revoke_requested.wait(LONG)
        hold.check()
    with bob.lock(name) as later:
        assert not later.revoke_requested.is_set()


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.semaphore("a", 3),
        lambda client: client.striped("a", 3),
        lambda client: client.lock("a", lease=5),
    ],
    ids=["semaphore", "striped", "a shorter lease"],
)
def test_what_it_cannot_do_is_said_when_the_lock_is_made(connect: Connect, make: Callable[[Any], Any]) -> None:
    with pytest.raises(dibs.Unsupported):
        make(connect(lease=20))


@pytest.mark.parametrize("mode", ["", "sessions", "SESSION"])
def test_another_mode_is_an_error_that_says_so(mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        dibs.connect("postgresql://localhost/app", mode=mode)
    with pytest.raises(ValueError, match="mode"):
        dibs.connect(f"postgresql://localhost/app?mode={mode}")


def test_a_libpq_that_is_too_old_is_refused(connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pq, "version", lambda: 130_010)
    with pytest.raises(dibs.StoreError, match=r"older than 14.*psycopg\[binary\]"):
        connect().lock(name).acquire(timeout=1)


def test_two_names_that_meet_in_one_key_are_told_apart(
    connect: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Routines, "key_of", lambda self, name: 42)
    ana, bob = connect(), connect()
    with ana.lock(f"{name}-1"):
        with pytest.raises(dibs.StoreError, match=rf"same key.*dibs:{name}-1") as caught:
            bob.lock(f"{name}-2").acquire(timeout=LONG)
        assert caught.value.name == f"{name}-2"
    with bob.lock(f"{name}-2", timeout=5), pytest.raises(dibs.StoreError, match="same key"):
        ana.lock(f"{name}-1").acquire(timeout=0)
    with ana.rwlock(f"{name}-3").read, pytest.raises(dibs.StoreError, match="same key"):
        bob.rwlock(f"{name}-4").read.acquire()


def test_a_lease_and_a_session_exclude_each_other(connect: Connect, name: str) -> None:
    leased, session = connect(mode="lease"), connect()
    with leased.lock(name) as hold:
        for timeout in (0, 5):
            with pytest.raises(dibs.Mismatch, match="by a lease"):
                session.lock(name).acquire(timeout=timeout)
        assert session.inspect(name).holders[0].token == hold.token
    with session.lock(name) as later:
        assert later.token > hold.token
        for timeout in (0, 5):
            with pytest.raises(dibs.Mismatch, match="by a connection"):
                leased.lock(name).acquire(timeout=timeout)
        assert leased.inspect(name).holders[0].token == later.token
        assert [info.name for info in leased.locks(name)] == [name]
    with leased.lock(name, timeout=0) as last:
        assert last.token > later.token
        for timeout in (0, 5):  # also now that the name was had by a session before
            with pytest.raises(dibs.Mismatch, match="by a lease"):
                session.lock(name).acquire(timeout=timeout)


def test_a_lease_that_is_over_is_in_nobodys_way(connect: Connect, raw: Raw, name: str) -> None:
    client = connect()
    client.lock(f"{name}-first").acquire(timeout=0)
    raw.plant(f"dibs:{name}", until=1)
    assert client.lock(name).acquire(timeout=0)


def test_a_lease_that_is_renewed_at_this_moment_stands(connect: Connect, url: str, raw: Raw, name: str) -> None:
    """It was over for whoever looked, and is not once the renewal is committed: that is waited for."""
    client = connect()
    client.lock(f"{name}-first").acquire(timeout=0)
    raw.plant(f"dibs:{name}", until=1)
    place = url.partition("?")[0]
    with closing(psycopg.connect(place)) as renewing, ThreadPoolExecutor(1) as pool:
        now = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
        renewing.execute(f'UPDATE "{raw.schema}".dibs_claims SET until = {now} + %s', [30 * MICROSECONDS])
        pending = pool.submit(client.lock(name).acquire, timeout=LONG)
        until(lambda: raw("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")[0][0])
        assert not pending.done()
        renewing.commit()
        with pytest.raises(dibs.Mismatch, match="by a lease"):
            pending.result(LONG)


class Room:
    """Where only one may be at a time, whichever mode it came by."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.overlaps: list[list[str]] = []
        self.entered = dict.fromkeys(("lease", "session", "within"), 0)
        self.is_over = threading.Event()

    def visit(self, mode: str) -> None:
        self.inside.append(mode)
        if len(self.inside) > 1:
            self.overlaps.append(list(self.inside))
        self.entered[mode] += 1
        self.is_over.wait(0.002)  # long enough for others to come in
        self.inside.remove(mode)

    def by_lock(self, client: dibs.Client, mode: str, name: str) -> None:
        while not self.is_over.is_set():
            with suppress(dibs.Mismatch):
                hold = client.lock(name).acquire(timeout=0)
                if hold is not None:
                    self.visit(mode)
                    hold.release()

    def by_transaction(self, client: dibs.Client, connection: psycopg.Connection[Any], name: str) -> None:
        while not self.is_over.is_set():
            with suppress(dibs.Mismatch):
                if client.within(connection).lock(name).acquire(timeout=0):
                    self.visit("within")
            connection.rollback()


def test_the_modes_never_overlap_whoever_comes_first(connect: Connect, url: str, name: str) -> None:
    """Leases, sessions and transactions on one name, as quickly as they can: refused, busy, or alone."""
    room = Room()
    with closing(psycopg.connect(url.partition("?")[0])) as connection, ThreadPoolExecutor(3) as pool:
        pending = [
            pool.submit(room.by_lock, connect(mode="lease"), "lease", name),
            pool.submit(room.by_lock, connect(), "session", name),
            pool.submit(room.by_transaction, connect(), connection, name),
        ]
        try:
            until(lambda: room.overlaps or min(room.entered.values()) >= 20 or any(one.done() for one in pending))
        finally:
            room.is_over.set()
        for one in pending:
            one.result(LONG)
    assert room.overlaps == []
    assert min(room.entered.values()) >= 20


@pytest.mark.parametrize(
    "odd", ['it\'s "here"; --', "%s {0} $1", "dibs 7 7 ffff 30 eve@there:1", "é\u202e\U0001f600", "x" * 300, "a\\b@c:d"]
)
def test_hostile_names_and_owners_are_names_and_owners(connect: Connect, odd: str) -> None:
    """What fits of an owner is shown, and cannot be taken for anything else."""
    ana, bob = connect(owner=odd), connect()
    with ana.lock(odd) as hold:
        assert bob.lock(odd).acquire(timeout=0) is None
        (holder,) = bob.inspect(odd).holders
        assert holder.token == hold.token
        assert holder.pid == os.getpid()
        assert holder.owner.replace("?", "").isascii()
        assert [info.name for info in bob.locks(odd)] == [odd]
    assert bob.lock(odd).acquire(timeout=0)


def test_who_has_the_key_and_no_token_yet_is_not_taken_for_its_predecessor(
    connect: Connect, url: str, raw: Raw, name: str
) -> None:
    """The same connection takes the same name again, and stands still between the key and the token."""
    client = connect()
    with client.lock(name) as before:
        pass
    with closing(psycopg.connect(url.partition("?")[0])) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f'LOCK TABLE "{raw.schema}".dibs_claims IN ACCESS EXCLUSIVE MODE')
        pending = pool.submit(client.lock(name).acquire, timeout=LONG)
        until(lambda: raw("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'")[0][0])
        assert Routines(raw.schema).key_of(f"dibs:{name}") in [key for key, _ in keys(raw)]
        assert raw("SELECT token FROM {s}.dibs_1_seen(%s, '', '')", f"dibs:{name}") == []
        assert raw("SELECT {s}.dibs_1_oust(%s, %s)", f"dibs:{name}", before.token)[0][0].endswith(" 0")
        other.rollback()
        hold = pending.result(LONG)
    assert hold is not None
    assert hold.token > before.token
    hold.release()


def test_a_kind_belongs_to_the_name_while_it_is_busy(connect: Connect, name: str) -> None:
    ana, bob = connect(), connect()
    with ana.rwlock(name).read:
        with pytest.raises(dibs.Mismatch, match="busy as rw"):
            bob.lock(name).acquire(timeout=LONG)
        with bob.rwlock(name, timeout=5).read:
            pass
    with bob.lock(name, timeout=5), pytest.raises(dibs.Mismatch, match="busy as mutex"):
        ana.rwlock(name).read.acquire()


def test_doctor_says_which_mode_it_is(connect: Connect) -> None:
    said = connect(lease=20).doctor()
    assert [finding for finding in said if finding.level == "danger"] == []
    assert any('mode="session"' in finding.what and "20 s" in finding.what for finding in said)
