"""A process that dies gives way: at once where the kernel tells, with its lease elsewhere; never to two at a time."""

from __future__ import annotations

from process.children import STEADY, Child, Crew, clock, until
from process.grounds import usual_servers


def freed(crew: Crew, other: Child, name: str, since: float) -> int:
    """Try again and again: the token."""
    said = until(lambda: (words := other.tries(name))[0] == "took" and words, what="it is free")
    assert clock() - since < crew.noticed
    return int(said[1])


@usual_servers
def test_the_dead_block_nobody(crew: Crew) -> None:
    """A killed waiter and a killed holder give way, and nothing of anybody else's is freed."""
    holder, dying, last = crew.workers(None, None, STEADY)
    last.take("b")
    old = holder.take("a")
    dying.tell("take", "a", STEADY)
    crew.in_queue("a", 1, 1)
    last.tell("take", "a", STEADY)
    crew.in_queue("a", 1, 2)
    dying.kill()
    dead = holder.kill()
    token, _, got = last.hear("took")
    assert float(got) - dead < crew.noticed
    assert int(token) > old
    assert crew.client.lock("b").acquire(timeout=0) is None
    assert last.ask("state", "b", hear="state")[:3] == ["ok", "valid", "owned"]


def test_a_killed_holders_lock_goes_to_the_waiter(crew: Crew) -> None:
    holder, waiter = crew.workers(None, None)
    old = holder.take("a")
    waiter.tell("take", "a", STEADY)
    crew.in_queue("a", 1, 1)
    dead = holder.kill()
    token, _, got = waiter.hear("took")
    assert float(got) - dead < crew.noticed
    assert int(token) > old


def test_a_killed_holders_lock_is_free_for_a_try_and_no_other_is(crew: Crew) -> None:
    dying, living, other = crew.workers(None, None, None)
    old = dying.take("a")
    living.take("b")
    assert other.tries("a")[0] == "busy"
    assert freed(crew, other, "a", dying.kill()) > old
    assert other.tries("b")[0] == "busy"
    assert living.ask("state", "b", hear="state")[:3] == ["ok", "valid", "owned"]
    assert living.ask("give", "b", hear="gave") == ["ok"]


def test_a_killed_holders_lock_is_free_for_a_newcomer(crew: Crew) -> None:
    """A process that starts afterwards sweeps what the dead left, and its first try succeeds."""
    holder = crew.worker()
    old = holder.take("a")
    holder.kill()
    newcomer = crew.worker()
    assert newcomer.take("a", 0) > old
    left = sorted(file.suffix for file in crew.path.with_name("locks.db.d").iterdir())
    assert left == ["", ".live", ".sock"], "what the dead client left was swept"


def test_a_line_of_killed_waiters_blocks_nobody(crew: Crew) -> None:
    """Several in a row, killed while the holder lives on: one look removes them all."""
    holder, last, *dying = crew.workers(*[None] * 5)
    old = holder.take("a")
    for count, child in enumerate([*dying, last], 1):
        child.tell("take", "a", STEADY)
        crew.in_queue("a", 1, count)
    for child in dying:
        child.kill()
    assert holder.ask("give", "a", hear="gave") == ["ok"]
    given = clock()
    token, _, got = last.hear("took")
    assert float(got) - given < crew.noticed
    assert int(token) > old
