"""A process that is stopped past its lease: the next one is served, and the stopped one knows when it wakes."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from process.children import STEADY, Crew, clock
from process.grounds import SLACK, usual_stores


def resource(directory: Path) -> Path:
    """What the lock protects: a value that anyone may write, and one that compares tokens."""
    path = directory / "resource.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE resource (naive INTEGER, fenced INTEGER)")
        connection.execute("INSERT INTO resource VALUES (0, 0)")
    return path


def stands(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        naive, fenced = connection.execute("SELECT naive, fenced FROM resource").fetchone()
    return int(naive), int(fenced)


@usual_stores
def test_a_holder_stopped_past_its_lease_has_lost_and_knows_it(crew: Crew, tmp_path: Path) -> None:
    """No lock prevents the late write of a holder that did not ask whether it still holds. The token does."""
    path = resource(tmp_path)
    holder, waiter = crew.workers(crew.lasting, STEADY)
    old = holder.take("a")
    assert holder.ask("write", "a", path, hear="wrote") == ["visible", "accepted"]
    waiter.tell("take", "a", STEADY)
    crew.in_queue("a", 1, 1)
    holder.freeze()
    stopped = clock()
    token, _, got = waiter.hear("took")
    assert int(token) > old
    assert float(got) - stopped > crew.lasting / 4, "it was served while the lease still ran"
    assert waiter.ask("write", "a", path, hear="wrote") == ["visible", "accepted"]
    holder.signal(signal.SIGCONT)
    state = holder.ask("state", "a", hear="state")
    assert (state[:4], state[-1]) == (["LockLost", "lost", "not", "0.0"], "standstill")
    assert holder.ask("write", "a", path, hear="wrote") == ["visible", "refused"]
    assert stands(path) == (old, int(token)), "the naive value is the stale one, the fenced value the new holder's"
    assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    assert crew.client.lock("a").acquire(timeout=0) is None, "the late release must not free the new holder's lock"
    assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert waiter.ask("give", "a", hear="gave") == ["ok"]


def test_leaving_the_block_of_a_lost_lock_raises(crew: Crew) -> None:
    holder, waiter = crew.workers(crew.lasting, STEADY)
    holder.ask("enter", "a", hear="held")
    holder.freeze()
    waiter.take("a")
    holder.signal(signal.SIGCONT)
    assert holder.ask("leave", hear="left") == ["LockLost"]
    assert crew.client.lock("a").acquire(timeout=0) is None, "the late release must not free the new holder's lock"


@usual_stores
def test_a_holder_stopped_for_less_than_its_lease_still_holds(crew: Crew) -> None:
    holder = crew.worker(STEADY / 2)
    holder.take("a")
    holder.freeze()
    assert crew.client.lock("a").acquire(timeout=1) is None
    holder.signal(signal.SIGCONT)
    assert holder.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert holder.ask("give", "a", hear="gave") == ["ok"]
    assert crew.client.lock("a").acquire(timeout=0)


@pytest.mark.slow
@usual_stores
def test_a_stopped_waiter_is_passed_over_and_served_later(crew: Crew) -> None:
    sleeper, last = crew.workers(crew.lasting, STEADY)
    hold = crew.client.lock("a").acquire(timeout=0)
    assert hold is not None
    sleeper.tell("take", "a", 2 * STEADY)
    crew.in_queue("a", 1, 1)
    sleeper.freeze()
    begun = clock()
    last.tell("take", "a", STEADY)
    hold.release()
    assert float(last.hear("took")[2]) - begun < crew.lasting + SLACK
    sleeper.signal(signal.SIGCONT)
    assert last.ask("give", "a", hear="gave") == ["ok"]
    sleeper.hear("took")
