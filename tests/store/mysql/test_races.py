"""Interleavings that broke earlier drafts, made to happen by hand."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from dibs.backends.mysql import queue, subscriber
from dibs.core.cells import CELL, CellKey, Write
from dibs.core.queue import YOURS
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from lab.servers.supervisor import Server
from store.mysql.rows import Raw, setting

pytestmark = pytest.mark.gate

LEVELS = ["REPEATABLE-READ", "SERIALIZABLE", "READ-UNCOMMITTED"]
Made = Callable[[], Seat]


@contextmanager
def meanwhile(deed: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=deed, daemon=True)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def settled_in(seat: Seat) -> None:
    """Connected: what follows takes one trip."""
    seat.holders("elsewhere")


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_committed_while_a_join_waited_for_the_name_is_seen(seats: Made, raw: Raw, level: str) -> None:
    """In each isolation level of the server the queue is read after the lock, not before."""
    ana, bob = seats(), seats()
    with setting(raw, "tx_isolation", level):
        settled_in(bob)
        ana.leave(ana.joined()[0])
        raw.lock("a")
        claim, found = bob.claim("a"), []
        with meanwhile(lambda: found.append(bob.join(claim))):
            until(raw.blocked)
            raw.ask("UPDATE dibs_queues SET special = 1, ticket = NEXTVAL(dibs_tickets) WHERE name = %s", raw.key("a"))
            raw.ask(
                "INSERT INTO dibs_claims (ticket, name, id, client, kind, capacity, weight, lease, waiting, until,"
                " asked, held, revoked, about) VALUES"
                " (LASTVAL(dibs_tickets), %s, %s, %s, 'mutex', 1, 1, 9000000, 5000000, 9000000"
                " + TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 0, 1, 0, '{}')",
                raw.key("a"), b"another claim id", b"another client's",
            )  # fmt: skip
            raw.unlock()
        assert [standing.holds for standing in found if standing is not None] == [False]


def test_a_leave_and_a_join_at_the_same_time(seats: Made, raw: Raw) -> None:
    """Both wait for the name's lock: whichever comes first, the one who joined holds, or is told so."""
    ana, bob = seats(), seats()
    for number in range(3):
        name = f"n{number}"
        held, _ = ana.joined(name=name)
        settled_in(bob)
        raw.lock(name)
        claim, answers = bob.claim(name), []
        with meanwhile(lambda: ana.leave(held)), meanwhile(lambda: answers.append(bob.join(claim))):  # noqa: B023
            until(lambda: raw.blocked() == 2)
            raw.unlock()
        (found,) = answers
        assert found is not None
        assert found.holds or bob.hears(claim) is YOURS
        bob.leave(claim)


