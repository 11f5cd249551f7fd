"""Interleavings that broke earlier drafts: a snapshot that is older than the name's lock, a wake-up that is lost, a
client that is killed while its join waits for that lock. Each is brought about by holding the lock of the name by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

import pytest

import dibs
from dibs.core.queue import YOURS
from dibs.testing.contract.seats import Seat, until
from store.postgresql.rows import MICROSECONDS, Raw

pytestmark = pytest.mark.gate


class Held:
    """The lock of a name, held by a transaction of somebody else's until the end of the block."""

    def __init__(self, raw: Raw, name: str) -> None:
        self._raw, self._key = raw, raw.key(name)

    def __enter__(self) -> Self:
        self._raw("BEGIN")
        self._raw("SELECT pg_advisory_xact_lock(%s)", self._key)
        return self

    def waiting(self, count: int = 1) -> bool:
        """So many wait for it."""
        sql = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s AND objid = %s"
        )
        key = self._key % 2**64
        return bool(self._raw(sql, key >> 32, key & 0xFFFFFFFF)[0][0] == count)

    def __exit__(self, *_: object) -> None:
        self._raw("COMMIT")


def run(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_join_that_waits_for_the_name_sees_who_came_meanwhile(
    url: str, raw: Raw, seats: Callable[[], Seat], isolation: str
) -> None:
    """With a snapshot from before the wait both would hold: whatever the default of the role is."""
    ana = seats()
    ana.leave(ana.joined(name="dibs:warm")[0])
    raw(f"ALTER ROLE dibs SET default_transaction_isolation = '{isolation}'")
    try:
        bob = seats()
        bob.leave(bob.joined(name="dibs:warm")[0])
        found = []
        with Held(raw, "dibs:a") as held:
            late = run(lambda: found.append(bob.joined(name="dibs:a")[1]))
            until(held.waiting)
            raw.plant("dibs:a", ticket=raw("SELECT nextval('{s}.dibs_tickets')")[0][0])
        late.join()
        assert not found[0].holds
        assert len(raw.claims("dibs:a")) == 2
    finally:
        raw("ALTER ROLE dibs RESET default_transaction_isolation")


def test_a_leave_that_meets_a_join_wakes_it(raw: Raw, seats: Callable[[], Seat]) -> None:
    """Both want the lock of the name at the same time: whoever is first, the waiter holds or is told."""
    ana, bob = seats(), seats()
    for number in range(5):
        name = f"dibs:{number}"
        mine, _ = ana.joined(name=name)
        late = bob.claim(name=name)
        joined = []
        with Held(raw, name) as held:
            threads = [run(lambda: joined.append(bob.join(late)))]  # noqa: B023  (it ends in this round)
            until(held.waiting)
            threads.append(run(lambda: ana.leave(mine)))  # noqa: B023  (as above)
            until(lambda: held.waiting(2))
        for thread in threads:
            thread.join()
        standing = joined[0]
        assert standing is not None
        assert standing.holds or bob.hears(late) is YOURS, "it sleeps on a free lock"
        assert bob.leave(late)


CHILD = "import dibs, sys; dibs.connect(sys.argv[1]).lock('a').acquire()"


def test_killed_while_its_join_waits_for_the_name(raw: Raw, seat: Seat, url: str) -> None:
    """No claim of the dead comes to stand once the lock is free."""
    seat.leave(seat.joined(name="dibs:a")[0])
    with Held(raw, "dibs:a") as held:
        child = subprocess.Popen([sys.executable, "-c", CHILD, url])
        until(held.waiting)
        child.kill()
        child.wait(60)
        until(lambda: held.waiting(0))
    assert raw.claims("dibs:a") == []
    assert seat.joined(name="dibs:a")[1].holds


def test_a_renewal_waits_for_no_name(raw: Raw, seat: Seat) -> None:
    claim, _ = seat.joined(name="dibs:a", lease=30)
    with Held(raw, "dibs:a"):
        standing = seat.look(claim)
    assert standing is not None
    assert standing.holds


def test_two_names_that_meet_in_one_key_are_two_locks(url: str, raw: Raw) -> None:
    """They share the lock of a moment, and nothing else."""
    with dibs.connect(url) as client:
        client.lock("a").acquire().release()
        raw("""CREATE OR REPLACE FUNCTION {s}.dibs_2_key(space_ text, name_ text) RETURNS bigint
               LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 42::bigint $$""")
        with client.lock("a", timeout=50) as one, client.lock("b", timeout=50) as two:
            one.check()
            two.check()
            assert client.lock("a").acquire(timeout=0) is None
        client.cell("a").set(b"x", 0)


def test_the_sweep_removes_what_is_over_for_long_and_nothing_else(seat: Seat, raw: Raw) -> None:
    seat.leave(seat.joined(name="dibs:warm")[0])
    now = int(time.time() * MICROSECONDS)
    over, there = now - 120 * MICROSECONDS, now + 120 * MICROSECONDS
    inserts = {
        "dibs_tombs": "(id, until) VALUES (%s, %s)",
        "dibs_writes": "(id, until, version) VALUES (%s, %s, 1)",
        "dibs_outsiders": "(id, until, name, client) VALUES (%s, %s, 'dibs:a', '')",
        "dibs_watchers": "(key, until, space, name, client) VALUES (%s, %s, 'cell', 'dibs:a', '')",
    }
    for until_ in (over, there):
        raw.plant("dibs:a", ticket=until_, until=until_)
        for table, insert in inserts.items():
            raw(f"INSERT INTO {{s}}.{table} {insert}", os.urandom(16), until_)
    raw("SELECT {s}.dibs_2_sweep()")
    for table in ("dibs_claims", *inserts):
        left = {row[0] for row in raw(f"SELECT until FROM {{s}}.{table}")}
        assert over not in left, table
        assert there in left, table
