"""A process that is stopped past its lease: the next one is served, and the stopped one knows when it wakes."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from process.children import Crew, clock, until
from process.grounds import STEADY, every_store

LEASE = 1.5


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


@every_store
@pytest.mark.parametrize("way", ["release", "with"])
def test_a_holder_stopped_past_its_lease_has_lost_and_knows_it(crew: Crew, way: str) -> None:
    holder, waiter = crew.worker(LEASE), crew.worker(STEADY)
    old = holder.take("a") if way == "release" else int(holder.ask("enter", "a", hear="held")[0])
    holder.freeze()
    stopped = clock()
    token, _, got = waiter.ask("take", "a", 10, hear="took")
    print(f"figure: a stopped holder's lock (lease {LEASE}) was free after {float(got) - stopped:.3f} s")
    assert int(token) > old
    assert LEASE / 2 < float(got) - stopped < max(LEASE + 2, crew.noticed)
    holder.signal(signal.SIGCONT)
    assert holder.ask("state", "a", hear="state") == ["LockLost", "lost", "not", "0.0"]
    if way == "release":
        assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    else:
        assert holder.ask("leave", hear="left") == ["LockLost"]
    other = crew.worker(STEADY)
    assert other.tries("a")[0] == "busy", "the late release must not free the new holder's lock"
    assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert waiter.ask("give", "a", hear="gave") == ["ok"]


@every_store
def test_a_stopped_holder_writes_late(crew: Crew, tmp_path: Path) -> None:
    """What no lock can prevent: the write of a holder that did not ask whether it still holds. The token can."""
    path = resource(tmp_path)
    holder, waiter = crew.worker(LEASE), crew.worker(STEADY)
    old = holder.take("a")
    assert holder.ask("write", "a", path, hear="wrote") == ["visible", "accepted"]
    waiter.tell("take", "a", 20)
    until(lambda: holder.ask("line", "a", hear="line") == ["1", "1"], what="the line")
    holder.freeze()
    token = int(waiter.hear("took")[0])
    assert waiter.ask("write", "a", path, hear="wrote") == ["visible", "accepted"]
    assert stands(path) == (token, token)
    holder.signal(signal.SIGCONT)
    assert holder.ask("write", "a", path, hear="wrote") == ["visible", "refused"]
    assert stands(path) == (old, token), "the naive value is the stale one, the fenced value the new holder's"
    assert holder.ask("give", "a", hear="gave") == ["LockLost"]
    assert waiter.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]


@every_store
def test_a_holder_stopped_for_less_than_its_lease_still_holds(crew: Crew) -> None:
    holder, other = crew.worker(10), crew.worker(10)
    holder.take("a")
    holder.freeze()
    assert other.ask("take", "a", 1, hear="busy")
    holder.signal(signal.SIGCONT)
    assert holder.ask("state", "a", hear="state")[:3] == ["ok", "valid", "owned"]
    assert other.tries("a")[0] == "busy"
    assert holder.ask("give", "a", hear="gave") == ["ok"]
    assert other.take("a", 0)


@pytest.mark.slow
@every_store
def test_a_stopped_waiter_is_passed_over_and_served_later(crew: Crew) -> None:
    sleeper, holder, last = crew.worker(LEASE), crew.worker(STEADY), crew.worker(STEADY)
    holder.take("a")
    sleeper.tell("take", "a", 30)
    while holder.ask("line", "a", hear="line") != ["1", "1"]:
        pass
    sleeper.freeze()
    begun = clock()
    last.tell("take", "a", 20)
    holder.tell("give", "a")
    got = float(last.hear("took")[2])
    print(f"figure: behind a stopped waiter (waiting lease {LEASE}) the lock came after {got - begun:.3f} s")
    assert got - begun < max(LEASE + 2, crew.noticed)
    sleeper.signal(signal.SIGCONT)
    assert last.ask("give", "a", hear="gave") == ["ok"]
    sleeper.hear("took")
