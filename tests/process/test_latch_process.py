"""A latch among processes: many who count at once, and who is killed while it counts or waits."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from process.children import Child, Crew, until


def members(crew: Crew, count: int) -> list[Child]:
    children = [crew.start("primitives", crew.url) for _ in range(count)]
    for child in children:
        child.hear("ready")
    return children


def left(child: Child, name: str = "a") -> int:
    return int(child.ask("count", name, hear="count")[0])


def watching(path: Path) -> list[bytes]:
    """The clients that wait."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return [client for (client,) in connection.execute("SELECT client FROM watchers")]


def test_processes_count_one_latch_down(crew: Crew) -> None:
    """Each count counts once: one is left to go, and that one opens it for everybody."""
    counters = members(crew, 6)
    waiters = counters[:3]
    assert counters[0].ask("arm", "a", 61, hear="armed") == ["ok"]
    for child in counters:
        child.tell("down", "a", 10)
    for child in counters:
        while child.next()[0] != "done":
            continue
    assert left(counters[0]) == 1
    for child in waiters:
        child.tell("wait", "a", 60)
    until(lambda: len(watching(crew.path)) == 3, what="those who wait")
    assert all(child.silent() for child in waiters)
    counters[-1].tell("down", "a", 1)
    for child in waiters:
        assert child.hear("waited")[0] == "True"


def test_a_killed_counter_counted_what_it_said(crew: Crew) -> None:
    """And at most one more, whose answer it did not live to say; the others count on."""
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
    """Who counts is not held up by it, and the next who comes sweeps what it left."""
    dying, counter, living = members(crew, 3)
    counter.ask("arm", "a", 2, hear="armed")
    dying.tell("wait", "a", 60)
    living.tell("wait", "a", 60)
    until(lambda: len(watching(crew.path)) == 2, what="those who wait")
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


def test_a_waiter_that_was_killed_is_told_in_vain(crew: Crew) -> None:
    """Nobody swept in between: its address leads nowhere, and whoever counts does not mind."""
    dying, counter = members(crew, 2)
    counter.ask("arm", "a", 1, hear="armed")
    dying.tell("wait", "a", 60)
    until(lambda: watching(crew.path), what="who waits")
    dying.kill()
    counter.tell("down", "a", 1)
    assert [counter.next()[0] for _ in range(2)] == ["down", "done"]
    assert counter.ask("wait", "a", 0, hear="waited")[0] == "True"
    assert watching(crew.path) == []


def test_a_stopped_waiter_finds_the_latch_open_when_it_wakes(crew: Crew) -> None:
    """Opened, armed again, and opened for others meanwhile: its generation is over."""
    sleeper, counter = members(crew, 2)
    counter.ask("arm", "a", 1, hear="armed")
    sleeper.tell("wait", "a", 60)
    until(lambda: watching(crew.path), what="who waits")
    sleeper.freeze()
    counter.tell("down", "a", 1)
    assert [counter.next()[0] for _ in range(2)] == ["down", "done"]
    assert counter.ask("arm", "a", 5, hear="armed") == ["ok"]
    sleeper.signal(signal.SIGCONT)
    assert sleeper.hear("waited")[0] == "True"
    assert left(counter) == 5
