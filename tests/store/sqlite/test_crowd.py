"""Many processes on one file: whoever waits for the write lock takes nothing from the one who has it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs.backends.common.atomic_queue import Tombs
from dibs.backends.sqlite import presence
from dibs.backends.sqlite.database import Database
from dibs.backends.sqlite.presence import Others
from dibs.backends.sqlite.store import SqliteStore
from dibs.backends.sqlite.table import SqliteTable
from dibs.core.queue import ClientIdentity
from dibs.core.rule import Claim
from dibs.runtime.threads import ThreadRuntime, boottime
from dibs.testing.contract.seats import Seat
from dibs.url import parse
from store.sqlite.places import standstill, url_of


@pytest.mark.alone
def test_waiting_for_the_write_lock_takes_little_of_the_processor(path: Path) -> None:
    """Two hundred that look as often as they can take it from the one that they wait for."""
    runtime, store = ThreadRuntime(), SqliteStore(parse(url_of(path)))
    store.registration.identity = ClientIdentity(b"m" * 16, runtime.inbox(), 30.0, lambda _: None)
    database = Database(store.registration)
    database.persist(lambda table, _: table.identity(), boottime() + 60)
    with standstill(path):
        before = time.thread_time()
        with pytest.raises(dibs.StoreUnavailable):
            database.persist(lambda table, _: table.identity(), boottime() + 1)
        used = time.thread_time() - before
    database.close()
    store.close()
    assert used < 0.02


def test_a_newcomer_looks_for_the_dead_before_it_takes_the_write_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes longer, the more clients there are."""
    is_dead, writers = presence.is_dead, 0

    def look(*args: Any) -> bool:
        nonlocal writers
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writers += 1
        return is_dead(*args)

    with dibs.connect(url_of(path)) as first:
        first.inspect("a")
        monkeypatch.setattr(presence, "is_dead", look)
        with dibs.connect(url_of(path)) as newcomer:
            newcomer.inspect("a")
    assert writers


def test_of_many_who_find_the_block_of_tickets_used_up_one_waits_for_the_disk(path: Path) -> None:
    with dibs.connect(url_of(path)) as client:
        client.inspect("a")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        table = SqliteTable(connection, b"", Tombs(), Others(path, boottime), boottime)
        writes = []
        for _ in range(3):
            before = connection.total_changes
            table.reserve(boottime())
            writes.append(connection.total_changes - before)
    assert writes == [1, 0, 0]


def test_a_waiter_that_only_looks_writes_nothing(path: Path) -> None:
    """Two hundred who wait look once a second each."""
    with closing(Seat(url_of(path))) as seat:
        holder, waiter, tired = (seat.joined()[0] for _ in range(3))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:

            def writes(*claims: Claim) -> bool:
                (before,) = other.execute("PRAGMA data_version").fetchone()
                assert all(seat.renew(*claims))
                return bool(before != other.execute("PRAGMA data_version").fetchone()[0])

            assert not writes(waiter)
            assert writes(holder)
            assert writes(waiter, holder)
            tired.waiting = 100.0
            assert writes(tired), "less than two thirds of its waiting lease are left"