def test_nothing_that_is_said_is_missed(seats: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-overs to and fro, with nobody who looks: who joins is told, also amid the listener's next call."""
    monkeypatch.setattr(subscriber, "PATIENCE", 120)  # the listener does not wake by itself either
    one, other = seats(), seats()
    claim, stands = one.joined()
    assert stands.holds
    for _ in range(10):
        for giver, caller in ((one, other), (other, one)):
            next_claim, next_stands = caller.joined()
            assert not next_stands.holds
            giver.leave(claim)
            assert caller.hears(next_claim) is YOURS
            claim, one, other = next_claim, caller, giver


def test_four_who_come_to_a_name_that_nobody_has_used(seats: Made) -> None:
    """One holds, in the order of the tickets."""
    made = [seats() for _ in range(4)]
    for seat in made:
        settled_in(seat)
    with ThreadPoolExecutor(len(made)) as pool:
        for number in range(5):
            gate = threading.Barrier(len(made))

            def come(seat: Seat, name: str = f"fresh {number}", gate: threading.Barrier = gate) -> tuple[int, bool]:
                gate.wait(60)
                _, stands = seat.joined(name=name)
                return stands.ticket, stands.holds

            assert [holds for _, holds in sorted(pool.map(come, made))] == [True, False, False, False]


def test_a_listener_that_was_cut_off_makes_room_for_the_next(seats: Made, raw: Raw) -> None:
    """The server may not see for hours that a machine is gone: until then its session would have our user lock."""
    ana, bob = seats(), seats()
    with closing(Raw(raw.connection.port)) as gone:
        assert gone.ask("SELECT GET_LOCK(%s, 0)", f"dibs:{bob.me.id.hex().upper()}") == [(1,)]
        held, _ = ana.joined()
        claim, _ = bob.joined()
        ana.leave(held)
        assert bob.hears(claim) is YOURS
        until(lambda: gone.id not in dict(raw.others()))


def test_names_that_nobody_uses_are_forgotten_and_tokens_rise_all_the_same(
    seat: Seat, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a leave now and then."""
    monkeypatch.setattr(queue, "SWEEPS", 1.0)
    claim, before = seat.joined()
    seat.leave(claim)
    kept, _ = seat.joined(name="kept")

    def is_forgotten() -> bool:
        seat.leave(seat.joined(name="b")[0])  # each looks at 500 names of a table that all tests share
        return not raw.ask("SELECT 1 FROM dibs_queues WHERE name = %s", raw.key("a"))

    until(is_forgotten)
    assert raw.ask("SELECT 1 FROM dibs_queues WHERE name = %s", raw.key("kept"))
    claim, after = seat.joined()
    assert after.ticket > before.ticket
    other, stands = seat.joined(name="kept")
    assert not stands.holds
    for one in (claim, other, kept):
        seat.leave(one)


def swept(raw: Raw) -> bool:
    """Some of it: all tests of a process share the tables."""
    with closing(raw.connection.cursor()) as cursor:
        cursor.execute("CALL dibs_2_sweep()")
    return True


def test_claims_of_the_dead_are_swept(server: Server) -> None:
    """On names that nobody uses again; a part of them with each sweep, and none that is held."""
    with closing(Raw(server.port)) as raw, closing(Seat(server.url())) as seat:
        (held, _), (dead, _) = seat.joined(name="dead 0300 held"), seat.joined(name="dead")
        columns = "client, kind, capacity, weight, lease, waiting, 1, asked, asked, NULL, revoked, about"
        raw.ask(
            f"INSERT INTO dibs_claims SELECT CONCAT(name, ' ', LPAD(seq, 4, 0)), seq, RANDOM_BYTES(16), {columns}"
            " FROM dibs_queues, seq_1_to_600 WHERE name = 'dead'",
        )
        raw.ask("INSERT INTO dibs_queues (name, ticket, apart) SELECT name, ticket, 0 FROM dibs_claims WHERE until = 1")
        left = [600]
        while left[-1]:
            swept(raw)
            left += [count for (count,) in raw.ask("SELECT COUNT(*) FROM dibs_claims WHERE until = 1")]
            assert 0 <= left[-2] - left[-1] <= 500
            assert len(left) < 10, left
        assert [standing is not None for standing in seat.renew(held, dead)] == [True, True]
        names = raw.ask("SELECT name FROM dibs_queues WHERE name LIKE 'dead%'")
        assert names == [(b"dead",), (b"dead 0300 held",)]


def test_the_sweep_removes_what_is_over_and_nothing_else(seat: Seat, raw: Raw) -> None:
    seat.leave(seat.joined()[0])
    (now,) = raw.ask("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")[0]
    over, there = os.urandom(16), os.urandom(16)
    inserts = {
        "dibs_tombs": "(id, until) VALUES (%s, %s)",
        "dibs_writes": "(id, until, version) VALUES (%s, %s, 1)",
        "dibs_watchers": "(id, until, space, name, client) VALUES (%s, %s, 'cell', 'a', 'b')",
    }
    for table, insert in inserts.items():
        raw.ask(f"INSERT INTO {table} {insert}", over, now - 1)
        raw.ask(f"INSERT INTO {table} {insert}", there, now + 600_000_000)

    def left(table: str) -> list[tuple[bytes]]:
        swept(raw)
        return raw.ask(f"SELECT id FROM {table} WHERE id IN (%s, %s)", over, there)

    for table in inserts:
        until(lambda table=table: left(table) == [(there,)])
        raw.ask(f"DELETE FROM {table} WHERE id = %s", there)


class Watcher:
    """Watches an unset cell, in a thread of its own."""

    def __init__(self, seat: Seat) -> None:
        self.key, self.seat = seat.runtime.fresh_id(), seat
        seat.me.inbox.expect(self.key)
        self._cells = seat.store.open_cells(seat.runtime, seat.me)
        self._thread = threading.Thread(
            target=lambda: step(self._cells.watch(CELL_KEY, 0, self.key, seat.now() + 60)), daemon=True
        )
        self.begin = self._thread.start

    def put(self) -> int:
        write = Write(CELL_KEY, b"x", 0, self.seat.runtime.fresh_id(), self.seat.now() + 10)
        return step(self._cells.put(write, self.seat.soon))

    def has_heard(self) -> bool:
        self._thread.join(60)
        return not self._thread.is_alive()


CELL_KEY = CellKey(CELL, "a")


def test_a_change_comes_before_who_watches_an_unset_cell_or_is_heard_of(
    seats: Made, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the cell and the note of who watches it nobody comes, also where no row could be locked."""
    monkeypatch.setattr(subscriber, "POLL_INTERVAL", 60.0)
    here, there = Watcher(seats()), Watcher(seats())
    settled_in(here.seat)
    raw.connection.begin()
    raw.ask("INSERT INTO dibs_watchers VALUES (%s, 'elsewhere', 'x', %s, NULL, 0)", here.key, here.key)
    here.begin()
    until(lambda: [info for _, info in raw.others() if info and "INSERT INTO dibs_watchers" in info])
    versions: list[int] = []
    with meanwhile(lambda: versions.append(there.put())):
        until(lambda: versions or [info for _, info in raw.others() if info and "dibs_cells" in info])
        raw.connection.rollback()
        assert here.has_heard()
    assert versions == [1]
