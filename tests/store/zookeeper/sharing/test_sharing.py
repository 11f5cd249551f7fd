"""Java and Python on one path: each waits for the other, in order, and they never hold at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lab.curator import PATIENCE, Curator, Handle
from lab.servers.supervisor import Server
from store.sides import Python, Shift, Turn, hand_overs, overlaps, python
from store.zookeeper.sharing.sides import ELECTION, KINDS, LOCK, SEMAPHORE, WRITE, Kind, each


@each(*KINDS, LOCK)
def test_each_waits_for_the_other(java: Curator, side: Python, path: str, kind: Kind) -> None:
    theirs, client = kind.theirs(java, path), side.client(**kind.options)
    assert theirs.take(word=kind.word)
    assert side.tries(kind.ours(client, path)) is None
    ours = side.takes(kind.ours(client, path))
    side.in_queue(path, 1)
    assert not ours.done()
    theirs.give(kind.word)
    hold = ours.result(PATIENCE)
    hold.check()
    assert hold.token > 0
    waits = theirs.begin(word=kind.word)
    side.in_queue(path, 1)
    assert not waits.done()
    side.do(hold.release)
    assert waits.result(PATIENCE)
    assert side.tries(kind.ours(client, path)) is None
    theirs.give(kind.word)
    assert side.take(kind.ours(client, path)), "and Python gets it again"


@pytest.mark.gate
@each(LOCK, WRITE, SEMAPHORE, ELECTION)
def test_all_are_served_in_the_order_in_which_they_came(java: Curator, side: Python, path: str, kind: Kind) -> None:
    first = side.take(kind.ours(side.client(), path))
    queue: list[tuple[Future[object], Callable[[], object]]] = []
    for number in range(2):
        ours = side.takes(kind.ours(side.client(), path))
        queue.append((ours, lambda ours=ours: side.do(ours.result().release)))
        side.in_queue(path, 2 * number + 1)
        handle = kind.theirs(java, path)
        queue.append((handle.begin(word=kind.word), lambda handle=handle: handle.give(kind.word)))
        side.in_queue(path, 2 * number + 2)
    side.do(first.release)
    for place, (waits, give) in enumerate(queue):
        assert waits.result(PATIENCE) is not None
        assert [one.done() for one, _ in queue] == [True] * (place + 1) + [False] * (len(queue) - place - 1)
        give()


def java_turns(shift: Shift, handle: Handle) -> None:
    while shift.open():
        held = handle.take()
        assert held is not None
        shift.turns.append(Turn(held.at, handle.give(""), "java", held.czxid))


@pytest.mark.gate
@pytest.mark.timeout(120)
def test_hand_overs_in_order_and_never_two_at_once(server: Server, java: Curator, path: str) -> None:
    enough = 60
    shift = Shift(lambda turns: hand_overs(turns) >= enough)
    with (
        python("blocking", server.url()) as threads,
        python("aio", server.url()) as tasks,
        ThreadPoolExecutor(2) as workers,
    ):
        first = threads.take(threads.client().lock(path))
        working: list[Future[None]] = []
        for side in (threads, tasks):  # one by one, so that the languages take turns from the beginning
            working += [side.works(shift, side.client().lock(path))]
            threads.in_queue(path, len(working))
            working += [workers.submit(java_turns, shift, java.mutex(path))]
            threads.in_queue(path, len(working))
        threads.do(first.release)
        for each in working:
            each.result(3 * PATIENCE)
    assert hand_overs(shift.turns) >= enough
    assert overlaps(shift.turns) == []
    order = [turn.order for turn in sorted(shift.turns)]
    assert order == sorted(set(order)), "first come, first served"


def test_readers_of_both_share_and_writers_of_both_wait(java: Curator, side: Python, path: str) -> None:
    reader, writer, late = (java.read_write(path) for _ in range(3))
    assert reader.take(word="read")
    ours = side.take(side.client().rwlock(path).read)
    their_write = writer.begin(word="write")
    side.in_queue(path, 1)
    our_write = side.takes(side.client().rwlock(path).write)
    side.in_queue(path, 2)
    their_read = late.begin(word="read")
    side.in_queue(path, 3)
    our_read = side.takes(side.client().rwlock(path).read)
    side.in_queue(path, 4)
    waiting = [their_write, our_write, their_read, our_read]
    assert side.tries(side.client().rwlock(path).read) is None, "a reader passes no writer"
    info, nodes = side.inspect(path), {f"{path}/{node.name}": node.czxid for node in java.nodes(path)}
    assert (info.kind, len(info.holders), len(info.waiters)) == ("rw", 2, 4)
    readers, writers = ([nodes[one] for one in java.read_write(path).participants(word)] for word in ("read", "write"))
    assert [one.token for one in info.holders] == readers[:2]
    assert sorted(one.token for one in (*info.holders, *info.waiters)) == sorted(readers + writers)
    side.do(ours.release)
    assert not any(one.done() for one in waiting)
    reader.give("read")
    assert their_write.result(PATIENCE)
    assert not any(one.done() for one in waiting[1:])
    writer.give("write")
    hold = our_write.result(PATIENCE)
    assert not any(one.done() for one in waiting[2:])
    side.do(hold.release)
    assert their_read.result(PATIENCE)
    assert our_read.result(PATIENCE)
    late.give("read")


@pytest.mark.gate
def test_a_python_downgrade_lets_java_s_readers_in_and_no_writer(java: Curator, side: Python, path: str) -> None:
    hold = side.take(side.client().rwlock(path, owner="client").write)
    reader, writer = java.read_write(path), java.read_write(path)
    reads = reader.begin(word="read")
    side.in_queue(path, 1)
    writes = writer.begin(word="write")
    side.in_queue(path, 2)
    side.do(hold.downgrade)
    assert reads.result(PATIENCE)
    reader.give("read")
    hold.check()
    assert not writes.done()
    side.do(hold.release)
    assert writes.result(PATIENCE)
    writer.give("write")


def test_permits_of_both_add_up(java: Curator, side: Python, path: str) -> None:
    theirs = java.semaphore(path, 3)
    assert theirs.take(word="1")
    hold = side.take(side.client().semaphore(path, 3), n=2)
    assert java.semaphore(path, 3).take(0.1, word="1") is None
    assert side.tries(side.client().semaphore(path, 3)) is None
    waits = java.semaphore(path, 3).begin(word="2")
    side.in_queue(path, 1)
    ours = side.takes(side.client().semaphore(path, 3))
    side.in_queue(path, 2)
    theirs.give()
    side.do(hold.release)
    assert waits.result(PATIENCE)
    side.do(ours.result(PATIENCE).release)


@pytest.mark.gate
def test_python_has_one_node_where_java_has_made_half_of_a_semaphore(java: Curator, side: Python, path: str) -> None:
    """Java makes `locks` when it joins, but `leases` only when it is first in the queue."""
    first = java.mutex(f"{path}/locks")
    assert first.take()
    first.give()
    assert side.take(side.client().semaphore(path, 2)) is not None
    assert java.nodes(f"{path}/locks") == []
    assert len(java.nodes(f"{path}/leases")) == 1
