"""A process that dies gives way: at once where the kernel tells, with its lease elsewhere."""

from __future__ import annotations

from process.children import STEADY, Crew
from process.stores import EVERY, each


@each(*EVERY)
def test_the_dead_block_nobody(crew: Crew) -> None:
    """Killed waiters and a killed holder give way, and nobody else loses anything."""
    last = crew.worker(STEADY)
    holder, *dying = crew.workers(None, None, None)
    last.take("b")
    old = holder.take("a")
    for count, child in enumerate([*dying, last], 1):
        child.tell("take", "a", STEADY)
        crew.in_queue("a", 1, count)
    for child in (*dying, holder):
        child.kill()
    assert int(last.hear("took")[0]) > old
    assert crew.client.lock("b").acquire(timeout=0) is None
    assert last.ask("state", "b", hear="state")[:3] == ["ok", "valid", "owned"]


def test_a_killed_holders_lock_is_free_for_a_newcomer(crew: Crew) -> None:
    """A process that starts afterwards sweeps what the dead left, and its first try succeeds."""
    holder = crew.worker()
    old = holder.take("a")
    holder.kill()
    newcomer = crew.worker()
    assert newcomer.take("a", 0) > old
    left = sorted(file.suffix for file in crew.path.with_name("locks.db.d").iterdir())
    assert left == ["", ".live", ".sock"], "what the dead client left was swept"
