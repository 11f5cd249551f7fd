"""One path, Java and Python: each waits for the other, gets it in order, and never beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from lab.curator import PATIENCE, Curator
from lab.servers.supervisor import Server
from store.zookeeper.sharing.sides import (
    ELECTION,
    KINDS,
    LOCK,
    SEMAPHORE,
    WRITE,
    Kind,
    Python,
    Shift,
    Turn,
    hand_overs,
    overlaps,
    python,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_python_waits_for_java(java: Curator, side: Python, path: str, kind: Kind) -> None:
    theirs, client = kind.theirs(java, path), side.client(**kind.options)
    assert theirs.take(word=kind.word)
    assert side.tries(kind.ours(client, path)) is None
    waits = side.takes(kind.ours(client, path))
    side.in_line(path, 1)
    assert not waits.done()
    theirs.give(kind.word)
    hold = waits.result(PATIENCE)
    hold.check()
    assert hold.token > 0
    side.do(hold.release)
    assert theirs.take(word=kind.word), "and Java gets it again"
    theirs.give(kind.word)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_java_waits_for_python(java: Curator, side: Python, path: str, kind: Kind) -> None:
    theirs, client = kind.theirs(java, path), side.client(**kind.options)
    hold = side.take(kind.ours(client, path))
    waits = theirs.begin(word=kind.word)
    side.in_line(path, 1)
    assert not waits.done()
    hold.check()
    side.do(hold.release)
    assert waits.result(PATIENCE)
    assert side.tries(kind.ours(client, path)) is None
    theirs.give(kind.word)
    assert side.take(kind.ours(client, path))


@pytest.mark.parametrize("kind", [LOCK, WRITE, SEMAPHORE, ELECTION], ids=str)
def test_all_are_served_in_the_order_in_which_they_came(java: Curator, side: Python, path: str, kind: Kind) -> None:
    first = side.take(kind.ours(side.client(), path))
    line: list[tuple[Future[object], Callable[[], object]]] = []
    for number in range(3):
        lock = kind.ours(side.client(), path)
        ours = side.takes(lock)
        line.append((ours, lambda ours=ours: side.do(ours.result().release)))
        side.in_line(path, 2 * number + 1)
        handle = kind.theirs(java, path)
        line.append((handle.begin(word=kind.word), lambda handle=handle: handle.give(kind.word)))
        side.in_line(path, 2 * number + 2)
    side.do(first.release)
    for place, (waits, give) in enumerate(line):
        assert waits.result(PATIENCE) is not None
        assert [one.done() for one, _ in line] == [True] * (place + 1) + [False] * (len(line) - place - 1)
        give()


@pytest.mark.timeout(120)
def test_two_hundred_hand_overs_in_order_and_never_two_at_once(server: Server, java: Curator, path: str) -> None:
    shift = Shift(lambda turns: hand_overs(turns) >= 200)
    with (
        python("blocking", server.url()) as threads,
        python("aio", server.url()) as tasks,
        ThreadPoolExecutor(8) as workers,
    ):
        first = threads.take(threads.client().lock(path))
        working: list[Future[None]] = []
        for number in range(2):  # one after the other, so that the languages take turns from the beginning
            working += [workers.submit(shift.blocking, threads.client().lock(path))]
            threads.in_line(path, 4 * number + 1)
            working += [workers.submit(shift.java, java.mutex(path))]
            threads.in_line(path, 4 * number + 2)
            working += [tasks.begin(lambda: shift.aio(tasks.client().lock(path)))]
            threads.in_line(path, 4 * number + 3)
            working += [workers.submit(shift.java, java.mutex(path))]
            threads.in_line(path, 4 * number + 4)
        threads.do(first.release)
        for each in working:
            each.result(3 * PATIENCE)
    assert hand_overs(shift.turns) >= 200
    assert overlaps(shift.turns) == []
    order = [turn.order for turn in sorted(shift.turns)]
    assert order == sorted(set(order)), "who came first was served first"


def test_readers_of_both_share_and_writers_of_both_wait(java: Curator, side: Python, path: str) -> None:
    reader, writer, late = (java.read_write(path) for _ in range(3))
    assert reader.take(word="read")
    ours = side.take(side.client().rwlock(path).read)
    their_write = writer.begin(word="write")
    side.in_line(path, 1)
    our_write = side.takes(side.client().rwlock(path).write)
    side.in_line(path, 2)
    their_read = late.begin(word="read")
    side.in_line(path, 3)
    our_read = side.takes(side.client().rwlock(path).read)
    side.in_line(path, 4)
    waiting = [their_write, our_write, their_read, our_read]
    assert side.tries(side.client().rwlock(path).read) is None, "a reader passes no writer"
    side.do(ours.release)
    ours_again = side.takes(side.client().rwlock(path).read)
    side.in_line(path, 5)
    assert not any(one.done() for one in [*waiting, ours_again])
    reader.give("read")
    assert their_write.result(PATIENCE)
    assert not any(one.done() for one in waiting[1:])
    writer.give("write")
    hold = our_write.result(PATIENCE)
    assert not any(one.done() for one in waiting[2:])
    side.do(hold.release)
    assert their_read.result(PATIENCE)
    assert our_read.result(PATIENCE)
    assert ours_again.result(PATIENCE)
    late.give("read")


def test_readers_and_writers_in_a_crowd(server: Server, java: Curator, path: str) -> None:
    many = 1000
    shift = Shift(lambda turns: len(turns) >= 150)
    with (
        python("blocking", server.url()) as threads,
        python("aio", server.url()) as tasks,
        ThreadPoolExecutor(8) as workers,
    ):
        working = [
            workers.submit(shift.java, java.read_write(path), "read", hold=0.002),
            workers.submit(shift.java, java.read_write(path), "read", hold=0.002),
            workers.submit(shift.java, java.read_write(path), "write", many),
            workers.submit(shift.blocking, threads.client().rwlock(path).read, hold=0.002),
            workers.submit(shift.blocking, threads.client().rwlock(path).write, many),
            tasks.begin(lambda: shift.aio(tasks.client().rwlock(path).read, hold=0.002)),
            tasks.begin(lambda: shift.aio(tasks.client().rwlock(path).write, many)),
        ]
        for each in working:
            each.result(3 * PATIENCE)
    assert overlaps(shift.turns, many) == []
    assert {(turn.who, turn.weight) for turn in shift.turns} == {
        (who, weight) for who in ("java", "python") for weight in (1, many)
    }


def test_java_that_writes_and_reads_keeps_a_python_writer_out(java: Curator, side: Python, path: str) -> None:
    """Its read stands at its write's own number since Curator 5.5: below everybody who came meanwhile."""
    both = java.read_write(path)
    assert both.take(word="write")
    waits = side.takes(side.client().rwlock(path).write)
    side.in_line(path, 1)
    if tuple(map(int, java.version.split(".")[:2])) < (5, 5):
        both.give("write")
        pytest.skip(f"Curator {java.version} has no tie nodes")
    assert both.take(word="read")
    both.give("write")
    assert both.take(0, word="read"), "it enters again, and so much later still holds"
    both.give("read")
    assert not waits.done()
    assert [len(side.inspect(path).holders), len(side.inspect(path).waiters)] == [1, 1]
    both.give("read")
    side.do(waits.result(PATIENCE).release)


