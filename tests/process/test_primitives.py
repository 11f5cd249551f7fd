"""Elections and latches among processes, of which one is killed, or stopped past its lease."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from process.children import STEADY, Child, Crew, until
from process.stores import QUICK


def members(crew: Crew, count: int, lease: float = STEADY) -> list[Child]:
    children = [crew.start("primitives", crew.url, lease) for _ in range(count)]
    for child in children:
        child.hear("ready")
    return children


def leader(follower: Child) -> tuple[int, int]:
    """The next that it sees: pid and token."""
    pid, token = follower.hear("leader")
    return int(pid), int(token)


def follow_until(follower: Child, pid: int) -> int:
    """Wait until it sees that process lead; return the token."""
    while (seen := leader(follower))[0] != pid:
        continue
    return seen[1]


def test_a_killed_leader_is_followed_by_the_next_in_the_queue(crew: Crew) -> None:
    """Long before its lease ends. The last one has no successor."""
    first, second, third, follower = members(crew, 4, crew.lease)
    old = int(first.ask("lead", "a", hear="leads")[0])
    follower.tell("follow", "a")
    assert leader(follower) == (first.pid, old)
    for waiters, child in enumerate((second, third), 1):
        child.tell("lead", "a")
        crew.in_queue("a", 1, waiters)
    first.kill()
    token = int(second.hear("leads")[0])
    assert token > old
    assert follow_until(follower, second.pid) == token
    assert third.silent()
    assert second.ask("resign", "a", hear="resigned") == ["ok"]
    assert int(third.hear("leads")[0]) > token
    follow_until(follower, third.pid)
    third.kill()
    assert leader(follower) == (0, 0)


@pytest.mark.alone
def test_a_leader_stopped_past_its_lease_has_lost(crew: Crew) -> None:
    first, second, follower = members(crew, 3, QUICK)
    follower.tell("follow", "a")
    assert leader(follower)[0] == 0
    old = int(first.ask("lead", "a", hear="leads")[0])
    assert leader(follower) == (first.pid, old)
    first.freeze()
    assert leader(follower) == (0, 0), "nobody succeeded it yet"
    token = int(second.ask("lead", "a", hear="leads")[0])
    assert token > old
    assert follow_until(follower, second.pid) == token
    first.signal(signal.SIGCONT)
    assert first.ask("resign", "a", hear="resigned") == ["LockLost"]
    assert second.ask("resign", "a", hear="resigned") == ["ok"]
    follow_until(follower, 0)


def left(child: Child, name: str = "a") -> int:
    return int(child.ask("count", name, hear="count")[0])


def watching(path: Path) -> list[bytes]:
    """The clients that wait."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return [client for (client,) in connection.execute("SELECT client FROM watchers")]


def test_a_killed_counter_counted_what_it_said(crew: Crew) -> None:
    """And at most one more, which it did not live to report; the others count on."""
    dying, other, waiter = members(crew, 3)
    other.ask("arm", "a", 10_000, hear="armed")
    waiter.tell("wait", "a", 60)
    dying.tell("down", "a", 9_000)
    said = 0
    while said < 20:
        said = int(dying.hear("down")[0])
    dying.kill()
    dying.end()
    for line in dying.rest().splitlines():
        said = int(line.split()[1])
    there = left(other)
    assert 10_000 - said - 1 <= there <= 10_000 - said
    assert waiter.silent()
    assert other.ask("arm", "a", 5, hear="armed") == ["Conflict"]
    (helper,) = members(crew, 1)
    helper.tell("down", "a", 1)
    helper.hear("down")
    helper.hear("done")
    assert left(other) == there - 1


def test_a_killed_waiter_leaves_nothing_behind(crew: Crew) -> None:
    """It does not hold up those who count, and the next client sweeps what it left."""
    dying, counter, living = members(crew, 3)
    counter.ask("arm", "a", 2, hear="armed")
    dying.tell("wait", "a", 60)
    living.tell("wait", "a", 60)
    until(lambda: len(watching(crew.path)) == 2, what="both wait")
    dying.kill()
    (newcomer,) = members(crew, 1)
    assert left(newcomer) == 2
    assert len(watching(crew.path)) == 1, "the dead one's row is swept, the living one's is not"
    counter.tell("down", "a", 2)
    assert [counter.next()[0] for _ in range(3)] == ["down", "down", "done"]
    assert living.hear("waited")[0] == "True"
    for child in (counter, living, newcomer):
        child.ask("close", hear="closed")
    assert watching(crew.path) == []
    names = sorted(file.suffix for file in crew.path.with_name("locks.db.d").iterdir())
    assert names == [""], "only the file of the turn stays"
