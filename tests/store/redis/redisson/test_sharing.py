"""One name, Java and Python: each waits for the other, gets it, and never beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import dibs
from lab.redisson import PATIENCE, Redisson
from store.redis.redisson.peers import FAIR, FENCED, KINDS, LOCK, PERMITS, RLOCK, SEMAPHORE, WRITE, Kind, Raw
from store.sides import APIS, Python, Shift, Turn, hand_overs, overlaps, python

EACH = [pytest.param(api, kind, id=f"{kind}-{api}") for kind in KINDS for api in APIS]
ENOUGH = 200


@pytest.mark.parametrize(("side", "kind"), EACH, indirect=["side"])
def test_each_waits_for_the_other(java: Redisson, side: Python, raw: Raw, name: str, kind: Kind) -> None:
    theirs, client = kind.java(java, name), side.client()
    held = side.take(kind.ours(client, name))  # first: it sets the size of a semaphore
    assert theirs.take(0) is None
    waits = theirs.begin()
    raw.wait_for(kind, name, 1)
    theirs.sleeps()
    assert not waits.done()
    side.do(held.release)
    assert theirs.held(waits)
    assert side.tries(kind.ours(client, name)) is None
    ours = side.takes(kind.ours(client, name))
    raw.wait_for(kind, name, 1)
    assert not ours.done()
    theirs.give()
    hold = ours.result(PATIENCE)
    hold.check()
    assert theirs.take(0) is None
    side.do(hold.release)
    assert theirs.take(), "and Java gets it again"
    theirs.give()
    assert raw.holders(name) == {} if kind not in (SEMAPHORE, PERMITS) else raw.client.get(raw.key(name)) == b"1"


@pytest.mark.parametrize("kind", [LOCK, RLOCK, FENCED, WRITE, SEMAPHORE, PERMITS], ids=str)
def test_hand_overs_and_never_two_at_once(java: Redisson, url: str, name: str, kind: Kind) -> None:
    shift = Shift(lambda turns: hand_overs(turns) >= ENOUGH or len(turns) >= 20 * ENOUGH)
    with python("blocking", url) as threads, python("aio", url) as tasks, ThreadPoolExecutor(2) as workers:
        first = threads.take(kind.ours(threads.client(), name))
        working: list[Future[None]] = [
            side.works(shift, kind.ours(side.client(), name), order=lambda _: 0) for side in (threads, tasks)
        ]
        working += [workers.submit(kind.java(java, name).turns, shift) for _ in range(2)]
        threads.do(first.release)
        for each in working:
            each.result(3 * PATIENCE)
    assert overlaps(shift.turns) == []
    assert {turn.who for turn in shift.turns} == {"java", "python"}
    assert hand_overs(shift.turns) >= ENOUGH


def test_hand_overs_of_a_fair_lock_are_in_order(java: Redisson, url: str, raw: Raw, name: str) -> None:
    """Every holder notes the head of the queue while it holds: that one must be the next holder."""
    shift = Shift(lambda turns: hand_overs(turns) >= ENOUGH)
    notes: list[tuple[str, str | None]] = []

    def note(*_: object) -> int:
        (holder,) = raw.holders(name)
        notes.append((holder, next(iter(raw.queue(name)), None)))
        return len(notes)

    with python("blocking", url) as threads, python("aio", url) as tasks, ThreadPoolExecutor(2) as workers:
        first = threads.take(FAIR.ours(threads.client(), name))
        working: list[Future[None]] = []
        for count, side in enumerate((threads, tasks)):  # the languages take turns from the beginning
            working += [side.works(shift, FAIR.ours(side.client(), name), order=note)]
            raw.wait_for(FAIR, name, 2 * count + 1)
            working += [workers.submit(FAIR.java(java, name).turns, shift, note)]
            raw.wait_for(FAIR, name, 2 * count + 2)
        threads.do(first.release)
        for each in working:
            each.result(3 * PATIENCE)
    assert hand_overs(shift.turns) >= ENOUGH
    assert overlaps(shift.turns) == []
    assert [turn.order for turn in sorted(shift.turns)] == list(range(1, len(notes) + 1))
    following = [holder for holder, _ in notes[1:]]
    wrong = [at for at, (_, head) in enumerate(notes[:-1]) if head is not None and head != following[at]]
    assert wrong == [], "who stood first was served next"
    assert sum(head is not None for _, head in notes) > ENOUGH / 2, "there was a queue"


def test_all_are_served_in_the_order_in_which_they_came(java: Redisson, url: str, raw: Raw, name: str) -> None:
    with python("blocking", url) as threads, python("aio", url) as tasks:
        first = threads.take(FAIR.ours(threads.client(), name))
        queue: list[tuple[Future[object], Callable[[], object]]] = []
        for number, side in enumerate((threads, tasks)):
            ours = side.takes(FAIR.ours(side.client(), name))
            queue.append((ours, lambda ours=ours, side=side: side.do(ours.result().release)))
            raw.wait_for(FAIR, name, 2 * number + 1)
            handle = FAIR.java(java, name)
            queue.append((handle.begin(), handle.give))
            raw.wait_for(FAIR, name, 2 * number + 2)
        threads.do(first.release)
        for place, (waits, give) in enumerate(queue):
            assert waits.result(PATIENCE) is not None
            assert [one.done() for one, _ in queue] == [True] * (place + 1) + [False] * (len(queue) - place - 1)
            give()
    assert raw.left(name) == []


@pytest.mark.parametrize("side", APIS, indirect=True)
def test_readers_share_and_a_writer_waits(java: Redisson, side: Python, raw: Raw, name: str) -> None:
    client = side.client()
    theirs, ours = java.read(name), client.rwlock(name)
    assert theirs.take() is not None
    held = side.take(ours.read)
    assert raw.client.hget(raw.key(name), "mode") == b"read"
    assert side.tries(side.client().rwlock(name).write) is None
    assert java.write(name).take(0) is None
    writer = side.takes(side.client().rwlock(name).write)
    raw.wait_for(WRITE, name, 1)
    theirs.give()
    assert not writer.done()
    assert raw.holders(name).keys() == {side.inspect(name).holders[0].owner}
    side.do(held.release)
    hold = writer.result(PATIENCE)
    assert java.read(name).take(0) is None
    side.do(hold.downgrade)
    assert java.read(name).take(0) is not None, "the writer is a reader now"
    side.do(hold.release)


def test_the_token_of_a_fenced_lock_is_one_sequence(java: Redisson, side: Python, name: str) -> None:
    theirs, tokens = java.fenced(name), []
    for _ in range(3):
        held = theirs.take()
        assert held is not None
        tokens.append(held.token)
        assert side.inspect(name).holders[0].token == held.token
        theirs.give()
        hold = side.take(side.client().lock(name, fenced=True))
        tokens.append(hold.token)
        assert theirs.token() == hold.token
        side.do(hold.release)
    assert tokens == list(range(1, 7))


def test_a_spin_lock_is_the_same_lock(java: Redisson, side: Python, name: str) -> None:
    spin = java.spin(name)
    hold = side.take(side.client().lock(name))
    assert spin.take(0) is None
    side.do(hold.release)
    assert spin.take(PATIENCE) is not None
    assert side.tries(side.client().lock(name)) is None
    spin.give()
    side.do(side.take(side.client().lock(name)).release)


def test_several_locks_as_one(java: Redisson, side: Python, name: str) -> None:
    module = dibs if side.api == "blocking" else dibs.aio
    client, names = side.client(), [f"{name}-1", f"{name}-2"]
    theirs = java.multi(reversed(names))
    both = module.multi(*map(client.lock, names))
    assert theirs.take() is not None
    assert side.tries(both) is None
    assert [side.inspect(one).holders[0].owner for one in names] == [theirs.holder, theirs.holder]
    theirs.give()
    hold = side.take(both)
    assert theirs.take(0.05) is None
    assert [len(side.inspect(one).holders) for one in names] == [1, 1]
    side.do(hold.release)
    alone = side.take(client.lock(names[1]))
    assert theirs.take(0.05) is None, "all or none"
    assert side.inspect(names[0]).holders == ()
    side.do(alone.release)
    assert theirs.take() is not None
    theirs.give()


def test_turns_are_compared(name: str) -> None:
    """The check of this file can fail."""
    assert overlaps([Turn(1, 5, "java"), Turn(3, 6, "python")]) != []