def test_a_python_downgrade_lets_java_s_readers_in_and_no_writer(java: Curator, side: Python, path: str) -> None:
    lock = side.client().rwlock(path, owner="client")
    hold = side.take(lock.write)
    reader, writer = java.read_write(path), java.read_write(path)
    reads = reader.begin(word="read")
    side.in_line(path, 1)
    writes = writer.begin(word="write")
    side.in_line(path, 2)
    side.do(hold.downgrade)
    assert reads.result(PATIENCE)
    assert not writes.done()
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
    side.in_line(path, 1)
    ours = side.takes(side.client().semaphore(path, 3))
    side.in_line(path, 2)
    theirs.give()
    side.do(hold.release)
    assert waits.result(PATIENCE)
    side.do(ours.result(PATIENCE).release)


def test_python_stands_once_where_java_has_made_half_of_a_semaphore(java: Curator, side: Python, path: str) -> None:
    """Java makes `locks` when it comes and `leases` when it is first in line: whoever comes in between finds one."""
    first = java.mutex(f"{path}/locks")
    assert first.take()
    first.give()
    hold = side.take(side.client().semaphore(path, 2))
    assert hold is not None
    assert java.nodes(f"{path}/locks") == []
    assert len(java.nodes(f"{path}/leases")) == 1


def test_permits_in_a_crowd(server: Server, java: Curator, path: str) -> None:
    shift = Shift(lambda turns: len(turns) >= 100)
    with (
        python("blocking", server.url()) as threads,
        python("aio", server.url()) as tasks,
        ThreadPoolExecutor(8) as workers,
    ):
        working = [workers.submit(shift.java, java.semaphore(path, 2), "1", hold=0.002) for _ in range(2)]
        working += [workers.submit(shift.blocking, threads.client().semaphore(path, 2), hold=0.002) for _ in range(2)]
        working += [tasks.begin(lambda: shift.aio(tasks.client().semaphore(path, 2), hold=0.002))]
        for each in working:
            each.result(3 * PATIENCE)
    assert overlaps(shift.turns, 2) == []
    assert {turn.who for turn in shift.turns} == {"java", "python"}


def test_who_leads_is_known_to_both(java: Curator, side: Python, path: str) -> None:
    one = java.latch(path, "one")
    assert one.take()
    election = side.client().election(path)
    leader = side.do(election.leader)
    assert leader is not None
    (node,) = java.nodes(path)
    assert leader.token == node.czxid
    leads = side.takes(election.lead())
    side.in_line(path, 1)
    one.give()
    hold = leads.result(PATIENCE)
    (ours,) = java.nodes(path)
    assert hold.token == ours.czxid
    assert java.latch(path, "two").participants("leader") == [java.data(f"{path}/{ours.name}")]
    assert java.latch(path, "two").take(0.1) is None
    side.do(hold.release)


def test_a_dead_java_process_frees_python(server: Server, path: str) -> None:
    with python("blocking", server.url()) as side, Curator(f"127.0.0.1:{server.port}", timeout=1) as other:
        assert other.mutex(path).take()
        waits = side.takes(side.client().lock(path))
        side.in_line(path, 1)
        other.kill()
        side.do(waits.result(PATIENCE).release)


# That the checkers see.


def test_overlaps_are_seen() -> None:
    apart = [Turn(10, 20, "java"), Turn(30, 40, "python"), Turn(21, 29, "java")]
    assert overlaps(apart) == []
    beside = Turn(15, 25, "python")
    assert overlaps([*apart, beside]) == [beside, Turn(21, 29, "java")]
    assert overlaps([*apart, beside], 2) == []
    writer = Turn(35, 36, "java", weight=2)
    assert overlaps([*apart, writer], 2) == [writer]
    assert hand_overs(apart) == 1


def test_a_shift_without_turns_has_an_end() -> None:
    shift = Shift(lambda turns: False)
    assert shift.open()
    shift._end = 0
    with pytest.raises(AssertionError, match="only 0 turns"):
        shift.open()
