"""A process that dies gives way: at once where the kernel tells, with its session elsewhere; never to two at a time."""

from __future__ import annotations

from process.children import Child, Crew, clock, until
from process.grounds import STEADY, every_store


def in_line(onlooker: Child, name: str, holders: int, waiters: int) -> None:
    until(lambda: onlooker.ask("line", name, hear="line") == [str(holders), str(waiters)], what="the line")


def freed(crew: Crew, other: Child, name: str, since: float) -> tuple[int, float]:
    """Try again and again: the token, and how long after `since` it came."""
    while True:
        word, *rest = other.tries(name)
        if word == "took":
            return int(rest[0]), float(rest[2]) - since
        assert word == "busy"
        assert clock() - since < crew.noticed


@every_store
def test_a_killed_holders_lock_goes_to_the_waiter(crew: Crew) -> None:
    holder, waiter, onlooker = crew.worker(), crew.worker(STEADY), crew.worker(STEADY)
    old = holder.take("a")
    waiter.tell("take", "a", 20)
    in_line(onlooker, "a", 1, 1)
    dead = holder.kill()
    token, _, got = waiter.hear("took")
    print(f"figure: a killed holder's lock was with the waiter after {float(got) - dead:.3f} s")
    assert float(got) - dead < crew.noticed
    assert int(token) > old


@every_store
def test_a_killed_holders_lock_is_free_for_a_try(crew: Crew) -> None:
    holder, other = crew.worker(), crew.worker(STEADY)
    old = holder.take("a")
    assert other.tries("a")[0] == "busy"
    token, took = freed(crew, other, "a", holder.kill())
    print(f"figure: a killed holder's lock was free for a try after {took:.3f} s")
    assert token > old


def test_a_killed_holders_lock_is_free_for_a_newcomer(crew: Crew) -> None:
    """A process that starts afterwards sweeps what the dead left, and its first try succeeds."""
    holder = crew.worker()
    old = holder.take("a")
    holder.kill()
    newcomer = crew.worker()
    assert newcomer.take("a", 0) > old
    left = sorted(file.suffix for file in crew.path.with_name("locks.db.d").iterdir())
    assert left == ["", ".live", ".sock"], "what the dead client left was swept"


@every_store
def test_a_waiter_killed_in_the_middle_of_the_line_blocks_nobody(crew: Crew) -> None:
    dying, holder, last, onlooker = crew.worker(), *(crew.worker(STEADY) for _ in range(3))
    old = holder.take("a")
    dying.tell("take", "a", 20)
    in_line(onlooker, "a", 1, 1)
    last.tell("take", "a", 20)
    in_line(onlooker, "a", 1, 2)
    dying.kill()
    assert holder.ask("give", "a", hear="gave") == ["ok"]
    given = clock()
    token, _, got = last.hear("took")
    print(f"figure: behind a killed waiter the lock came after {float(got) - given:.3f} s")
    assert float(got) - given < crew.noticed
    assert int(token) > old


@every_store
def test_a_line_of_killed_waiters_blocks_nobody(crew: Crew) -> None:
    """Several in a row, killed while the holder lives on: one look removes them all."""
    holder, last, onlooker = crew.worker(), crew.worker(STEADY), crew.worker(STEADY)
    holder.take("a")
    dying = [crew.worker() for _ in range(4)]
    for count, child in enumerate(dying, 1):
        child.tell("take", "a", 20)
        in_line(onlooker, "a", 1, count)
    last.tell("take", "a", 20)
    in_line(onlooker, "a", 1, 5)
    for child in dying:
        child.kill()
    dead = holder.kill()
    got = float(last.hear("took")[2])
    print(f"figure: behind a killed holder and 4 killed waiters the lock came after {got - dead:.3f} s")
    assert got - dead < crew.noticed


@every_store
def test_who_dies_frees_only_its_own(crew: Crew) -> None:
    dying, living, other = crew.worker(), crew.worker(STEADY), crew.worker(STEADY)
    dying.take("a")
    living.take("b")
    freed(crew, other, "a", dying.kill())
    assert other.tries("b")[0] == "busy"
    assert living.ask("state", "b", hear="state")[:3] == ["ok", "valid", "owned"]
    assert living.ask("give", "b", hear="gave") == ["ok"]
