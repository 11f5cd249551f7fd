"""Interleavings that broke earlier drafts, made to happen: a look that is older than the lock of the name, a leave and
a join that do not see each other, a wake-up on its way into the sleep, a client that dies while its join waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pymysql
import pytest

from dibs.backends.mysql import queue, subscriber
from dibs.core.cells import CELL, CellKey, Write
from dibs.core.queue import QUEUE, YOURS
from dibs.runtime.threads import step
from dibs.testing.contract.seats import Seat, until
from lab.servers.supervisor import Server
from store.mysql.rows import Raw

LEVELS = ["REPEATABLE READ", "SERIALIZABLE", "READ UNCOMMITTED"]
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
    """Whatever isolation the server is set to: the queue is read after the lock, not before."""
    ana, bob = seats(), seats()
    raw.ask(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")
    try:
        settled_in(bob)
        first, stands = ana.joined()
        assert stands.holds
        ana.leave(first)
        raw.lock("a")
        claim = bob.claim("a")
        answers = []
        with meanwhile(lambda: answers.append(bob.join(claim))):
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
        (found,) = answers
        assert found is not None
        assert not found.holds
    finally:
        raw.ask("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


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


def test_a_reader_that_was_freed_before_anybody_listened(seats: Made) -> None:
    ana, bob = seats(), seats()
    held, _ = ana.joined()
    claim, _ = bob.joined()
    ana.leave(held)
    assert bob.hears(claim) is YOURS


CHILD = """
import sys, dibs
client = dibs.connect(sys.argv[1], lease=1.5)
client.inspect("elsewhere")
print("ready", flush=True)
client.lock("a", timeout=60).acquire()
"""


def test_a_client_that_is_killed_while_its_join_waits_leaves_no_ghost(url: str, seat: Seat, raw: Raw) -> None:
    settled_in(seat)
    raw.lock("dibs:a")
    child = subprocess.Popen([sys.executable, "-c", CHILD, url], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        until(raw.blocked)
        child.send_signal(signal.SIGKILL)
        child.wait(60)
    # Past the instant until which the join counts: the lock comes free, and what still waits for it does nothing.
    until(lambda: not raw.blocked())
    raw.unlock()
    assert raw.claims("dibs:a") == []
    claim, stands = seat.joined(name="dibs:a")
    assert stands.holds
    seat.leave(claim)


def test_a_join_that_comes_after_its_leave_does_nothing(seat: Seat) -> None:
    claim = seat.claim()
    claim.asked = True
    assert not seat.leave(claim, answered=False)
    claim.asked = False
    assert seat.join(claim, QUEUE) is None
    assert seat.holders() == []


def test_two_who_come_to_a_name_that_nobody_has_used(seats: Made) -> None:
    """Five names, each taken by four at once for the first time: one holds, in the order of the tickets."""
    made = [seats() for _ in range(4)]
    for seat in made:
        settled_in(seat)
    for number in range(5):
        name = f"fresh {number}"
        found: list[tuple[int, bool]] = []
        gate = threading.Barrier(len(made))

        def come(
            seat: Seat, name: str = name, gate: threading.Barrier = gate, found: list[tuple[int, bool]] = found
        ) -> None:
            gate.wait(60)
            _, stands = seat.joined(name=name)
            found.append((stands.ticket, stands.holds))

        threads = [threading.Thread(target=come, args=(seat,)) for seat in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [holds for _, holds in sorted(found)] == [True, False, False, False]


def test_a_listener_that_was_cut_off_makes_room_for_the_next(seats: Made, raw: Raw) -> None:
    """The server may not see for hours that a machine is gone: until then its session would have our user lock."""
    ana, bob = seats(), seats()
    assert raw.ask("SELECT GET_LOCK(%s, 0)", f"dibs:{bob.me.id.hex().upper()}") == [(1,)]
    held, _ = ana.joined()
    claim, _ = bob.joined()
    ana.leave(held)
    assert bob.hears(claim) is YOURS
    until(lambda: not raw.connection.open or not is_alive(raw))


def is_alive(raw: Raw) -> bool:
    try:
        return bool(raw.ask("SELECT 1"))
    except pymysql.MySQLError:
        return False


def test_a_leave_now_and_then_forgets_names_that_nobody_uses(
    seat: Seat, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "SWEEPS", 1.0)
    seat.leave(seat.joined()[0])

    def is_forgotten() -> bool:
        seat.leave(seat.joined(name="b")[0])  # each looks at 500 names of a table that all tests share
        return not raw.ask("SELECT 1 FROM dibs_queues WHERE name = %s", raw.key("a"))

    until(is_forgotten)


def test_names_that_nobody_uses_are_forgotten_and_tokens_rise_all_the_same(seat: Seat, raw: Raw) -> None:
    claim, before = seat.joined()
    seat.leave(claim)
    kept, _ = seat.joined(name="kept")
    until(lambda: swept(raw) and not raw.ask("SELECT 1 FROM dibs_queues WHERE name = %s", raw.key("a")))
    assert raw.ask("SELECT 1 FROM dibs_queues WHERE name = %s", raw.key("kept"))
    claim, after = seat.joined()
    assert after.ticket > before.ticket
    other, stands = seat.joined(name="kept")
    assert not stands.holds
    for one in (claim, other, kept):
        seat.leave(one)
    step(seat.queue.identity(seat.soon))


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
        names = [name for (name,) in raw.ask("SELECT name FROM dibs_queues WHERE name LIKE 'dead%'")]
        assert names == [b"dead", b"dead 0300 held"]


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
        self.key = seat.runtime.fresh_id()
        self._seat = seat
        seat.me.inbox.expect(self.key)
        self._cells = seat.store.open_cells(seat.runtime, seat.me)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        step(self._cells.watch(CELL_KEY, 0, self.key, self._seat.now() + 60))

    def begin(self) -> None:
        self._thread.start()

    def put(self) -> int:
        write = Write(CELL_KEY, b"x", 0, self._seat.runtime.fresh_id(), self._seat.now() + 10)
        return step(self._cells.put(write, self._seat.soon))

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
    settled_in(here._seat)
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


def test_those_who_watch_do_not_wait_for_each_other(seats: Made, raw: Raw) -> None:
    one, other = Watcher(seats()), Watcher(seats())
    settled_in(one._seat)
    raw.ask("INSERT INTO dibs_cells VALUES (%s, %s, NULL, 0)", CELL_KEY.space, raw.key("a"))
    raw.connection.begin()
    raw.ask("SELECT 1 FROM dibs_cells WHERE space = %s AND name = %s LOCK IN SHARE MODE", CELL_KEY.space, raw.key("a"))
    one.begin()
    with closing(Raw(raw.connection.port)) as onlooker:
        until(lambda: onlooker.ask("SELECT 1 FROM dibs_watchers WHERE id = %s", one.key))
    raw.connection.commit()
    assert other.put() == 1
    assert one.has_heard()
